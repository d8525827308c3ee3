"""`dpjax train`, from the options to the files: loads, runs, writes and shows."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax

from dpjax import _validate
from dpjax._types import Key
from dpjax.datasets import Dataset
from dpjax.experiments import _display, _outputs, _report
from dpjax.experiments._methods import find_method
from dpjax.experiments._plan import make_plan, split_budget
from dpjax.experiments._plot import plot_test_risk
from dpjax.experiments._ranges import buy_ranges, charge
from dpjax.experiments._run_folder import RunFolder
from dpjax.experiments._settings import LossName, Settings
from dpjax.experiments._sources import (
    PUBLIC_SETS,
    Table,
    encode_table,
    public_name,
    read_table,
)
from dpjax.experiments._train import (
    Run,
    Scores,
    score_run,
    system_key,
    train_baselines,
    train_private,
)


def train(
    source: str,
    settings: Settings,
    *,
    schema: Path | None = None,
    target: str | None = None,
    seed: int | None = None,
    output: Path | None = None,
    checkpoint: Path | None = None,
    show_unprotected: bool = False,
) -> None:
    """Trains a private model, writes its files and prints what may be printed.

    On a user's file the private method alone runs, and only what its guarantee covers
    is shown and written, unless show_unprotected asks for the rest.

    Args:
        source: the name of a public data set, or the path of a file.
        settings: the options of the method.
        schema: what is public about a file's columns.
        target: the column of a file to predict.
        seed: of the noise, for public data; by default the system's entropy is taken.
        output: folder to write to; dpjax-output/NAME by default.
        checkpoint: folder that keeps the private run while it lasts, its key included;
            a run that was stopped is taken up from there. It is no link, lies apart
            from the output and the files that are read, and is removed when the
            parameters and the report are written. A run that breaks off leaves it as
            soon as there is a state to go on from.
        show_unprotected: whether to hold out every fifth record of a file and show
            test risks and comparisons, which nothing protects.

    Raises:
        ValueError: if an argument, a file or the schema is wrong; nothing is written.
        OSError: if a file cannot be found, fetched or written.
    """
    _validate.require(
        seed is None or 0 <= seed < 2**32, "--seed", seed, "from 0 to 2^32 - 1"
    )
    name = public_name(source)
    folder = output or Path("dpjax-output", Path(name or source).stem)
    inputs = {} if name is not None else {"DATA": Path(source)}
    if schema is not None:
        inputs["--schema"] = schema
    _report.check_folder(folder, inputs)
    run_folder = _run_folder(checkpoint, folder, inputs)
    if seed is not None:
        run_key, noise_key = jax.random.key(seed), "seeded, hence for public data only"
    else:
        kept_key = run_folder.kept_key() if run_folder is not None else None
        run_key = system_key() if kept_key is None else kept_key
        noise_key = "from the operating system"
    key, baseline_key, ranges_key = jax.random.split(run_key, 3)
    is_public = name is not None
    ranges = None
    if name is not None:
        data = _load_public(name, settings, schema, target)
    else:
        table = _read_private(source, settings, schema, target, show_unprotected)
        if settings.private_ranges is not None:
            cost, _ = split_budget(settings, table.num_samples)
            ranges = buy_ranges(
                table, key=ranges_key, epsilon=cost.epsilon, delta=cost.delta
            )
            table = table.with_ranges(ranges.columns)
        data = encode_table(table)
    plan = make_plan(settings, data, is_named=is_public)
    _validate.require(
        run_folder is None or plan.method.has_steps,
        "--checkpoint",
        str(checkpoint),
        f"left out with --method {settings.method}, which has no steps",
    )

    # Standard output holds the results; progress and warnings go beside it.
    console, messages = _display.terminal(), _display.terminal(stderr=True)
    if seed is not None:
        _display.warn_of_seed(messages)
    _display.warn_of_weakness(messages, plan, ranges)

    scored: list[tuple[Run, Scores]] = []
    with _display.progress_bars(messages) as on_step:
        with _kept(run_folder, None if seed is not None else run_key):
            private = train_private(
                plan, data, key=key, on_step=on_step, run_folder=run_folder
            )
        private = charge(private, ranges)
        if is_public or show_unprotected:
            runs = train_baselines(plan, data, key=baseline_key, on_step=on_step)
            runs = [charge(run, ranges) for run in runs]
            runs.insert(3, private)
            scored = [(run, score_run(plan, data, run)) for run in runs]

    content = _report.report(
        plan, data, private, scored, ranges, is_public=is_public, noise_key=noise_key
    )
    files = _report.files(data, private, content)
    # What was paid for is out before anything else can fail, and its key goes with it.
    with _outputs.uninterrupted():
        _report.write(folder, files)
        if run_folder is not None:
            run_folder.remove()
    _display.show(console, plan, data, private, scored, ranges, is_public=is_public)
    _display.show_paths(console, [folder / name for name in files])
    if scored:
        path = folder / _report.PLOT
        plot = plot_test_risk(plan, data, scored, is_public=is_public)
        _outputs.write_whole(path, plot, name="--output")
        _display.show_paths(console, [path])


def _run_folder(
    checkpoint: Path | None, output: Path, inputs: Mapping[str, Path]
) -> RunFolder | None:
    """Returns the folder that keeps the run, if it can go without taking more along."""
    if checkpoint is None:
        return None
    overlaps = _outputs.is_within(output, checkpoint) or _outputs.is_within(
        checkpoint, output
    )
    _validate.require(
        not overlaps,
        "--checkpoint",
        str(checkpoint),
        f"apart from --output {output}, neither inside the other, since it is removed "
        "in the end",
    )
    for name, path in inputs.items():
        _validate.require(
            not _outputs.is_within(path, checkpoint),
            "--checkpoint",
            str(checkpoint),
            f"a folder without {name} {path}, since it is removed in the end",
        )
    return RunFolder(checkpoint).checked()


@contextlib.contextmanager
def _kept(run_folder: RunFolder | None, key: Key | None) -> Iterator[None]:
    """Keeps the key while a run is on, and where it breaks off with a state to go on.

    Args:
        run_folder: where, if anywhere.
        key: of the run, if it is not to be given again.
    """
    if run_folder is None:
        yield
        return
    try:
        run_folder.make()
        if key is not None:
            run_folder.keep_key(jax.random.clone(key))
        yield
    except BaseException:
        if not run_folder.has_states():
            run_folder.remove()
        raise


def _load_public(
    name: str, settings: Settings, schema: Path | None, target: str | None
) -> Dataset:
    rule = f"left out with {name}, which has its own"
    _validate.require(schema is None, "--schema", str(schema), rule)
    _validate.require(target is None, "--target", target, rule)
    share = settings.private_ranges
    _validate.require(share is None, "--private-ranges", share, rule)
    return PUBLIC_SETS[name]()


def _read_private(
    source: str,
    settings: Settings,
    schema: Path | None,
    target: str | None,
    show_unprotected: bool,
) -> Table:
    if schema is not None:
        find_method(settings)  # what is wrong without the file is said before it
    return read_table(
        Path(source),
        schema=schema,
        target=target,
        is_classification=settings.loss == LossName.LOGISTIC,
        hold_out=show_unprotected,
        allows_empty=settings.private_ranges is not None,
    )
