"""The cases of mechanisms, transforms, solvers and scores, and what audits found."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax

from benchmarks import record
from benchmarks.audits import (
    descent,
    linear_models,
    mechanisms,
    private_scores,
    solvers,
    transforms,
)
from benchmarks.audits.case import Build, Case
from dpjax._rounding import rounded_down, rounded_up

SEED = 0  # that of `benchmarks audit`, which finds the same
LAYERS: dict[str, dict[str, Build]] = {
    "mechanisms": mechanisms.CASES,
    "transforms": transforms.CASES,
    "solvers": solvers.CASES | descent.CASES | linear_models.CASES | solvers.CHOICES,
    "models": private_scores.CASES,
}


class _Cases(Mapping[str, Case]):
    """Cases by name, each built when it is first asked for."""

    def __init__(self) -> None:
        self._builders = {x: one[x] for one in LAYERS.values() for x in one}
        self._build = functools.cache(
            lambda name: dataclasses.replace(self._builders[name](), name=name)
        )

    def __getitem__(self, name: str) -> Case:
        return self._build(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._builders)

    def __len__(self) -> int:
        return len(self._builders)


_CASES = _Cases()


def names_of(layer: str) -> list[str]:
    """Returns the names of a layer's cases, in the order of its files."""
    return list(LAYERS[layer])


def cases() -> Mapping[str, Case]:
    """Returns all mechanisms, transforms, solvers and scores, as cases by name."""
    return _CASES


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a case claimed when it was audited, and the bound that the audit found."""

    claim: float
    delta: float
    relation: str
    num_releases: int
    epsilon: float
    confidence: float

    def is_of(self, case: Case) -> bool:
        """Tells whether the case claims the same today, and takes as many releases."""
        privacy = case.privacy
        # Another machine computes another last digit.
        return math.isclose(self.claim, privacy.epsilon, rel_tol=1e-9) and (
            self.delta,
            self.relation,
            self.num_releases,
        ) == (privacy.delta, privacy.relation.name, case.num_releases)


def audit(case: Case) -> Finding:
    """Audits a case with its own number of releases."""
    found, claim = case.audit(key=jax.random.key(SEED)), case.privacy
    bound = found.num_releases, found.epsilon, found.confidence
    return Finding(claim.epsilon, claim.delta, claim.relation.name, *bound)


def read(path: Path) -> dict[str, Finding]:
    """Returns findings by the name of the case; raises where it has none."""
    try:
        rows = record.read(path).rows
        return {name: _finding(row) for (name,), row in rows.items()}
    except TypeError as error:
        raise ValueError(f"{path}: not a record of audits: {error!r}") from error


def _finding(row: record.Row) -> Finding:
    return Finding(**{name: value for name, value in row.items() if name != "run"})


def complete(cases: Mapping[str, Case], path: Path) -> None:
    """Audits the cases that the record lacks, or that claim something else by now."""

    def run(place: record.Place) -> record.Found:
        found = audit(cases[place[0]])
        bound, claim = rounded_down(found.epsilon, 3), rounded_up(found.claim, 3)
        print(f"{place[0]}: epsilon >= {bound} of {claim}", flush=True)
        return {place: dataclasses.asdict(found)}, {}

    def is_there(row: record.Row, place: record.Place) -> bool:
        return _finding(row).is_of(cases[place[0]])

    record.fill(path, [(name,) for name in cases], run, is_there=is_there)
    content = record.read(path)
    rows = {(name,): content.rows[name,] for name in cases}  # in their order
    record.write(dataclasses.replace(content, rows=rows), path)
