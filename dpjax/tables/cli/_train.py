"""`dpjax train`: reads, plans and prices once, charges, fits, writes and shows."""

from collections.abc import Mapping
from pathlib import Path

import jax

from dpjax import _validate, datasets
from dpjax._types import Key
from dpjax.datasets import Categorical, Dataset, Numeric
from dpjax.tables.cli._check import warn_curator
from dpjax.tables.cli._evaluation import evaluate
from dpjax.tables.cli._fit import compare, train_private
from dpjax.tables.cli._options import flag
from dpjax.tables.cli._outputs import (
    MODEL,
    REPORT,
    Trained,
    files,
    show,
    warn_of_weakness,
)
from dpjax.tables.cli._plan import find_loss
from dpjax.tables.cli._ranges import release_ranges
from dpjax.tables.cli._release import begin
from dpjax.tables.cli._run import charge, plan_training
from dpjax.tables.cli._settings import Settings, link_of, public_name
from dpjax.tables.cli._sources import Draw, Table, encode_table, read_table
from dpjax.tables.cli._terminal import progress_bars, show_paths, stage, terminal
from dpjax.tables.cli._units import RECORDS_PER_UNIT, read_names
from dpjax.tables.models._params import bending_features

_FEWEST = 20  # records of an additive model that is asked for


def train(settings: Settings) -> None:
    """Trains a private model, writes its files and prints what may be printed.

    On a user's file the private method alone runs, and only what its guarantee covers
    is shown and written.

    A run that breaks off leaves --checkpoint as soon as there is a state to go on from.
    It is refused with other options or records, which tells the curator of them,
    outside the guarantee.

    With --ledger a run is refused or entered before a value of a record is used.
    """
    release = begin(settings, [MODEL, REPORT])
    keys = jax.random.split(release.key, 5)
    key, baseline_key, ranges_key, test_key, sample_key = keys
    name, ranges, schema, entry = public_name(settings.source), None, None, None
    if name is not None:
        data = load_public(name, settings)
        release, run = release.bound(settings, None), plan_training(settings, data)
    else:
        stage(f"Reading {settings.source}")
        table = read_private(settings, sample_key)
        release, run = release.bound(settings, table), plan_training(settings, table)
        entry = charge(run, release.run_folder)
        warn_of_cells(table, settings)
        stage("Preparing the columns")
        if run.ranges is not None:
            how = {"is_centered": link_of(settings.loss) != "log", "key": ranges_key}
            how["may_bend"] = settings.may_bend
            ranges = release_ranges(run.ranges, table, **how)
            table = table.with_ranges(ranges.columns)
        data, schema = encode_table(table), table.schema
        del table  # its cells take more memory than what trains
    plan = run.plan
    assert plan is not None
    # Standard output holds the results; progress and warnings go beside it.
    messages = terminal(stderr=True)
    warn_of_weakness(messages, ranges)
    scores = evaluation = None
    with progress_bars(messages) as on_step:
        with release.recorded():
            given = {"on_step": on_step, "run_folder": release.run_folder}
            solution = train_private(plan, data, key=key, **given)
        if schema is not None and settings.holdout is not None:
            on_step("Evaluation", 0, 1)
            kind, own = schema.target, run.parts["evaluation"]
            evaluation = evaluate(plan, data, solution, own, kind, key=test_key)
            on_step("Evaluation", 1, 1)
        if run.table is None:
            scores = compare(plan, data, solution, key=baseline_key, on_step=on_step)
    trained = Trained(
        run=run,
        data=data,
        solution=solution,
        schema=schema,
        ranges=ranges,
        evaluation=evaluation,
        scores=scores,
        entry=entry,
    )
    release.write(files(trained.model(), trained.report(release.noise_key)))
    console = terminal()
    show(console, trained)
    show_paths(console, [release.folder / name for name in (MODEL, REPORT)])


def load_public(name: str, settings: Settings) -> Dataset:
    """Loads a public data set, with which options of a file are left out."""
    own = ("ledger", "schema", "target", "private_ranges", "holdout", "unit")
    own += ("max_records", "quoted", "skip_lines", "last_lines", "row_names")
    own += ("encoding", "decimal", "thousands", "currency")
    for option in own:
        value = getattr(settings, option)
        shown = str(value) if isinstance(value, Path) else value
        rule = f"left out with {name}, which has its own"
        is_fine = value is None or value is False
        _validate.require(is_fine, flag(option), shown, rule)
    data = datasets.load(name)
    _check_model(settings, data.schema, len(data.features))
    return data


def _check_model(
    settings: Settings,
    columns: Mapping[str, Numeric | Categorical | None],
    num_records: int,
) -> None:
    """Checks that an additive model that is asked for has records and columns."""
    # A column that is still open is one of numbers.
    closed = {name: kind or Numeric() for name, kind in columns.items()}
    for is_fine, where in (
        (num_records >= _FEWEST, f"below {_FEWEST} records, of {num_records}"),
        (len(bending_features(closed)) > 0, "where no column is one of numbers"),
    ):
        is_fine |= settings.model != "additive"
        rule = f"linear or left out {where}"
        _validate.require(is_fine, "--model", settings.model, rule)


def read_private(settings: Settings, key: Key) -> Table:
    """Reads a user's file, or draws a sample by a key; some of it is held out."""
    link = link_of(settings.loss)
    if settings.schema is not None:
        link = link_of(find_loss(settings))  # an error comes before the file is read
    listed = settings.unit_names and read_names(settings.unit_names)
    unit, each = settings.unit, settings.records_per_unit or RECORDS_PER_UNIT
    each = 1 if unit is None else each
    table = read_table(
        Path(settings.source),
        schema=settings.schema,
        target=settings.target,
        link=link,
        allows_empty=settings.private_ranges is not None,
        least=1 if listed is None else 0,
        text_format=settings.text_format,
        draw=Draw(settings.max_records, key, unit, each, listed),
    )
    if settings.holdout is not None:
        table = table.held_out(settings.holdout)
    _check_model(settings, table.schema.columns, table.num_samples)
    return table


def warn_of_cells(table: Table, settings: Settings) -> None:
    """Warns the curator of columns that can hardly be used; stops if that is asked."""
    console, cells = terminal(stderr=True), table.columns
    if warn_curator(console, table.schema, table.target, cells) and settings.strict:
        nothing = "nothing was written"
        if settings.ledger is None:
            nothing = "nothing was spent or written"
        raise ValueError(
            f"--strict stopped the run before training: {nothing}. That it stopped "
            "reveals something about the records' values."
        )
