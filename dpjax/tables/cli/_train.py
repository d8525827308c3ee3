"""The `dpjax train` command: it reads, plans, charges, fits, writes and shows."""

from dpjax import _keys
from dpjax.datasets import Dataset
from dpjax.tables.cli import _outputs
from dpjax.tables.cli._curator import warn_curator
from dpjax.tables.cli._fit import compare, evaluate, train_private
from dpjax.tables.cli._ranges import release_ranges
from dpjax.tables.cli._release import begin
from dpjax.tables.cli._run import charge, plan_training
from dpjax.tables.cli._settings import FOR_AMOUNTS, Settings, public_name
from dpjax.tables.cli._sources import Table, encode_table, load_public, read_private
from dpjax.tables.cli._terminal import progress_bars, show_paths, stage, terminal


def train(settings: Settings) -> None:
    """Runs `dpjax train`: trains a private model, writes its files, prints results.

    On a user's file only the private method runs, and only what its guarantee covers is
    written to files and standard output. With --ledger the run is refused, or entered
    into the ledger, before a value of a record is used.

    A run that breaks off leaves the folder of --checkpoint if it has a state to resume
    from. With other options or records the command refuses this folder: that depends on
    the records, and is for the curator, outside the guarantee.
    """
    release = begin(settings, _outputs.NAMES)
    # Each use has its own key, so that no noise is drawn twice.
    keys = _keys.split(release.key, 5)
    key, baseline_key, ranges_key, test_key, sample_key = keys
    ranges = schema = evaluation = scores = None
    if (name := public_name(settings.source)) is not None:
        source = load_public(name, settings)
    else:
        stage(f"Reading {settings.source}")
        source = read_private(settings, sample_key)
    run = plan_training(settings, source)
    release, entry = charge(run, release, source)
    plan = run.plan
    assert plan is not None
    if isinstance(source, Dataset):
        data = source
    else:
        table = source
        warn_of_cells(table, settings)
        stage("Preparing the columns")
        if run.ranges is not None:
            how = {"is_centered": plan.loss not in FOR_AMOUNTS, "key": ranges_key}
            how["may_bend"] = settings.may_bend
            ranges, table = release_ranges(run.ranges, table, **how)
        data, schema = encode_table(table), table.schema
        del source, table  # the cells take more memory than the features
    # Standard output holds the results; progress and warnings go to stderr.
    with release.recorded() as files, progress_bars(terminal(stderr=True)) as on_step:
        given = {"on_step": on_step, "run_folder": release.run_folder}
        solution = train_private(plan, data, key=key, **given)
        if schema is not None and settings.holdout is not None:
            on_step("Evaluation", 0, 1)
            kind, own = schema.target, run.parts["evaluation"]
            evaluation = evaluate(plan, data, solution, own, kind, key=test_key)
            on_step("Evaluation", 1, 1)
        if run.table is None:
            scores = compare(plan, data, solution, key=baseline_key, on_step=on_step)
        results = solution, schema, ranges, evaluation, scores, entry
        trained = _outputs.Trained(run, data, *results)
        files |= _outputs.files(trained.model(), trained.report(release.noise_key))
    console = terminal()
    _outputs.show(console, trained)
    show_paths(console, [release.folder / name for name in _outputs.NAMES])


def warn_of_cells(table: Table, settings: Settings) -> None:
    """Warns the data's owner of columns that can hardly be used; raises if --strict."""
    if warn_curator(table.schema, table.target, table.columns) and settings.strict:
        nothing = "written" if settings.ledger else "spent or written"
        raise ValueError(
            f"--strict stopped the run before training: nothing was {nothing}. That it "
            "stopped reveals something about the records' values."
        )
