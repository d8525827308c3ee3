"""The command and the page: the peers' own tests, with dpjax in place of the peers."""

import multiprocessing
import shutil
import tempfile
import tomllib
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks import page, record

PATH = record.RESULTS / "conformance.json"
KINDS = "passed", "failed", "differs", "not_applicable"  # of cases
SUITES = tomllib.loads(Path(__file__).with_name("suites.toml").read_text())
CONVENTIONS = SUITES.pop("conventions")
NAMES = {package: f"{package}-{suite['version']}" for package, suite in SUITES.items()}


def conform(peers: Path, out: Path = PATH) -> None:
    """Runs the suites whose archives lie in a folder, and says which do not.

    It exits with an error if a case fails.
    """
    about = record.about_run((*record.PACKAGES, *SUITES))
    with tempfile.TemporaryDirectory() as folder:
        for package, suite in SUITES.items():
            name = NAMES[package]
            sources = [*peers.glob(f"{name}.tar.gz"), *peers.glob(f"{name}-*.whl")]
            is_installed = about["versions"][package] == suite["version"]
            if not sources or not is_installed:
                print(f"{package}: skipped; needs {peers / name}, and it installed")
                continue
            if sources[0].suffix == ".whl":
                shutil.unpack_archive(sources[0], Path(folder, name), "zip")
            else:
                shutil.unpack_archive(sources[0], folder, filter="data")
            places = [(package, file) for file in suite["files"]]
            of_one = partial(_file, Path(folder) / NAMES[package] / suite["tests"])
            record.fill(out, places, of_one, is_there=lambda *_: False, about=about)
    rows = record.read(out).rows if out.exists() else {}
    if failed := [" ".join(place) for place, row in rows.items() if row["failed"]]:
        raise SystemExit(f"Cases fail in {', '.join(failed)}.")


def _file(root: Path, place: record.Place) -> record.Found:
    from benchmarks.conformance.cases import run  # needs pytest

    package, file = place
    suite = SUITES[package]
    given = package, root / file, suite["files"][file], suite["differs"]
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawned) as pool:
        row = pool.submit(run, *given).result()
    print(*place, {kind: row[kind] for kind in KINDS}, row["failures"], flush=True)
    return {place: row}, {}


def write(output: Path | None = None) -> list[Path]:
    """Writes CONFORMANCE.md from the record, and returns its path."""
    content = record.read(PATH)
    lines = []
    for (package, file), row in content.rows.items():
        counts = [row[kind] for kind in KINDS]
        lines.append([NAMES[package], f"`{file}`", sum(counts[:3]), *counts])
    lines.append(["all", "", *(sum(line[i] for line in lines) for i in range(2, 7))])
    kinds = [kind.replace("_", " ") for kind in KINDS]
    results = page.table(["tests of", "file", "taken", *kinds], lines)
    names = [name for name in NAMES.values() if "statsmodels" not in name]  # a wheel
    downloads = " ".join(name.replace("-", "==") for name in names)
    parts = {
        "download": f"python -m pip download --no-deps --no-binary :all: {downloads}",
        "results": results,
        "differs": _reasons(content, "differs", CONVENTIONS.get),
        "absent": _reasons(content, "not_applicable", str),
        "machine": page.machine(content.runs[-1]),
    }
    return [page.write("CONFORMANCE.md", parts, output)]


def _reasons(content, kind, words) -> str:
    found = [
        [NAMES[package], f"`{file}`", count, words(reason)]
        for (package, file), row in content.rows.items()
        for reason, count in sorted(row["reasons"][kind].items())
    ]
    return page.table(["tests of", "file", "cases", "why"], found)
