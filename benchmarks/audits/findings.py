"""What the audit of every case found: a record, written case by case."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

import jax

from benchmarks import record
from benchmarks.audits.case import Case
from dpjax._rounding import rounded_down, rounded_up

SEED = 0  # that of `benchmarks audit`, which finds the same


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a case claimed when it was audited, and what the audit found.

    Attributes:
        claim: epsilon.
        delta: of the claim, and of the bound.
        relation: the name of the neighbouring relation.
        num_releases: how many were drawn.
        epsilon: the lower bound.
        confidence: with which it is right.
    """

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
    found = case.audit(key=jax.random.key(SEED))
    return Finding(
        claim=case.privacy.epsilon,
        delta=case.privacy.delta,
        relation=case.privacy.relation.name,
        num_releases=found.num_releases,
        epsilon=found.epsilon,
        confidence=found.confidence,
    )


def read(path: Path) -> dict[str, Finding]:
    """Returns findings by the name of the case.

    Raises:
        ValueError: where the file is no record of audits.
    """
    try:
        rows = record.read(path).rows
        return {name: _finding(row) for (name,), row in rows.items()}
    except TypeError as error:
        raise ValueError(f"{path}: not a record of audits: {error!r}") from error


def _finding(row: record.Row) -> Finding:
    return Finding(**{name: value for name, value in row.items() if name != "run"})


def complete(cases: Mapping[str, Case], path: Path) -> None:
    """Audits the cases that the record lacks, or that claim something else by now.

    A run can be cut off and taken up. To audit all of them again, delete the file.

    Raises:
        ValueError: where the file is no record.
        OSError: where it cannot be written.
    """

    def run(place: record.Place) -> record.Found:
        found = audit(cases[place[0]])
        bound, claim = rounded_down(found.epsilon, 3), rounded_up(found.claim, 3)
        print(f"{place[0]}: epsilon >= {bound} of {claim}", flush=True)
        return {place: dataclasses.asdict(found)}, {}

    record.fill(
        path,
        [(name,) for name in cases],
        run,
        is_there=lambda row, place: _finding(row).is_of(cases[place[0]]),
    )
    content = record.read(path)
    rows = {(name,): content.rows[name,] for name in cases}  # in their order
    record.write(dataclasses.replace(content, rows=rows), path)
