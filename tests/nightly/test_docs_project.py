"""Files about the project say the same as each other."""

import re
import tomllib

from tests.nightly.test_docs import ROOT

CITATION = "CITATION.cff"


def test_the_citation_is_that_of_the_page():
    file, page = (
        (ROOT / name).read_text() for name in (CITATION, "docs/contribute/cite.md")
    )
    fields = dict(re.findall(r'^(title|version|date-released): "?(.*?)"?$', file, re.M))
    year = fields.pop("date-released")[:4]
    for name, value in (fields | {"year": year}).items():
        assert f"  {name} = {{{value}}},\n" in page
    assert len(fields) == 2


def test_the_changes_and_the_claims_that_broke_are_of_the_release():
    changes, security, citation = (
        (ROOT / name).read_text() for name in ("CHANGELOG.md", "SECURITY.md", CITATION)
    )
    newest = re.search(r"^## (.*)$", changes, re.M)[1]
    (version,) = re.findall(r"^version: (\S+)$", citation, re.M)
    (day,) = re.findall(r"^date-released: (\S+)$", citation, re.M)
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


def test_lowest_versions_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    extras = project["optional-dependencies"]
    lines = (ROOT / ".ci" / "lowest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and line[0] != "#")
    for name in ("experiments", "export", "loading", "parties", "sklearn", "test"):
        wanted += [one for one in extras[name] if not one.startswith("dpjax")]
    bounds = dict(re.split(r"(?:\[\w+\])?>=", one) for one in wanted)

    def release(text):
        numbers = tuple(map(int, text.split(".")))
        return numbers + (0,) * (3 - len(numbers))

    assert pinned.keys() == bounds.keys()
    assert {name: release(text) for name, text in pinned.items()} == {
        name: release(text) for name, text in bounds.items()
    }


def test_what_builds_a_release_is_named_exactly():
    uses = [
        re.split(r"\s*- uses: ", line, maxsplit=1)[1]
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert len(uses) > 10
    for one in uses:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", one), one
    lines = (ROOT / ".ci" / "build.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line[0] != "#")
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    assert pinned.keys() >= {one.split(">")[0] for one in needed["requires"]}
