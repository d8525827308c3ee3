"""What the audit of every case found: a JSON file, written case by case."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax

from dpjax._files import write_whole
from dpjax.audit import Case

SEED = 0  # that of `dpjax audit`, which finds the same


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
    """Returns findings by the name of the case; none where there is no file.

    Raises:
        ValueError: where the file is no such record.
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
        return {name: Finding(**fields) for name, fields in content.items()}
    except (ValueError, AttributeError, TypeError) as why:
        raise ValueError(f"record {path} cannot be read: {why}.") from why


def complete(cases: Mapping[str, Case], path: Path) -> Iterator[tuple[str, Finding]]:
    """Audits the cases that the record lacks, or that claim something else by now.

    The file is written anew after each, so that a run can be cut off and taken up. To
    audit all of them again, delete it first.

    Yields:
        The name of a case just audited, and the finding.

    Raises:
        ValueError: where the file is no record.
        OSError: where it cannot be written.
    """
    old = read(path)
    record = {name: old[name] for name in cases if name in old}
    for name, case in cases.items():
        if name not in record or not record[name].is_of(case):
            record[name] = audit(case)
            ordered = {name: record[name] for name in cases if name in record}
            content = {name: dataclasses.asdict(one) for name, one in ordered.items()}
            text = json.dumps(content, indent=1) + "\n"
            write_whole(path, text.encode(), name="record")
            yield name, record[name]
