"""Files about the project say the same as each other, and as `pyproject.toml`."""

import re
import shlex
import subprocess
import tomllib

import pytest
from packaging.version import Version

from tests.nightly.test_docs import PAGES, ROOT

yaml = pytest.importorskip("yaml")
TOML = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, BUILD = TOML["project"], TOML["build-system"]
CITATION, PLACES = "CITATION.cff", (ROOT / ".github" / "workflows").glob("*.yml")
IS_PLACEHOLDER = ".invalid" in PROJECT["urls"]["Homepage"]
WORKFLOWS = "\n".join(path.read_text() for path in PLACES)


def test_the_recipe_of_conda_has_the_fields_of_the_project():
    text = (ROOT / ".ci" / "conda" / "meta.yaml").read_text()
    version = re.search(r'set version = "(.*)"', text)[1]
    lines = [line for line in text.splitlines() if "{%" not in line]
    recipe = yaml.safe_load("\n".join(lines).replace("{{ version }}", version))
    citation = yaml.safe_load((ROOT / CITATION).read_text())
    needed = [name.replace(" ", "") for name in recipe["requirements"]["run"]]
    urls = PROJECT["urls"]
    assert version == citation["version"]
    assert needed == [f"python{PROJECT['requires-python']}", *PROJECT["dependencies"]]
    builds = [requirement.replace(">=", " >=") for requirement in BUILD["requires"]]
    assert recipe["requirements"]["host"][2:] == builds
    scripts = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert recipe["build"]["entry_points"] == scripts
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
    assert set(named) == set(re.findall(r'"(3\.\d+)"', WORKFLOWS))
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_a_release_refuses_the_placeholder_of_the_host():
    command = re.search(r"! (grep -rn .*)\"", WORKFLOWS)[1]
    result = subprocess.run(shlex.split(command), cwd=ROOT, capture_output=True)
    assert result.returncode == (0 if IS_PLACEHOLDER else 1)  # 2: a file is not there


def test_pages_install_from_a_copy_until_the_project_has_a_host():
    text = "".join(path.read_text() for path in [ROOT / "README.md", *PAGES])
    pattern = r"pip install (-e )?\"?(?:\.|dpjax)(?!\[(?:test|docs|dev|…)\])"
    assert set(re.findall(pattern, text)) == {"-e " if IS_PLACEHOLDER else ""}


def test_the_changes_and_the_claims_that_broke_are_of_the_release():
    changes, security, citation = (
        (ROOT / name).read_text() for name in ("CHANGELOG.md", "SECURITY.md", CITATION)
    )
    newest = re.search(r"^## (.*)$", changes, re.M)[1]
    version, day = re.findall(r"^(?:version|date-released): (\S+)$", citation, re.M)
    assert newest in ("Unreleased", f"{version}, {day}")
    assert f"## {version}, {day}\n" in changes
    steps = (ROOT / "docs" / "contribute" / "release.md").read_text()
    assert f"git tag -a v{version} -m" in steps
    claims = sum(
        len(re.findall(r"^\* ", part.split("\n### ")[0], re.M))
        for part in changes.split("\n### Guarantees\n")[1:]
    )
    rows = re.findall(r"^\| \d{4}-\d\d-\d\d \|(?: [^|]+ \|){2}$", security, re.M)
    assert len(rows) == claims, "a row of SECURITY.md for each point of the changes"


def test_the_lowest_versions_that_are_tried_are_those_of_the_project():
    wanted, extras = list(PROJECT["dependencies"]), PROJECT["optional-dependencies"]
    lines = (ROOT / ".ci" / "lowest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and line[0] != "#")
    parts = {"test", *re.findall(r"\w+", extras["test"][0])}
    for name in parts - {"dpjax", "audit", "correlated"}:
        wanted += [one for one in extras[name] if not one.startswith("dpjax")]
    bounds = dict(re.split(r"(?:\[\w+\])?>=", one) for one in wanted)
    lowest = [{x: Version(y) for x, y in one.items()} for one in (pinned, bounds)]
    assert lowest[0] == lowest[1]


def test_what_builds_a_release_is_named_exactly():
    lines = [line for line in WORKFLOWS.splitlines() if "uses:" in line]
    assert len(lines) > 10
    exact = re.compile(r"\s*- uses: [\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")
    assert [line for line in lines if not exact.fullmatch(line)] == []
    lines = (ROOT / ".ci" / "build.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line[0] != "#")
    assert pinned.keys() >= {one.split(">")[0] for one in BUILD["requires"]}
