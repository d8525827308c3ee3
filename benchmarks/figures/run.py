"""Runs a panel, cell by cell: a cell is one setting, all methods on the same data.

A finished cell is a file, which a run that is started again leaves as it is. Data and
noise are of the seed: repetitions draw the same data whatever epsilon is.
"""

import dataclasses
import hashlib
import io
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl

from benchmarks.figures import page
from benchmarks.figures.catalogue import panels
from benchmarks.figures.draw import draw, read
from benchmarks.figures.methods import METHODS, Task
from benchmarks.figures.panel import Panel, Setting, Size
from benchmarks.figures.problems import PROBLEMS, ProblemKind, Sample, measure, optimum
from benchmarks.plots import save_png
from dpjax import _files, _validate
from dpjax._types import Key
from dpjax.solvers import Execution, Solution

_NUM_SHOWN = 50  # iterates of a run, at most twice as many
CELLS = "cells"  # the folder of finished cells
_CHUNK_BYTES = 2**28  # of features that repetitions side by side may take
_seen: list[tuple[Any, Any]] = []  # (step, iterate) of a run


def _see(step: Any, params: Any) -> None:
    # Calls may come out of order, and must not wait for the device.
    _seen.append((step, params))


def run_panel(panel, folder, *, seed, on_cell) -> Path:
    """Runs what is not yet finished, and writes the panel's table, `NAME.csv`.

    It has a row a method, setting, repetition and step. `folder` gets `cells/`, too.
    """
    settings = list(panel.settings())
    tables, optima = [], {}
    on_cell(0, len(settings))
    for i, setting in enumerate(settings):
        path = folder / CELLS / f"{panel.name}-{_digest(panel, setting, seed)}.csv"
        if not path.exists():
            _write(path, pl.DataFrame(list(_rows(panel, setting, seed, optima))))
        tables.append(pl.read_csv(path, schema_overrides={"curve": pl.String}))
        on_cell(i + 1, len(settings))
    table = folder / f"{panel.name}.csv"
    _write(table, pl.concat(tables))
    return table


