"""The record of a benchmark: rows, what they are of and what they ran on; one JSON.

Rows are merged under a lock, and replace those at their place (problem, method,
epsilon), so that runs may be cut off, go on, and share a file.
"""

import fcntl
import json
import math
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dpjax._files import check_file, write_whole

ROOT = Path(__file__).resolve().parent
RESULTS = ROOT / "results"
FORMAT = 2
PACKAGES = ("dpjax", "jax", "numpy")
# What the pages say of a run.
FACTS = ("processor", "cores", "accelerator", "system", "python", "versions", "commit")
Place = tuple[Any, ...]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """All rows by place, facts of what they are of, and of the runs that made them.

    Of a row `run` is an index of `runs`, and `left_out` says why nothing was found.
    """

    runs: tuple[Mapping[str, Any], ...] = ()
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: Mapping[Place, Row] = field(default_factory=dict)

    def merged(self, other: "Record") -> "Record":
        """Returns both, the other's rows first, but for what it left out."""
        runs = list(self.runs)
        runs += [one for one in other.runs if one not in runs]
        rows = dict(self.rows)
        for place, row in other.rows.items():
            if not (row.get("left_out") and place in rows):
                rows[place] = {**row, "run": runs.index(other.runs[row["run"]])}
        return Record(tuple(runs), {**self.facts, **other.facts}, rows)


def write(content: Record, path: Path) -> None:
    """Writes the record, whole, a row a line."""
    head = {"format": FORMAT, "runs": content.runs, "facts": content.facts}
    lines = ",\n".join(
        "  " + json.dumps({"place": place, **row}, allow_nan=False)
        for place, row in content.rows.items()
    )
    text = json.dumps(head, indent=1, allow_nan=False)[:-2]
    write_whole(path, f'{text},\n "rows": [\n{lines}\n ]\n}}\n'.encode(), name="record")


def read(path: Path) -> Record:
    """Reads a record; raises ValueError where it is not a whole one."""
    try:
        content = json.loads(path.read_text(), parse_constant=int)  # NaN raises
        if content["format"] != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        runs = tuple(content["runs"])
        for run in runs:
            if missing := set(FACTS) - set(run):
                raise ValueError(f"a run without {', '.join(sorted(missing))}")
        rows = {tuple(row.pop("place")): row for row in content["rows"]}
        for place, row in rows.items():
            if not 0 <= row["run"] < len(runs):
                raise ValueError(f"{place}: of no run")
        return Record(runs, dict(content["facts"]), rows)
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path}: not a record: {error!r}") from error


def merge(parts: Iterable[Record], path: Path) -> Record:
    """Merges records into a file, which may exist, under a lock; returns all of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)  # a lock file of its own would stay
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        whole = read(path) if path.exists() else Record()
        for part in parts:
            whole = whole.merged(part)
        write(whole, path)
    finally:
        os.close(folder)
    return whole


Found = tuple[Mapping[Place, Row], Mapping[str, Mapping[str, Any]]]  # rows and facts


def fill(path, places, run, *, is_there=lambda row, place: True, about=None) -> None:
    """Runs the places that a record lacks, and merges what each finds as it comes.

    `run` returns the rows of a place, and facts of what they are of; None where there
    is nothing to run. `is_there` says whether a row of the record will do. Facts of
    this run are `about`, by default `about_run()`. A path that is no JSON file raises.
    """
    check_file("--out", path, suffix=".json")
    known = read(path).rows if path.exists() else {}
    about = about_run() if about is None else about
    for place in places:
        if place in known and is_there(known[place], place):
            continue
        if (found := run(place)) is not None:
            rows = {where: {**one, "run": 0} for where, one in found[0].items()}
            merge([Record((about,), found[1], rows)], path)


def about_run(packages: Iterable[str] = PACKAGES) -> dict[str, Any]:
    """Describes what this runs on, Linux: versions of packages, the commit."""
    device = jax.devices()[0]
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "accelerator": None if device.platform == "cpu" else device.device_kind,
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
        "commit": _commit(),
    }


def _version(package: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _commit() -> str:
    """Returns the state of the repository, "" where there is none."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(
            command, cwd=ROOT, stderr=subprocess.DEVNULL, text=True
        ).strip()
    return ""


def repeated(of_one: Callable[[jax.Array], Any], num: int, at_once: int, seed=0) -> Any:
    """Returns what a function of a key returns for many keys, some at once."""
    keys = jax.random.split(jax.random.key(seed), (-(-num // at_once), at_once))
    run = jax.jit(jax.vmap(of_one))
    parts = [jax.tree.map(np.asarray, run(some)) for some in keys]
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def rounded(x: float, digits: int = 6) -> float:
    """Returns a number with so many digits, as rows hold it."""
    return float(f"{x:.{digits}g}") if math.isfinite(x) else x
