"""The record of a run: one JSON, written whole, and read back with suspicion."""

import dataclasses
import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from dpjax._files import write_whole

ROOT = Path(__file__).resolve().parent
RESULTS = ROOT / "results"
FORMAT = 1
PACKAGES = [
    *("dpjax", "jax", "jaxlib", "numpy", "scipy", "optax", "dp-accounting"),
    *("jax_privacy", "opacus", "torch"),
]
# What the pages need to know.
MACHINE = ("processor", "cores", "memory_bytes", "accelerator", "system", "python")
FLOOR = ("copies", "operations_per_second", "call_seconds")


@dataclass(frozen=True)
class Measurement:
    """What was measured of one method; None where it does not apply.

    Attributes:
        seconds: median wall time of a call, compilation apart.
        quartiles: lower and upper, of the same times.
        repeats: how many turns they come from.
        compile_seconds: of tracing, lowering and compiling; for functions that compile
            inside, the first call less a later one.
        compilations: programs that were compiled in the first call, by JAX's count.
        temporary_bytes: scratch memory of the program, as the compiler states it.
        peak_bytes: resident memory at its highest in a call, over that before it.
        work: bytes, operations and resident bytes, and their formulas.
        count: units of work in one call.
    """

    name: str
    package: str
    seconds: float
    quartiles: Sequence[float]
    repeats: int
    compilations: int
    compile_seconds: float | None = None
    temporary_bytes: int | None = None
    peak_bytes: int | None = None
    work: Mapping[str, Any] | None = None
    count: int | None = None
    series: str = ""
    x: float | None = None


@dataclass(frozen=True)
class Results:
    """The measurements of one case.

    Attributes:
        methods: in the order of the table.
        left_out: why methods, or their peak memory, were not measured.
        alone_seconds: of the yardstick, without other methods between its calls.
    """

    methods: Sequence[Measurement]
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    alone_seconds: float | None = None

    def find(self, name: str) -> Measurement | None:
        """Returns the measurement of a method; None where there is none."""
        return next((method for method in self.methods if method.name == name), None)


@dataclass(frozen=True)
class Record:
    """A run.

    Attributes:
        suite: "cpu" or "gpu".
        is_quick: whether data were small and repeats few.
        is_whole: whether all cases of the suite ran.
        started: local time, ISO 8601.
        seconds: how long the run took.
        commit: of the repository, "-dirty" where files had changed; "" where unknown.
        machine: model and cores of the processor, memory, accelerator, load.
        versions: of the packages; None where one is not installed.
        floor: the machine's own speed, from `floor.measure`.
        cases: by name, in the order that they ran.
    """

    suite: str
    is_quick: bool
    is_whole: bool
    started: str
    seconds: float
    commit: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str | None]
    floor: Mapping[str, Any]
    cases: Mapping[str, Results]

    @property
    def file_name(self) -> str:
        """The date, the suite, and what it is not; nothing about the machine."""
        moment = datetime.fromisoformat(self.started).strftime("%Y%m%d-%H%M%S")
        marks = ["quick"] * self.is_quick + ["part"] * (not self.is_whole)
        return "-".join([moment, self.suite, *marks]) + ".json"


def write(record: Record, folder: Path) -> Path:
    """Writes the record, whole."""
    content = {"format": FORMAT, **dataclasses.asdict(record)}
    text = json.dumps(content, indent=1, allow_nan=False)
    path = folder / record.file_name
    write_whole(path, text.encode(), name="record")
    return path


def read(path: Path) -> Record:
    """Reads a record; raises ValueError where it is not a whole one."""
    try:
        content = json.loads(path.read_text(), parse_constant=_refuse)
        if content.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        cases = {
            name: Results(
                [_measurement(method) for method in case["methods"]],
                dict(case["left_out"]),
                case["alone_seconds"],
            )
            for name, case in content.pop("cases").items()
        }
        record = Record(**content, cases=cases)
        for facts, names in ((record.machine, MACHINE), (record.floor, FLOOR)):
            missing = set(names) - set(facts)
            if missing:
                raise ValueError(f"without {', '.join(sorted(missing))}")
        datetime.fromisoformat(record.started)
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path}: not a record of a run: {error!r}") from error
    return record


def _measurement(content: Mapping[str, Any]) -> Measurement:
    result = Measurement(**content)
    times = [result.seconds, *result.quartiles]
    if len(times) != 3 or not all(math.isfinite(t) and t >= 0 for t in times):
        raise ValueError(f"{result.name}: times are {times}")
    return result


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} among its numbers")


def latest(suite: str, folder: Path = RESULTS) -> Path | None:
    """Returns the newest whole record that was not quick; None where there is none."""
    paths = sorted(folder.glob(f"*-{suite}.json"))
    return paths[-1] if paths else None


def machine() -> dict[str, Any]:
    """Describes what this runs on."""
    device = jax.devices()[0]
    facts: dict[str, Any] = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "accelerator": None if device.platform == "cpu" else device.device_kind,
        "system": platform.system(),
        "python": platform.python_version(),
    }
    if hasattr(os, "getloadavg"):
        facts["load_before"] = os.getloadavg()[0]
    return facts


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return None


def versions() -> dict[str, str | None]:
    """Returns the versions of the packages."""

    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    return {name: version(name) for name in PACKAGES}


def commit() -> str:
    """Returns the state of the repository, "" where there is none."""
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return result.stdout.strip()
