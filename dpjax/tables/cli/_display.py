"""The output of a training run in the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from dpjax._rounding import claim, digits, rounded_up
from dpjax.datasets import Dataset
from dpjax.solvers.linear._constant import missing_share
from dpjax.tables.cli._evaluation import Evaluation
from dpjax.tables.cli._plan import Plan
from dpjax.tables.cli._ranges import Ranges
from dpjax.tables.cli._report import score_name
from dpjax.tables.cli._runs import Run, Scores
from dpjax.tables.cli._units import Units
from dpjax.tables.models._noisy_counts import Interval


def warn_of_seed(console: Console) -> None:
    """Warns that noise from a known seed protects nobody."""
    console.print(
        "Warning: anyone who knows --seed can subtract the noise, and then nothing is "
        "protected. Use it on public data only.",
        style="yellow",
    )


def warn_of_weakness(console: Console, ranges: Ranges | None) -> None:
    """Warns if public numbers show that a good model is unlikely."""
    if ranges is not None and not ranges.is_informative:
        console.print(
            "Warning: the private centers and scales may be mere noise (a scale is "
            f"detected if {ranges.least_seen:,.0f} of {ranges.num_samples:,} records "
            "have numbers of about that size). Features without a scale are left out. "
            "Declare centers and scales in the schema, or raise --private-ranges.",
            style="yellow",
        )


def show(
    console: Console,
    plan: Plan,
    data: Dataset,
    private: Run,
    scored: Sequence[tuple[Run, Scores]],
    ranges: Ranges | None,
    *,
    units: Units | None = None,
) -> None:
    """Prints the run, a table of scores if there are any, and the guarantee."""
    records = f"n = {len(data.features):,} records"
    if units is not None:
        num_units = len(data.features) // units.size
        records = (
            f"n = {num_units:,} values of {units.column}, {units.size} places each"
        )
    console.print(
        f"{data.name}: {records}, "
        f"d = {len(data.feature_names)} features, {plan.loss} loss, "
        f"{_steps_of(plan, private)}"
    )
    if scored:
        console.print(_table(data, scored))
    privacy = private.solution.privacy
    text = claim(privacy.epsilon, privacy.delta)
    console.print(f"Privacy of {private.method}: {text}. {privacy}")
    if ranges is not None:
        part = ranges.privacy
        console.print(
            f"Of it, {claim(part.epsilon, part.delta)} is for the "
            f"centers and scales of {len(ranges.columns)} columns: see ranges in "
            "report.json."
        )


def say_targets_are_missing(console: Console, stats: Mapping[str, Any], n: int) -> None:
    """Prints the private share of records without a target, if it is large."""
    if missing := missing_share(stats, n):
        console.print(
            f"About {missing:.0%} of the records have no target that can be read, by a "
            "private count of this run. They have no weight in the model.",
            style="yellow",
        )


def show_sample(console: Console, sample: Mapping[str, Any]) -> None:
    """Prints the size of the table, that of its sample, and the sample's budget."""
    noun = f"values of {sample['unit']}" if sample["unit"] else "records"
    own = claim(**sample["budget_of_sample"], digits=4)
    console.print(
        f"It is a random sample of {sample['num_records']:,} {noun}: a run on "
        f"{sample['max_records']:,} of them may spend {own}, which costs the table "
        f"{claim(**sample['budget'])}. Which were drawn must stay secret."
    )


def say_nothing_is_tested(console: Console) -> None:
    """Prints why there are no test scores."""
    console.print(
        "Test risks and comparisons are not shown, because no guarantee would cover "
        "them: --holdout 0.2 releases private scores."
    )


def show_evaluation(console: Console, evaluation: Evaluation) -> None:
    """Prints the private scores on held-out records, next to those of a constant."""
    own = evaluation.privacy
    console.print(
        f"On {evaluation.num_samples:,} records held out, by a budget of their own of "
        f"{claim(own.epsilon, own.delta)}; in brackets, 95 per cent bounds for "
        f"sampling and noise. The constant is {evaluation.constant}."
    )
    if evaluation.num_scored < evaluation.num_samples:
        console.print(
            f"About {evaluation.num_scored:,.0f} of them have a target that can be "
            "read, by a private count; the others have no weight."
        )
    table = Table()
    table.add_column("measure", overflow="fold")
    table.add_column("model", justify="right")
    table.add_column("constant", justify="right")
    for name, model, constant in evaluation.measures:
        table.add_row(name, _bounds(model), _bounds(constant))
    for low, high, share in evaluation.calibration:
        name = f"share of +1 where {low:.0%} to {high:.0%} is predicted"
        table.add_row(name, _bounds(share), "")
    console.print(table)
    scores = {x.name.split(" of")[0]: x.model.value for x in evaluation.measures}
    if "median" in scores:
        half, most = (digits(scores[name]) for name in ("median", "90th percentile"))
        console.print(
            f"How to read it: half of the predictions are off by at most {half}, and "
            f"nine of ten by at most {most}; one of ten is off by more."
        )


def _bounds(interval: Interval) -> str:
    value, low, high = map(digits, interval)
    return f"{value} ({low} to {high})"


def _steps_of(plan: Plan, private: Run) -> str:
    """Returns the hyperparameters of the run in words."""
    values: dict[str, Any] = {**plan.arguments, **private.solution.stats}
    words = {
        "num_steps": "{:d} steps",
        "num_curves": "{:d} curves",
        "num_knots": "{:d} knots each",
        "max_features": "{:,d} features at most",
    }
    return ", ".join(
        form.format(x.item() if hasattr(x, "item") else x)
        for name, form in words.items()
        if (x := values.get(name)) is not None
    )


def _table(data: Dataset, scored: Sequence[tuple[Run, Scores]]) -> Table:
    is_accuracy = data.task == "classification"
    table = Table()
    table.add_column("method", no_wrap=True)
    table.add_column("private")
    for title in ("test risk", score_name(data)):
        table.add_column(title, justify="right")
    for run, scores in scored:
        score = scores.score
        table.add_row(
            run.method,
            _spent(run),
            f"{scores.risk:.4f}",
            f"{score:.1%}" if is_accuracy else f"{score:.4g}",
            style="bold" if run.is_private else None,
        )
    return table


def _spent(run: Run) -> str:
    privacy = run.solution.privacy
    if not run.is_private:
        return "no"
    return f"({rounded_up(privacy.epsilon, 4)}, {rounded_up(privacy.delta, 2)})-DP"
