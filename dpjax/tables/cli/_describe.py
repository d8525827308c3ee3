"""`dpjax describe`: private statistics of the columns of a file, with intervals."""

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax

import dpjax
from dpjax import _keys, _store, _validate
from dpjax._types import Key
from dpjax.tables._pages import image_of
from dpjax.tables.cli._outputs import show_units_and_sample
from dpjax.tables.cli._release import begin
from dpjax.tables.cli._run import charge, plan_description
from dpjax.tables.cli._schema import Schema, declared_columns
from dpjax.tables.cli._settings import DescribeSettings
from dpjax.tables.cli._sources import Draw, Table, default_size, read_records
from dpjax.tables.cli._terminal import show_paths, stage, table_of, terminal
from dpjax.tables.columns._kinds import BoundedColumn, Numeric, is_date
from dpjax.tables.describe._description import Description
from dpjax.tables.describe._release import MOST_RECORDS, Kind, check, release

_NAMES = [f"description.{end}" for end in ("csv", "html", "json", "png", "svg")]


def describe(settings: DescribeSettings) -> None:
    """Runs `dpjax describe`: releases, writes and prints statistics of columns.

    The folder of --checkpoint keeps the key: a description that was stopped is computed
    again from the key, with the same numbers.
    """
    begun = begin(settings, _NAMES)
    stage(f"Reading {settings.source}")
    sample_key, key = _keys.split(jax.random.clone(begun.key))
    kinds, table = _read(settings, sample_key)
    if table.sample is None:  # without a sample the whole key is for the noise
        key = jax.random.clone(begun.key)
    run = plan_description(settings, table)
    begun, entry = charge(run, begun, table)
    stage("Releasing")
    units = table.units
    with begun.recorded() as files, contextlib.ExitStack() as stack:
        if (folder := begun.run_folder) is not None:
            # With a state in the folder, a run that breaks off keeps its key.
            state = {"run": folder.run}
            opened = _store.opened(folder.states, state, option="--checkpoint")
            stack.enter_context(opened).claim()
        titles = {
            name: name if kind is None or kind.categories else kind.names(name)[0]
            for name, kind in kinds.items()
        }
        columns = {titles[name]: column for name, column in table.columns.items()}
        schema = {titles[name]: kind for name, kind in kinds.items()}
        asked: Any = {"by": settings.by, "level": settings.level, "units": units}
        asked |= {"weights": titles.get(settings.weights or ""), "key": key}
        asked["num_samples"] = table.places_per_unit * table.num_records
        description = release(columns, schema, **run.budget._asdict(), **asked)
        description = dataclasses.replace(description, privacy=run.privacy)
        content = {
            "dpjax": dpjax.__version__,
            "data": table.name,
            "unit": None if units is None else units.report(),
            "noise_key": begun.noise_key,
            "ledger_entry": entry,
            **description.content(),
            **({} if run.sample is None else {"sample": run.sample}),
        }
        files |= _contents(description, content, is_dark=settings.dark)
    console = terminal()
    for head, lines in description.tables():
        console.print(table_of(head, lines))
    console.print(description.reading)
    console.print(f"Privacy: {description.privacy.description}")
    show_units_and_sample(console, run)
    show_paths(console, [begun.folder / name for name in _NAMES])


def _read(settings: DescribeSettings, key: Key) -> tuple[dict[str, Kind], Table]:
    """Reads a file: returns the declaration of each column, and the `Table` of cells.

    If the file has more records than --max-records allows, `key` draws a sample.
    """
    source, text_format = Path(settings.source), settings.text_format
    declared, target, names = declared_columns(settings)
    # Exposures and weights are described as numbers from zero to their maximum.
    kinds: dict[str, Kind] = {
        name: Numeric(kind.max / 2, kind.max / 2, limit=1.0)
        if isinstance(kind, BoundedColumn)
        else kind
        for name, kind in declared.kinds(target).items()
    }
    check(kinds, settings.by, settings.weights)
    unit, size, each = settings.unit, settings.max_records, settings.each
    most = MOST_RECORDS // each
    rule = f"at most {most:,}, with {each} records of each unit"
    _validate.require(size is None or size <= most, "--max-records", size, rule)
    size = size or min(most, default_size(len(kinds) + (unit is not None), each))
    texts = {k for k, x in kinds.items() if x and (x.categories or is_date(x))}
    numbers = [name for name in kinds if name not in texts]
    draw, schema = Draw(size, key, unit, each), Schema(kinds, None)
    return kinds, read_records(source, draw, schema, "", names, text_format, numbers)


def _contents(
    description: Description, content: dict, *, is_dark: bool
) -> dict[str, bytes]:
    """Returns a description's files by name: CSV, page, JSON (`content`), pictures."""
    figure = description.plot(is_dark=is_dark)
    pictures = (image_of(figure, form) for form in ("png", "svg"))
    own = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    page = description.to_html(f"Private description of {content['data']}")
    texts = [x.encode("utf-8", "replace") for x in (description.to_csv(), page, own)]
    return dict(zip(_NAMES, [*texts, *pictures], strict=True))
