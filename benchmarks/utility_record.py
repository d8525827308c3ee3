"""The record of the page of utility: rows that runs add to one JSON, written whole.

A row is what one method did on one problem at one epsilon. Runs may be cut off and go
on, and may share one file: a row is merged under a lock, and replaces its like.
"""

import dataclasses
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import record
from dpjax._files import check_file, write_whole

PATH = record.RESULTS / "utility.json"
FORMAT = 1


class Place(NamedTuple):
    """What a row is of."""

    problem: str
    method: str
    epsilon: float


@dataclass(frozen=True)
class Row:
    """A method on a problem at an epsilon.

    Attributes:
        excess: one number a repetition; empty where it was left out.
        seconds: of all repetitions, compilation included.
        facts: settings that were taken, such as those chosen in hindsight.
        left_out: why it did not run; "" where it did.
        machine: index of `Record.machines`.
    """

    problem: str
    method: str
    epsilon: float
    excess: tuple[float, ...] = ()
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    left_out: str = ""
    machine: int = 0

    @property
    def place(self) -> Place:
        """Its key in the record."""
        return Place(self.problem, self.method, self.epsilon)


@dataclass(frozen=True)
class Record:
    """All rows, and what they were run on.

    Attributes:
        machines: facts of the machines: processor, accelerator, versions, commit.
        problems: facts of each problem: shape, loss, excess of zero weights.
        rows: by place.
    """

    machines: tuple[Mapping[str, Any], ...] = ()
    problems: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: Mapping[Place, Row] = field(default_factory=dict)

    def merged(self, other: "Record") -> "Record":
        """Returns both, the other's rows in place of those they are like.

        But for what the other left out, where a package is missing, say.
        """
        machines = list(self.machines)
        machines += [one for one in other.machines if one not in machines]
        rows = dict(self.rows)
        for place, row in other.rows.items():
            if row.left_out and place in rows:
                continue
            index = machines.index(other.machines[row.machine])
            rows[place] = dataclasses.replace(row, machine=index)
        return Record(tuple(machines), {**self.problems, **other.problems}, rows)


def write(content: Record, path: Path) -> None:
    """Writes the record, whole; rows in a fixed order."""
    rows = [dataclasses.asdict(row) for _, row in sorted(content.rows.items())]
    lines = ",\n".join("  " + json.dumps(row, allow_nan=False) for row in rows)
    head = json.dumps(
        {
            "format": FORMAT,
            "machines": content.machines,
            "problems": dict(sorted(content.problems.items())),
        },
        indent=1,
        allow_nan=False,
    )
    text = f'{head[:-2]},\n "rows": [\n{lines}\n ]\n}}\n'
    write_whole(path, text.encode(), name="record")


def read(path: Path) -> Record:
    """Reads a record; raises ValueError where it is not a whole one."""
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        rows = [
            Row(**{**row, "excess": tuple(map(float, row["excess"]))})
            for row in content["rows"]
        ]
        machines = tuple(content["machines"])
        for row in rows:
            if row.problem not in content["problems"] or not (
                0 <= row.machine < len(machines)
            ):
                raise ValueError(f"{row.place}: of no problem or machine")
        return Record(machines, content["problems"], {row.place: row for row in rows})
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path}: not a record of utility: {error!r}") from error


def write_page(path: Path, page: Callable[[Record, Path], str], output: Path) -> Path:
    """Writes the page of the record at a path whole, and returns where it lies."""
    check_file("--output", output, suffix=".md")
    write_whole(output, page(read(path), path).encode(), name="page")
    return output


def merge(parts: Iterable[Record], path: Path) -> Record:
    """Merges records into a file, which may exist, under a lock; returns all of it."""
    with _locked(path):
        whole = read(path) if path.exists() else Record()
        for part in parts:
            whole = whole.merged(part)
        write(whole, path)
    return whole


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)  # a lock file of its own would stay
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
