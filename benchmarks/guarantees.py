"""The page of guarantees, written from docstrings and recorded audits."""

import dataclasses
import inspect
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import dpjax
from benchmarks.audits import catalogue
from benchmarks.audits.catalogue import SEED, Finding, cases
from benchmarks.page import filled, table
from benchmarks.record import RESULTS
from dpjax import estimators, mechanisms, models, parties, solvers, transforms, tuning
from dpjax._files import check_file, check_spared, write_whole
from dpjax._rounding import as_decimal, rounded_down, rounded_up

PAGE = Path(dpjax.__file__).with_name("GUARANTEES.md")
RECORD = RESULTS / "audits.json"
PITFALLS = Path(__file__).with_name("pitfalls.md")

_POST_PROCESSING = "post-processing"

# Releases that are audited at epsilon 1, 3 and 8, by the names of their cases.
_BY_EPSILON = {
    "`dp_mean`": "dp_mean",
    "`describe`, a column in two groups": "dp_group_means_described",
    "`dp_linear_model`": "dp_linear_model",
    "`dp_linear_model` with intervals": "dp_linear_model_intervals",
    "`dp_additive_model`": "dp_additive_model",
}
_REACHED = 85  # percent of a claim

LAYERS: dict[str, tuple[ModuleType, str]] = {
    "Mechanisms": (mechanisms, "Pure functions of a key and a value."),
    "Transforms": (transforms, "One update of an `optax` transformation."),
    "Solvers": (solvers, "A whole run, all iterates together."),
    "Models": (
        models,
        "How good a model is, of records that its training did not see: Gaussian\n"
        "noise on sums of whole numbers, whose sensitivity tests attack too.",
    ),
    "Parties": (
        parties,
        "Not audited: these claims are about what messages show to other parties.\n"
        "What the solvers that use them release is audited, above.",
    ),
    "Tuning": (
        tuning,
        "A search with all its runs and scores. Audited by tests of its own, where a\n"
        "fixed number of runs, and a score without noise, are found out.",
    ),
}


@dataclasses.dataclass(frozen=True)
class Statement:
    """The claim of a public name's docstring, its source, and for which neighbors."""

    name: str
    claim: str
    source: str
    neighbors: str

    @property
    def is_free(self) -> bool:
        """Whether the name only works on what has been released."""
        return self.claim.startswith(_POST_PROCESSING)

    @property
    def summary(self) -> str:
        """The first sentence of the claim, with what it presupposes."""
        words = " ".join(self.claim.split())
        # A short first sentence is the assumption of the second.
        found = re.match(r".{30,}?(?=[.:;](\s|$))", words)
        return found[0] if found else words


def statements(package: ModuleType) -> list[Statement]:
    """Returns the statements of all public names of a package that make one."""
    found = []
    for name in package.__all__:
        text = inspect.getdoc(getattr(package, name)) or ""
        if claim := section(text, "Privacy") or section(text, "Sensitivity"):
            neighbors = _neighbors(name, getattr(package, name), claim)
            found.append(Statement(name, claim, section(text, "Reference"), neighbors))
    return found


def section(documentation: str, heading: str) -> str:
    """Returns the text of a docstring's section, or nothing."""
    inline = re.search(rf"^{heading}: (.+?)(\n\n|\Z)", documentation, re.M | re.S)
    if inline:
        return inline[1].strip()
    block = re.search(rf"^{heading}:\n((?:[ ].*\n?|\n)+)", documentation, re.M)
    return textwrap.dedent(block[1]).strip() if block else ""


def _neighbors(name: str, value: Any, claim: str) -> str:
    of_estimator = getattr(value, "sensitivity", value)
    parameters = inspect.signature(of_estimator).parameters
    if "relation" in parameters:
        return "replace-one, or add/remove"
    if "replace-one" in claim:
        return "replace-one"
    if "relation" in claim or "sensitivity" in claim or "sensitivity" in parameters:
        return "those of the sensitivity"
    if "parties" in claim or claim.startswith(_POST_PROCESSING):
        return ""
    raise ValueError(f"{name} does not say for which neighbors its claim holds.")


def audited(names: Sequence[str], case_names: Sequence[str]) -> dict[str, list[str]]:
    """Returns for each release the cases that attack it.

    A case's name begins with that of its release. Where several releases fit, it is the
    one that leaves an estimator's name, or else the longest.
    """
    words = {name.lower() for name in estimators.__all__}
    found: dict[str, list[str]] = {name: [] for name in names}

    def prefix(name: str) -> str:
        return re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()

    def order(name: str, case: str) -> tuple[int, int]:
        rest = case.removeprefix(prefix(name)).replace("_", "")
        return len(rest) if rest in words else 0, len(name)

    for case in case_names:
        fitting = [name for name in names if f"{case}_".startswith(f"{prefix(name)}_")]
        if fitting:
            found[max(fitting, key=partial(order, case=case))].append(case)
    return found


