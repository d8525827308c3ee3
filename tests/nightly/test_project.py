"""What strangers read of a project says the same as `pyproject.toml`."""

import re
import tomllib

import pytest

from tests.nightly.test_docs import ROOT

yaml = pytest.importorskip("yaml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONFIG = ROOT / ".github/ISSUE_TEMPLATE/config.yml"
FORMS = sorted({*(ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")} - {CONFIG})


def test_the_recipe_of_conda_has_the_fields_of_the_project():
    text = (ROOT / ".ci" / "conda" / "meta.yaml").read_text()
    version = re.search(r'set version = "(.*)"', text)[1]
    lines = [line for line in text.splitlines() if "{%" not in line]
    recipe = yaml.safe_load("\n".join(lines).replace("{{ version }}", version))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    needed = [name.replace(" ", "") for name in recipe["requirements"]["run"]]
    urls = PROJECT["urls"]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    assert version == citation["version"]
    assert needed == [f"python{PROJECT['requires-python']}", *PROJECT["dependencies"]]
    assert recipe["requirements"]["host"][2:] == [
        requirement.replace(">=", " >=") for requirement in build["requires"]
    ]
    assert recipe["build"]["entry_points"] == [
        f"{name} = {target}" for name, target in PROJECT["scripts"].items()
    ]
    assert recipe["about"] == {
        "home": urls["Homepage"],
        "doc_url": urls["Documentation"],
        "dev_url": urls["Repository"],
        "summary": PROJECT["description"],
        "license": PROJECT["license"],
        "license_file": PROJECT["license-files"][0],
    }
    assert citation["url"] == urls["Homepage"]
    assert citation["repository-code"] == urls["Repository"]


def test_the_workflows_try_the_pythons_that_the_project_names():
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    workflows = (ROOT / ".github" / "workflows").glob("*.yml")
    text = "".join(path.read_text() for path in workflows)
    assert set(named) == set(re.findall(r'"(3\.\d+)"', text))
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_a_release_refuses_the_placeholder_of_the_host():
    text = (ROOT / ".github" / "workflows" / "publish.yml").read_text()
    command = re.search(r"grep -rn '(\S+)' (.*)\"", text)
    files = [ROOT / name for name in command[2].split()]
    paths = [path for file in files for path in (file, *file.rglob("*"))]
    hosts = "".join(path.read_text() for path in paths if path.is_file())
    assert re.search(command[1], hosts) or "https://dpjax" not in hosts
    assert all(file.exists() for file in files)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_for_all_that_an_answer_needs(path):
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "labels", "body"} == form.keys()
    identifiers = [field["id"] for field in form["body"]]
    assert len(set(identifiers)) == len(identifiers) > 2
    assert any(field["validations"]["required"] for field in form["body"])
    assert len(FORMS) == 4
