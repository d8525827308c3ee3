"""`dpjax describe`: what the columns of a file hold, released with intervals."""

import contextlib
import dataclasses
import functools
import io
import json
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
from dpjax.cli._command_settings import DescribeSettings
from dpjax.cli._release import begin, uninterrupted
from dpjax.cli._schema import Schema
from dpjax.cli._sources import Table, read_checked
from dpjax.cli._spending import enter
from dpjax.cli._terminal import show_paths, stage, terminal
from dpjax.cli._train import with_units
from dpjax.cli._units import privacy_of_units
from dpjax.datasets import Categorical, Numeric
from dpjax.models._shared import BoundedColumn

_NAMES = [f"description.{end}" for end in ("csv", "html", "json", "png", "svg")]


def describe(settings: DescribeSettings) -> None:
    """Releases a description, writes its files and prints its tables.

    The folder of --checkpoint keeps the key: a description that was stopped is made
    anew from it, with the same numbers.
    """
    begun = begin(settings, _NAMES)
    stage(f"Reading {settings.source}")
    kinds, table = _read(settings)
    begun = begun.bound(settings, table)
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
    entry = None
    if settings.ledger is not None:
        parts = {"description": privacy}
        kept = begun.run_folder
        entry = enter(settings, table, parts, method="Description", run_folder=kept)
    stage("Releasing")
    with begun.kept(), contextlib.ExitStack() as stack:
        if (folder := begun.run_folder) is not None:
            # A state, so that a run which breaks off keeps its key.
            opened = _store.opened(
                folder.states, {"run": folder.run}, option="--checkpoint"
            )
            stack.enter_context(opened).claim()
        found = release(
            table.columns,
            kinds,
            key=jax.random.clone(begun.key),
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
        "noise_key": begun.noise_key,
        "ledger_entry": entry and entry.id,
        **found.content(),
    }
    contents = _contents(found, content, table.name, is_dark=settings.dark)
    with uninterrupted():
        before = begun.remove_kept
        _files.write_together(begun.folder, contents, name="--output", before=before)
    console = terminal()
    _show(console, found)
    if units is not None:
        console.print(units.public)
    show_paths(console, [begun.folder / name for name in contents])


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
    rule = f"a column of the schema, of {known}"
    is_fine = settings.by is None or settings.by in known
    _validate.require(is_fine, "--by", settings.by, rule)
    check(kinds, settings.by)
    for name, kind in kinds.items():
        if not isinstance(kind, Categorical):
            columns[name] = float32_of(columns[name])  # text takes most of the memory
    is_test = np.zeros(len(next(iter(columns.values()))), bool)
    table = Table(source.name, columns, Schema(kinds, None), "", is_test)
    return kinds, with_units(table, settings)


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