def _digest(panel: Panel, setting: Setting, seed: int) -> str:
    what = panel.problem, panel.methods, panel.metric, panel.repetitions, panel.x
    text = repr((*what, dataclasses.astuple(setting), seed))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(path: Path, table: pl.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.BytesIO()
    table.write_csv(text)
    _files.write_whole(path, text.getvalue(), name="--out")


def _named(key: Key, *names: Any) -> Key:
    """Returns a key that depends on names."""
    return jax.random.fold_in(key, zlib.crc32(repr(names).encode()))


def _rows(panel, setting, seed, optima) -> Iterator[dict[str, Any]]:
    """Yields a row a method, repetition and step.

    Cells that draw the same data, for another epsilon, share their optima.
    """
    problem = PROBLEMS[panel.problem]
    root = jax.random.key(seed)
    sizes = setting.num_samples, setting.num_features
    sizes = *sizes, setting.sparsity, setting.moment_order
    data_keys = jax.random.split(_named(root, panel.problem, *sizes), panel.repetitions)
    for part in _parts(panel, setting):
        samples = jax.vmap(lambda key: problem.draw(key, setting))(data_keys[part])
        place = sizes, part.start
        if place not in optima:
            optima[place] = jax.vmap(lambda sample: optimum(problem, sample))(samples)
        for name in panel.methods:
            own = _named(root, panel.name, dataclasses.astuple(setting), name)
            keys = jax.random.split(own, panel.repetitions)[part]
            tried = [  # with the same noise
                _solved(panel, setting, name, options, samples, jax.random.clone(keys))
                for options in METHODS[name].candidates
            ]
            steps, solution, _ = tried[0]
            one = partial(_measured, panel.metric, problem)
            found = [one(iterates, optima[place], samples) for *_, iterates in tried]
            values = _best([np.asarray(values, np.float64) for values in found])
            repetitions = range(panel.repetitions)[part]
            for repetition, row in zip(repetitions, values.tolist(), strict=True):
                for step, value in zip(steps, row, strict=True):
                    yield {
                        "panel": panel.name,
                        "method": name,
                        "curve": panel.curve_name(setting),
                        panel.x: step or getattr(setting, panel.x),
                        "repetition": repetition,
                        "value": value,
                        "metric": panel.metric,
                        "epsilon_spent": solution.privacy.epsilon,
                        "delta_spent": solution.privacy.delta,
                        "records": setting.num_samples,
                    }


def _parts(panel: Panel, setting: Setting) -> Iterator[slice]:
    """Yields repetitions that are run side by side, as memory allows."""
    # One after the other on CPU, whose cores a run keeps busy, for its iterates, and
    # among parties, whose messages pass over the host.
    size = 4 * setting.num_samples * max(setting.num_features, 100)
    is_traced = panel.x not in ("num_steps", "num_parties")
    is_alone = not is_traced or jax.default_backend() == "cpu"
    count = 1 if is_alone else max(1, _CHUNK_BYTES // size)
    for start in range(0, panel.repetitions, count):
        yield slice(start, start + count)


def _solved(panel, setting, name, candidate, samples, keys):
    """Returns the steps that are shown, a solution, and iterates (repetition, step, d).

    A step of 0 stands for the last one.
    """
    problem, method = PROBLEMS[panel.problem], METHODS[name]
    solutions: list[Solution] = []  # of a batch: for what does not depend on the key

    def solve(key: Key, sample: Sample, **options: Any) -> jax.Array:
        task = Task(problem, setting, sample, key)
        solutions.append(method.solve(task, **options))
        return solutions[-1].params

    if len(keys) > 1:
        params = jax.vmap(partial(solve, **candidate))(keys, samples)
        return [0], solutions[0], params[:, None]
    key, sample = keys[0], jax.tree.map(lambda x: x[0], samples)
    if panel.x != "num_steps":
        params = solve(key, sample, **candidate)
        return [0], solutions[0], params[None, None]
    options = dict(candidate)
    _seen.clear()  # of a run that broke off
    if method.has_steps:
        every = max(1, setting.num_steps // _NUM_SHOWN)
        options["execution"] = Execution(callback=_see, callback_every=every)
    params = jax.block_until_ready(solve(key, sample, **options))
    jax.effects_barrier()  # every call of the callback has returned
    # Without steps: the same at every step.
    seen = _seen or [(1, params), (setting.num_steps, params)]
    seen = sorted(((int(step), x) for step, x in seen), key=lambda pair: pair[0])
    iterates = jnp.stack([jnp.asarray(np.asarray(params)) for _, params in seen])
    return [step for step, _ in seen], solutions[0], iterates[None]


def _best(values: list[np.ndarray]) -> np.ndarray:
    """Returns of several candidates the one that ends best, for each repetition."""
    stacked = np.stack(values)  # (candidate, repetition, step)
    last = np.nan_to_num(stacked[:, :, -1], nan=np.inf)
    return stacked[last.argmin(axis=0), np.arange(stacked.shape[1])]


@partial(jax.jit, static_argnums=(0, 1))
@partial(jax.vmap, in_axes=(None, None, 0, 0, 0))
def _measured(metric: str, problem: ProblemKind, iterates: Any, best, sample):
    """Returns the metric, shape (repetitions, steps)."""
    one = partial(measure, metric, problem, best=best, sample=sample)
    return jax.lax.map(lambda params: one(params=params), iterates)


# -- The command `python -m benchmarks figures` ----------------------------------------


def add_arguments(parser):
    """Adds the commands below `figures`."""
    commands = parser.add_subparsers(dest="part", required=True)
    commands.add_parser("list", help="list the figures and their panels")
    text = "run a figure and draw it; finished cells are kept"
    run_parser = commands.add_parser("run", help=text)
    run_parser.add_argument("name", help="a figure such as 004-1, or a panel: 004-1b")
    run_parser.add_argument("--full", action="store_true", help="the papers' sizes")
    text = "20 of a full run, 3 of a quick"
    run_parser.add_argument("--repeats", type=int, help=text)
    run_parser.add_argument("--seed", type=int, default=0, help="of data and noise")
    run_parser.add_argument("--out", type=Path, default=Path("dpjax-output", "figures"))
    report = commands.add_parser("report", help="write FIGURES.md from the kept tables")
    report.add_argument("folder", type=Path, nargs="?", help="tables to keep first")
    report.add_argument("--output", type=Path, help="folder of the page")


def main(part, **options):
    """Runs the command."""
    if part != "list":
        return run(**options) if part == "run" else page.write(**options)
    for panel in panels().values():
        print(f"{panel.name}  {panel.title} ({panel.metric})")
    return []


def run(name: str, full: bool, repeats: int | None, seed: int, out: Path) -> list[Path]:
    """Runs a figure and draws it; returns the tables and the plot."""
    _validate.require(0 <= seed < 2**32, "--seed", seed, "from 0 to 2^32 - 1")
    if repeats is not None:
        _validate.count(**{"--repeats": repeats})
    chosen = [panel.at(Size.FULL if full else Size.QUICK) for panel in find(name)]
    if repeats is not None:
        chosen = [dataclasses.replace(one, repetitions=repeats) for one in chosen]
    plot = out / f"{name}.png"
    names = [plot.name, *(f"{panel.name}.csv" for panel in chosen)]
    _files.check_folder("--out", out, names=names)
    _files.check_folder("--out", out / CELLS)

    def on_cell(done: int, of: int) -> None:
        print(f"{done} of {of} cells", flush=True)

    tables = [run_panel(panel, out, seed=seed, on_cell=on_cell) for panel in chosen]
    save_png(draw(chosen, [read(table) for table in tables]), plot)
    return [*tables, plot]


def find(name: str) -> list[Panel]:
    """Returns the panels of a figure, or the one of that name."""
    found = [one for one in panels().values() if name in (one.name, one.figure)]
    _validate.require(bool(found), "NAME", name, "one that `figures list` shows")
    return found
