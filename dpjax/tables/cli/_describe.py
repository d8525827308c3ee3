"""`dpjax describe`: private statistics of the columns of a file, with intervals."""

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
from dpjax._types import Key
from dpjax.accounting._group import group_budget
from dpjax.tables import default_delta
from dpjax.tables._pages import svg_of
from dpjax.tables.cli import _display
from dpjax.tables.cli._command_settings import DescribeSettings
from dpjax.tables.cli._release import begin, uninterrupted
from dpjax.tables.cli._sample import Draw, default_size
from dpjax.tables.cli._schema import Schema
from dpjax.tables.cli._sources import Table, declared_columns
from dpjax.tables.cli._spending import enter, on_sample
from dpjax.tables.cli._terminal import show_paths, stage, terminal
from dpjax.tables.cli._units import RECORDS_PER_UNIT, check_unit, privacy_of_units
from dpjax.tables.columns._kinds import BoundedColumn, Numeric
from dpjax.tables.describe._description import Description
from dpjax.tables.describe._release import MOST_RECORDS, Kind, check, guarantee, release
from dpjax.tables.io._tables import column_names

_NAMES = [f"description.{end}" for end in ("csv", "html", "json", "png", "svg")]


def describe(settings: DescribeSettings) -> None:
    """Releases a description, writes its files and prints its tables.

    The folder of --checkpoint keeps the key: a description that was stopped is computed
    again from the key, with the same numbers.
    """
    begun = begin(settings, _NAMES)
    stage(f"Reading {settings.source}")
    sample_key, key = jax.random.split(jax.random.clone(begun.key))
    kinds, table = _read(settings, sample_key)
    if table.sample is None:  # without a sample the whole key is for the noise
        key = jax.random.clone(begun.key)
    begun = begun.bound(settings, table)
    settings, sampled = on_sample(settings, table)
    units, place, size = table.units, None, 1
    num_samples = table.num_samples
    if units is not None:
        size, is_all = units.size, np.ones(num_samples, bool)
        place = functools.partial(units.placed, is_chosen=is_all, size=size)
    num_places = size * num_samples
    delta = default_delta(num_samples) if settings.delta is None else settings.delta
    epsilon, delta = group_budget(settings.epsilon, delta, size)
    privacy = privacy_of_units(guarantee(num_places, epsilon, delta), units)
    privacy = table.protected(privacy)
    entry = None
    if settings.ledger is not None:
        parts = {"description": privacy}
        states = begun.run_folder
        entry = enter(settings, table, parts, method="Description", run_folder=states)
    stage("Releasing")
    with begun.recorded(), contextlib.ExitStack() as stack:
        if (folder := begun.run_folder) is not None:
            # With a state in the folder, a run that breaks off keeps its key.
            opened = _store.opened(
                folder.states, {"run": folder.run}, option="--checkpoint"
            )
            stack.enter_context(opened).claim()
        description = release(
            table.columns,
            kinds,
            key=key,
            epsilon=epsilon,
            delta=delta,
            by=settings.by,
            level=settings.level,
            place=place,
            num_samples=size * table.num_records,
        )
    description = dataclasses.replace(description, privacy=privacy)
    if units is not None:
        of_unit = {"unit": units.column, "records_per_unit": size}
        description = dataclasses.replace(description, **of_unit)
    content = {
        "dpjax": dpjax.__version__,
        "data": table.name,
        "unit": None if units is None else units.report(),
        "noise_key": begun.noise_key,
        "ledger_entry": entry and entry.id,
        **description.content(),
    }
    if sampled is not None:
        content["sample"] = sampled
    contents = _contents(description, content, table.name, is_dark=settings.dark)
    with uninterrupted():
        before = begun.remove_kept
        _files.write_together(begun.folder, contents, name="--output", before=before)
    console = terminal()
    _show(console, description)
    if units is not None:
        console.print(units.public)
    if sampled is not None:
        _display.show_sample(console, sampled)
    show_paths(console, [begun.folder / name for name in contents])


def _read(settings: DescribeSettings, key: Key) -> tuple[dict[str, Kind], Table]:
    """Reads the columns of the schema in one pass, or of a sample by a key."""
    source, text_format = Path(settings.source), settings.text_format
    declared, _ = declared_columns(
        source,
        schema=settings.schema,
        target=settings.target,
        text_format=text_format,
    )
    kinds: dict[str, Kind] = {
        name: Numeric(kind.max / 2, kind.max / 2, limit=1.0)
        if isinstance(kind, BoundedColumn)
        else kind
        for name, kind in declared.items()
    }
    rule = f"a column of the schema, of {[*kinds]}"
    is_fine = settings.by is None or settings.by in kinds
    _validate.require(is_fine, "--by", settings.by, rule)
    check(kinds, settings.by)
    unit, size = settings.unit, settings.max_records
    check_unit(unit, column_names(source, text_format), kinds)
    each = 1 if unit is None else settings.records_per_unit or RECORDS_PER_UNIT
    most = MOST_RECORDS // each
    rule = f"at most {most:,}, with {each} records of each"
    _validate.require(size is None or size <= most, "--max-records", size, rule)
    size = size or min(most, default_size(len(kinds) + (unit is not None), each))
    columns, units, sample = Draw(size, key, unit, each).read(
        source,
        [*kinds],
        text_format,
        numbers=[k for k, kind in kinds.items() if not (kind and kind.categories)],
    )
    num_records = len(next(iter(columns.values())))
    rule = "a file with at least one record"
    _validate.require(num_records > 0, "DATA", str(source), rule)
    is_test = np.zeros(num_records, bool)
    table = Table(source.name, columns, Schema(kinds, None), "", is_test, sample=sample)
    return kinds, table if units is None else table.by_unit(units)


def _contents(
    description: Description, content: dict, name: str, *, is_dark: bool
) -> dict[str, bytes]:
    """Returns the files, by their names."""
    figure, png = description.plot(is_dark=is_dark), io.BytesIO()
    figure.savefig(png, format="png")
    own = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    page = description.to_html(f"Private description of {name}")
    texts = [x.encode("utf-8", "replace") for x in (description.to_csv(), page, own)]
    files = [*texts, png.getvalue()]
    return dict(zip(_NAMES, [*files, svg_of(figure)], strict=True))


def _show(console: Console, description: Description) -> None:
    for head, lines in description.tables():
        table = Rows()
        for name in head:
            table.add_column(name, overflow="fold")
        for line in lines:
            table.add_row(*line)
        console.print(table)
    console.print(description.reading)
    console.print(f"Privacy: {description.privacy.description}")
