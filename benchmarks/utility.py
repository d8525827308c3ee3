"""The command `python -m benchmarks utility`: runs methods, merges, writes the page."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib import metadata
from itertools import product
from pathlib import Path
from zlib import crc32

import jax
import numpy as np

from benchmarks import record as machines
from benchmarks import (
    utility_page,
    utility_problems,
    utility_sklearn,
    utility_tuning,
)
from benchmarks.record import ROOT
from benchmarks.utility_methods import METHODS, LeftOut, Method
from benchmarks.utility_problems import Problem
from benchmarks.utility_record import PATH, Place, Record, Row, merge, read, write_page
from dpjax._files import check_file

EPSILONS = (0.1, 0.5, 1.0, 2.0, 8.0)
SEED = 19


def add_arguments(parser):
    """Adds the commands below `utility`."""
    commands = parser.add_subparsers(dest="part", required=True)
    run_parser = commands.add_parser("run", help="run methods, merge into the record")
    add_run_arguments(run_parser, METHODS, utility_problems.NAMES, EPSILONS, 10, PATH)
    merge_parser = commands.add_parser("merge", help="merge records of parts")
    merge_parser.add_argument("parts", nargs="+", type=Path)
    merge_parser.add_argument("--out", type=Path, default=PATH)
    sklearn_parser = commands.add_parser(
        "sklearn", help="run the estimators for scikit-learn beside diffprivlib's"
    )
    sklearn_parser.add_argument("--repetitions", type=int, default=5)
    sklearn_parser.add_argument("--out", type=Path, default=utility_sklearn.PATH)
    tuning_parser = commands.add_parser(
        "tuning", help="run private tuning beside one untuned run"
    )
    tuning_parser.add_argument("--repetitions", type=int, default=10)
    tuning_parser.add_argument("--out", type=Path, default=utility_tuning.PATH)
    page_parser = commands.add_parser("page", help="write UTILITY.md from the record")
    add_page_arguments(page_parser, PATH)


def add_run_arguments(
    parser,
    methods: Iterable[str],
    problems: Iterable[str],
    epsilons: Sequence[float],
    repetitions: int,
    out: Path,
) -> None:
    """Adds what to run, by default all, and the record that it goes to."""
    parser.add_argument("--methods", nargs="+", default=list(methods))
    parser.add_argument("--problems", nargs="+", default=list(problems))
    parser.add_argument("--epsilons", nargs="+", type=float, default=epsilons)
    parser.add_argument("--repetitions", type=int, default=repetitions)
    parser.add_argument("--out", type=Path, default=out, help="the record")
    parser.add_argument("--again", action="store_true", help="also what the record has")


def add_page_arguments(parser, record: Path) -> None:
    """Adds what a page is written from, and where to."""
    parser.add_argument("--record", type=Path, default=record)
    parser.add_argument("--output", type=Path, help="file of the page")


def main(part, **options):
    """Runs the command."""
    if part == "run":
        run(**options)
    elif part == "merge":
        check_file("--out", options["out"], suffix=".json")
        merge([read(path) for path in options["parts"]], options["out"])
    elif part == "sklearn":
        utility_sklearn.run(**options)
    elif part == "tuning":
        utility_tuning.run(**options)
    else:
        output = options["output"] or ROOT / "UTILITY.md"
        print(write_page(options["record"], utility_page.page, output))


def run(
    methods: Sequence[str],
    problems: Sequence[str],
    epsilons: Sequence[float],
    repetitions: int,
    out: Path,
    again: bool = False,
) -> None:
    """Runs what the record lacks, and merges each row as it comes."""
    check_choices(methods, METHODS, epsilons)
    for name in problems:
        if name not in utility_problems.NAMES:
            utility_problems.problem(name)  # says what it may be
    chosen = [METHODS[name] for name in methods]
    run_missing(chosen, problems, epsilons, repetitions, out, again=again)


def check_choices(
    methods: Sequence[str], known: Collection[str], epsilons: Sequence[float]
) -> None:
    """Raises ValueError where a method is not known, or an epsilon not positive."""
    for name in methods:
        if name not in known:
            raise ValueError(f"method = {name!r}: must be one of {', '.join(known)}")
    for epsilon in epsilons:
        if not epsilon > 0:
            raise ValueError(f"epsilon = {epsilon}: must be positive")


def run_missing(
    methods: Sequence[Method],
    problems: Sequence[str],
    epsilons: Sequence[float],
    repetitions: int,
    out: Path,
    *,
    packages: Sequence[str] = (),
    again: bool = False,
) -> None:
    """Runs methods where a record lacks them, and merges each row as it comes.

    Raises:
        ValueError: if there are fewer than two repetitions, or out is no JSON file.
    """
    by_name = {method.name: method for method in methods}

    def run_place(place: Place) -> tuple[Row, dict[str, object]] | None:
        data, method = utility_problems.problem(place.problem), by_name[place.method]
        if not method.serves(data):
            return None
        return run_one(method, data, place.epsilon, repetitions), facts(data)

    places = product(problems, by_name, map(float, epsilons))
    fill(
        [Place(*place) for place in places],
        run_place,
        repetitions,
        out,
        packages=packages,
        again=again,
    )


def fill(
    places: Iterable[Place],
    run_place: Callable[[Place], tuple[Row, dict[str, object]] | None],
    repetitions: int,
    out: Path,
    *,
    packages: Sequence[str] = (),
    again: bool = False,
) -> None:
    """Runs the places that a record lacks, and merges each row as it comes.

    Args:
        places: what to run, in this order.
        run_place: returns the row of a place and the facts of its problem; None where
            the method does not serve it.
        repetitions: how many a row has.
        out: the record, which may not exist yet.
        packages: whose versions are noted, beside the usual ones.
        again: whether what the record has is run, too.

    Raises:
        ValueError: if there are fewer than two repetitions, or out is no JSON file.
    """
    check_file("--out", out, suffix=".json")
    if repetitions < 2:
        raise ValueError(f"repetitions = {repetitions}: must be at least 2")
    where = machine(("dpjax", "jax", "numpy", *packages))
    known = read(out).rows if out.exists() else {}
    for place in places:
        row = known.get(place)
        if row and len(row.excess) >= repetitions and not again:
            continue
        if (found := run_place(place)) is not None:
            row, said = found
            merge([Record((where,), {place.problem: said}, {place: row})], out)
            print(line(row), flush=True)


def machine(packages: Sequence[str]) -> dict[str, object]:
    """Returns what a run is on: the machine, versions of packages, the commit."""
    found = machines.machine()
    found.pop("load_before", None)
    versions = {name: metadata.version(name) for name in packages}
    return {**found, "versions": versions, "commit": machines.commit()}


def run_one(method: Method, data: Problem, epsilon: float, repetitions: int) -> Row:
    """Runs a method's repetitions, with keys that depend on all that is run."""
    name = f"{data.name} {method.name} {epsilon:g}"
    key = jax.random.fold_in(jax.random.key(SEED), crc32(name.encode()) & 0x7FFFFFFF)
    keys = jax.vmap(lambda index: jax.random.fold_in(key, index))(
        np.arange(repetitions, dtype=np.uint32)
    )
    start = time.perf_counter()
    try:
        params, taken = method.fit(data, keys, epsilon)
        params = np.asarray(params)
    except LeftOut as reason:
        return Row(data.name, method.name, epsilon, left_out=str(reason))
    seconds = time.perf_counter() - start
    excess = data.excess(params, row_norm=method.row_norm)
    return Row(
        data.name,
        method.name,
        epsilon,
        excess=tuple(float(f"{x:.6g}") for x in excess),
        seconds=round(seconds, 3),
        facts={key: float(f"{value:.6g}") for key, value in taken.items()},
    )


def facts(data: Problem) -> dict[str, object]:
    """What the page says of a problem."""
    return {
        "title": data.title,
        "loss": data.loss,
        "n": data.shape[0],
        "d": data.shape[1],
        "num_test": len(data.test_targets),
        "delta": data.delta,
        "is_real": data.is_real,
        "has_intercept": data.intercept is not None,
        "max_features": data.max_features,
        "zero_excess": data.zero_excess,
        "intercept_excess": data.intercept_excess,
        "reference_risk": data.reference_risk,
    }


def line(row: Row) -> str:
    """Says what a row found."""
    what = f"{row.problem}, {row.method}, epsilon {row.epsilon:g}: "
    if row.left_out:
        return what + f"left out: {row.left_out}"
    mean = np.mean(row.excess)
    error = np.std(row.excess, ddof=1) / np.sqrt(len(row.excess))
    return what + f"{mean:.4g} +- {error:.2g}, {row.seconds:.1f} s"