def write(output: Path | None = None, *, with_audits: bool = False) -> list[Path]:
    """Writes the page, and returns its path; with audits of what the record lacks."""
    path = output or PAGE
    check_file("output", path)
    check_spared("output", [path], {"the record": RECORD, "the pitfalls": PITFALLS})
    if with_audits:
        catalogue.complete(cases(), RECORD)
    write_whole(path, page(catalogue.read(RECORD)).encode(), name="output")
    return [path]


def page(record: Mapping[str, Finding]) -> str:
    """Returns the whole page, in Markdown, of what audits found, by case."""
    bounds = [one for one in statements(estimators) if one.name != "Mean"]
    of_privatize: dict[str, list[str]] = {one.name: [] for one in bounds}
    for case, name in product(record, of_privatize):
        if case.replace("_", "") == f"privatize{name.lower()}":
            of_privatize[name].append(case)
    failures = {1 - as_decimal(one.confidence) for one in record.values()}
    parts = {
        "layers": list(_layers(record)),
        "estimators": [_table(bounds, of_privatize, record), _details(bounds)],
        "confidence": " or ".join(f"1 - {rounded_up(one, 1)}" for one in failures),
        "seed": str(SEED),
        "by_epsilon": _by_epsilon(record),
        "findings": _results(record),
        "pitfalls": PITFALLS.read_text(),
    }
    return filled("GUARANTEES.md", parts)


def _layers(record: Mapping[str, Finding]) -> Iterator[str]:
    stated = {title: statements(package) for title, (package, _) in LAYERS.items()}
    names = [one.name for claims in stated.values() for one in claims]
    cases_of = audited(names, list(record))
    for title, (_, words) in LAYERS.items():
        claims = [one for one in stated[title] if not one.is_free]
        free = [f"`{one.name}`" for one in stated[title] if one.is_free]
        yield f"## {title}\n\n{words}"
        yield _table(claims, cases_of, record)
        if free:
            yield f"{' and '.join(free)} cost nothing: post-processing."
        yield _details(claims)


def _table(claims, cases_of, record) -> str:
    rows = []
    for one in claims:
        found = [record[case] for case in cases_of[one.name]]
        best = max(found, key=lambda x: x.epsilon / x.claim, default=None)
        shown = "not audited"
        if best:
            bound, claim = rounded_down(best.epsilon, 3), rounded_up(best.claim, 3)
            shown = f"ε ≥ {bound} of {claim}"
        rows.append([f"`{one.name}`", one.neighbors, _cell(one.summary), shown])
    return table(["release", "neighbors", "claim", "best attack"], rows)


def _details(claims: Sequence[Statement]) -> str:
    lines = ["<details><summary>Whole statements, and their sources</summary>\n"]
    for one in claims:
        lines += [f"**`{one.name}`**\n", "```text", one.claim]
        if one.source:
            lines += ["", "Source: " + one.source]
        lines += ["```\n"]
    return "\n".join([*lines, "</details>\n"])


def _by_epsilon(record: Mapping[str, Finding]) -> str:
    rows = []
    for words, name in _BY_EPSILON.items():
        if (found := [record.get(name + x) for x in ("_1", "", "_8")]).count(None):
            continue  # a record of some cases
        percents = [_percent(one) for one in found if one]
        cells = [f"{x}%" if x >= _REACHED else f"{x}%, *open*" for x in percents]
        rows.append([words, *cells])
    return table(["release", "ε = 1", "ε = 3", "ε = 8"], rows)


def _percent(one: Finding) -> int:
    return math.floor(100 * one.epsilon / one.claim)


def _results(record: Mapping[str, Finding]) -> str:
    rows = []
    for name, one in record.items():
        share = f"{_percent(one)}%"
        cells = [rounded_up(one.claim, 4), rounded_up(one.delta, 6)]
        cells += [rounded_down(one.epsilon, 4), share, f"{one.num_releases:,}"]
        rows.append([f"`{name}`", one.relation.lower().replace("_", "-"), *cells])
    header = ["case", "neighbors", "claimed ε", "δ", "proved ε ≥", "share", "releases"]
    return table(header, rows)


def _cell(words: str) -> str:
    """Escapes what a table's cell takes for something else."""
    return re.sub(r"([|<*])", r"\\\1", words)
