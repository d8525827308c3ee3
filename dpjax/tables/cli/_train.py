"""`dpjax train`, from the options to the files: loads, runs, writes and shows."""

from collections.abc import Mapping
from pathlib import Path

import jax

from dpjax import _validate, datasets
from dpjax._types import Key
from dpjax.datasets import Categorical, Dataset, Numeric
from dpjax.tables.cli import _display, _report
from dpjax.tables.cli._check import warn_curator
from dpjax.tables.cli._evaluation import evaluate
from dpjax.tables.cli._losses import link_of
from dpjax.tables.cli._options import flag
from dpjax.tables.cli._plan import find_loss
from dpjax.tables.cli._ranges import charge
from dpjax.tables.cli._release import Release, begin, uninterrupted
from dpjax.tables.cli._runs import (
    Run,
    Scores,
    score_run,
    train_baselines,
    train_private,
)
from dpjax.tables.cli._sample import Draw
from dpjax.tables.cli._settings import Settings, public_name
from dpjax.tables.cli._sources import Table, encode_table, read_table
from dpjax.tables.cli._spending import on_sample, planned, spend, with_ranges
from dpjax.tables.cli._terminal import progress_bars, show_paths, stage, terminal
from dpjax.tables.cli._units import RECORDS_PER_UNIT, read_names
from dpjax.tables.models._terms import bending_features

_FEWEST = 20  # records of an additive model that is asked for


def train(settings: Settings) -> None:
    """Trains a private model, writes its files and prints what may be printed.

    On a user's file the private method alone runs, and only what its guarantee covers
    is shown and written.

    A run that breaks off leaves --checkpoint as soon as there is a state to go on from.
    It is refused with other options or records, which tells the curator of them,
    outside the guarantee.

    With --ledger a run is priced by the number of records alone, and refused or entered
    before a value of them is used.
    """
    release = begin(settings, _report.NAMES)
    keys = jax.random.split(release.key, 5)
    key, baseline_key, ranges_key, test_key, sample_key = keys
    name = public_name(settings.source)
    is_public = name is not None
    ranges = table = units = sampled = entry = None
    spent = {}
    if name is not None:
        data = load_public(name, settings)
        release = release.bound(settings, None)
    else:
        stage(f"Reading {settings.source}")
        table = read_private(settings, sample_key)
        release = release.bound(settings, table)
        settings, sampled = on_sample(settings, table)
        units = table.units
        spent, entry = spend(settings, table, release.run_folder)
        warn_of_cells(table, settings)
        stage("Preparing the columns")
        table, ranges = with_ranges(settings, table, key=ranges_key)
        data = encode_table(table)
        table = table.blank()  # its cells take more memory than what trains
    plan = planned(settings, data, table)

    # Standard output holds the results; progress and warnings go beside it.
    console, messages = terminal(), terminal(stderr=True)
    _display.warn_of_weakness(messages, ranges)

    scored: list[tuple[Run, Scores]] = []
    with progress_bars(messages) as on_step:
        with release.recorded():
            given = {"on_step": on_step, "run_folder": release.run_folder}
            private = train_private(plan, data, key=key, **given)
        private = charge(private.for_units(units), ranges)
        evaluation = None
        released = {"training": private.solution.privacy}
        if table is not None and settings.holdout is not None:
            on_step("Evaluation", 0, 1)
            evaluation = evaluate(
                plan, data, private, table.schema.target, key=test_key, units=units
            )
            on_step("Evaluation", 1, 1)
            released["evaluation"] = evaluation.privacy
            private = evaluation.joined(private, len(table.is_test), units)
        if table is not None:
            released = {k: table.protected(x) for k, x in released.items()}
            private = private.stated(table.protected)
            ranges, evaluation = map(table.restated, (ranges, evaluation))
        if spent and spent != released:
            raise RuntimeError("The run's guarantee is not what its ledger says.")
        if is_public:
            runs = train_baselines(plan, data, key=baseline_key, on_step=on_step)
            runs.append(private)
            scored = [(run, score_run(plan, data, run)) for run in runs]

    more = {
        "unit": units and units.report(),
        "evaluation": evaluation and evaluation.report(),
        "sample": sampled,
        "ledger_entry": entry,
    }
    files = _report.files_of(
        *(plan, data, private, scored, ranges, table, more),
        is_public=is_public,
        noise_key=release.noise_key,
    )
    write_release(release, files)
    _display.show(console, plan, data, private, scored, ranges, units=units)
    if table is not None and table.schema.weight is None and units is None:
        stats = private.solution.stats
        _display.say_targets_are_missing(console, stats, len(data.features))
    if units is not None:
        console.print(units.public)
    if sampled is not None:
        _display.show_sample(console, sampled)
    if evaluation is not None:
        _display.show_evaluation(console, evaluation)
    elif not scored:
        _display.say_nothing_is_tested(console)
    show_paths(console, [release.folder / name for name in files])


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
    if warn_curator(terminal(stderr=True), table) and settings.strict:
        nothing = "nothing was written"
        if settings.ledger is None:
            nothing = "nothing was spent or written"
        raise ValueError(
            f"--strict stopped the run before training: {nothing}. That it stopped "
            "reveals something about the records' values."
        )


def write_release(release: Release, files: Mapping[str, bytes]) -> None:
    """Writes what was paid for, before anything else can fail.

    Its key goes before it appears: a release whose key is left could be made again, of
    other records with the same noise. A kill between the two loses the run.
    """
    with uninterrupted():
        _report.write(release.folder, files, release.remove_kept)
