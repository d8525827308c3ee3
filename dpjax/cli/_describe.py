"""`dpjax describe`: what the columns of a file hold, released with intervals."""

import contextlib
import dataclasses
import functools
import io
import json
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.table import Table as Rows

import dpjax
from dpjax import _files, _store, _validate
from dpjax._default_delta import default_delta
from dpjax._describe import MOST_RECORDS, Description, Kind, check, guarantee, release
from dpjax._pages import svg_of
from dpjax._texts import float32_of
from dpjax.accounting._shared import group_budget
from dpjax.cli import _display, _ledger
from dpjax.cli._command_settings import DescribeSettings
from dpjax.cli._run_folder import RunFolder
from dpjax.cli._schema import Schema
from dpjax.cli._sources import Table, read_checked
from dpjax.cli._spending import enter
from dpjax.cli._terminal import show_paths, stage, terminal
from dpjax.cli._train import bound, kept, kept_folder, key_of, uninterrupted, with_units
from dpjax.cli._units import privacy_of_units
from dpjax.datasets import Categorical, Numeric
from dpjax.models._shared import BoundedColumn

_NAMES = [f"description.{end}" for end in ("csv", "html", "json", "png", "svg")]


def describe(settings: DescribeSettings) -> None:
    """Releases a description, writes its files and prints its tables.

    The folder of --checkpoint is as of `dpjax train`. It keeps the key: a description
    that was stopped is made anew from it, with the same numbers.

    Raises:
        ValueError: if an option, a file or the schema is wrong; nothing is written.
        OSError: if a file cannot be found or written.
    """
    source = Path(settings.source)
    folder = settings.output or Path("dpjax-output", source.stem)
    inputs = {"DATA": source, "--schema": settings.schema}
    if settings.ledger is not None:
        inputs["--ledger"] = settings.ledger
        _ledger.check_room(settings.ledger, settings.unit)
    _files.check_folder("--output", folder, names=_NAMES)
    _files.check_spared("--output", [folder / name for name in _NAMES], inputs)
    run_folder = kept_folder(settings.checkpoint, folder, inputs)
    key, noise_key = key_of(settings.seed, run_folder, settings.generator)
    stage(f"Reading {source}")
    kinds, table = _read(settings)
    run_folder = bound(run_folder, key, settings, table)
    units, place, size = table.units, None, 1
    num_samples = table.num_samples
    if units is not None:
        size, is_all = units.size, np.ones(num_samples, bool)
        place = functools.partial(units.placed, is_chosen=is_all, size=size)
    num_places = size * num_samples
    rule = f"of {MOST_RECORDS:,} records at most, or places of units"
    _validate.require(num_places <= MOST_RECORDS, "DATA", num_places, rule)
    delta = default_delta(num_samples) if settings.delta is None else settings.delta
    epsilon, delta = group_budget(settings.epsilon, delta, size)
    privacy = privacy_of_units(guarantee(num_places, epsilon, delta), units)
    if settings.ledger is not None:
        parts = {"description": privacy}
        enter(settings, table, parts, method="Description", run_folder=run_folder)
    console, messages = terminal(), terminal(stderr=True)
    if settings.seed is not None:
        _display.warn_of_seed(messages)
    kept_key = None if settings.seed is not None else key
    stage("Releasing")
    with kept(run_folder, kept_key), _claimed(run_folder):
        found = release(
            table.columns,
            kinds,
            key=jax.random.clone(key),
            epsilon=epsilon,
            delta=delta,
            by=settings.by,
            level=settings.level,
            place=place,
        )
    found = dataclasses.replace(found, privacy=privacy)
    content = {
        "dpjax": dpjax.__version__,
        "data": table.name,
        "unit": None if units is None else units.report(),
        "noise_key": noise_key,
        **found.content(),
    }
    contents = _contents(found, content, table.name, is_dark=settings.dark)
    with uninterrupted():
        before = (lambda: None) if run_folder is None else run_folder.remove
        _files.write_together(folder, contents, name="--output", before=before)
    _show(console, found)
    if units is not None:
        console.print(units.public)
    show_paths(console, [folder / name for name in contents])


def _read(settings: DescribeSettings) -> tuple[dict[str, Kind], Table]:
    """Reads the columns of the schema, each once, and whose the records are."""
    source = Path(settings.source)
    declared, columns, _ = read_checked(
        source,
        schema=settings.schema,
        target=settings.target,
        text_format=settings.text_format,
    )
    kinds: dict[str, Kind] = {
        name: Numeric(kind.max / 2, kind.max / 2, limit=1.0)
        if isinstance(kind, BoundedColumn)
        else kind
        for name, kind in declared.items()
    }
    known = [name for name in kinds if name in columns]
    _validate.require(
        settings.by is None or settings.by in known,
        "--by",
        settings.by,
        f"a column of the schema, of {known}",
    )
    check(kinds, settings.by)
    for name, kind in kinds.items():
        if not isinstance(kind, Categorical):
            columns[name] = float32_of(columns[name])  # text takes most of the memory
    is_test = np.zeros(len(next(iter(columns.values()))), bool)
    table = Table(source.name, columns, Schema(kinds, None), "", is_test)
    return kinds, with_units(table, settings)


@contextlib.contextmanager
def _claimed(run_folder: RunFolder | None) -> Iterator[None]:
    """Keeps a state, so that a run which breaks off keeps its key."""
    if run_folder is None:
        yield
        return
    run = {"run": run_folder.run}
    with _store.opened(run_folder.states, run, option="--checkpoint") as store:
        store.claim()
        yield


def _contents(
    found: Description, content: dict, name: str, *, is_dark: bool
) -> dict[str, bytes]:
    """Returns the files, by their names."""
    figure, png = found.plot(is_dark=is_dark), io.BytesIO()
    figure.savefig(png, format="png")
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    texts = found.to_csv(), found.to_html(f"Private description of {name}"), text
    files = [*(one.encode("utf-8", "replace") for one in texts), png.getvalue()]
    return dict(zip(_NAMES, [*files, svg_of(figure)], strict=True))


def _show(console: Console, found: Description) -> None:
    for head, lines in found.tables():
        table = Rows()
        for name in head:
            table.add_column(name, overflow="fold")
        for line in lines:
            table.add_row(*line)
        console.print(table)
    level = f"{100 * found.level:g}"
    console.print(f"In brackets: {level} % intervals, of sampling and noise.")
    console.print(f"Privacy: {found.privacy.description}")
