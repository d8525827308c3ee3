"""What a person sees of a training run in the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from dpjax._rounding import claim, digits, rounded_up
from dpjax.cli._evaluation import Evaluation
from dpjax.cli._high_dimensional import is_thin
from dpjax.cli._plan import Plan
from dpjax.cli._ranges import Ranges
from dpjax.cli._report import score_name
from dpjax.cli._runs import Run, Scores
from dpjax.cli._units import Units
from dpjax.datasets import Dataset
from dpjax.models._shared import Interval


def warn_of_seed(console: Console) -> None:
    """Warns that a known seed protects nobody."""
    console.print(
        "Warning: whoever knows --seed can subtract the noise, and then nothing is "
        "protected. Use it on public data only.",
        style="yellow",
    )


def warn_of_weakness(console: Console, plan: Plan, ranges: Ranges | None) -> None:
    """Warns of what makes a good model unlikely, from public numbers."""
    if is_thin(plan.arguments):
        console.print(
            "Warning: in so many dimensions any net of candidates is thin, so that "
            "--method l1 finds coarse weights at best. It is made for few features.",
            style="yellow",
        )
    if ranges is not None and not ranges.is_informative:
        console.print(
            "Warning: the centers and scales that were asked for may be mere noise "
            f"(a scale shows where {ranges.least_seen:,.0f} of {ranges.num_samples:,} "
            "records have about the same). Features are left out for it. Declare them "
            "in the schema, or spend more on them.",
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
    is_public: bool,
    units: Units | None = None,
) -> None:
    """Prints the run, the table where there are scores, and the privacy statement."""
    records = f"n = {len(data.features):,} records"
    if units is not None:
        num_units = len(data.features) // units.size
        records = (
            f"n = {num_units:,} values of {units.column}, {units.size} places each"
        )
    console.print(
        f"{data.name}: {records}, "
        f"d = {len(data.feature_names)} features, {plan.facts.loss} loss, "
        f"{_taken(plan, private)}"
    )
    if scored:
        if not is_public:
            console.print(
                f"UNPROTECTED: the numbers of this table come from "
                f"{len(data.test_features):,} records held out (every fifth), and no "
                "guarantee covers them. The private model was trained on the rest.",
                style="bold red",
            )
        console.print(_table(data, scored))
    if not private.solution.stats.get("is_informative", True):
        console.print(
            "By its own bound of the noise this model may be no better than zero "
            "weights: more records, a larger epsilon or fewer steps would help.",
            style="yellow",
        )
    privacy = private.solution.privacy
    said = claim(privacy.epsilon, privacy.delta)
    console.print(f"Privacy of {private.method}: {said}. {privacy}")
    if ranges is not None:
        part = ranges.privacy
        console.print(
            f"Of it, {claim(part.epsilon, part.delta)} is for the "
            f"centers and scales of {len(ranges.columns)} columns: see ranges in "
            "report.json."
        )


def show_sample(console: Console, said: Mapping[str, Any]) -> None:
    """Prints from how many records a sample was drawn, and what it may spend."""
    what = f"values of {said['unit']}" if said["unit"] else "records"
    own, asked = claim(**said["budget_of_sample"], digits=4), claim(**said["budget"])
    console.print(
        f"It is a random sample of {said['num_records']:,} {what}: a run on "
        f"{said['max_records']:,} of them may spend {own}, which costs the whole table "
        f"{asked}. Which were drawn must stay secret."
    )


def say_nothing_is_tested(console: Console) -> None:
    """Says why there are no test numbers."""
    console.print(
        "No guarantee would cover test risks or comparisons, so there are none: "
        "--holdout 0.2 pays for some, --show-unprotected shows them."
    )


def show_evaluation(console: Console, evaluation: Evaluation) -> None:
    """Prints what was released of the records held out, beside a constant."""
    own = evaluation.privacy
    console.print(
        f"On {evaluation.num_samples:,} records held out, by a budget of their own of "
        f"{claim(own.epsilon, own.delta)}; in brackets, 95 per cent bounds for "
        f"sampling and noise. The constant is {evaluation.constant}."
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


def _bounds(interval: Interval) -> str:
    value, low, high = map(digits, interval)
    return f"{value} ({low} to {high})"


def _taken(plan: Plan, private: Run) -> str:
    """Returns what a person wants to know of what was taken, in words."""
    taken: dict[str, Any] = {**plan.arguments, **private.solution.stats}
    # A radius among the stats is of rows, and no constraint.
    taken["radius"] = plan.arguments.get("radius")
    if "constraint" in taken:
        taken["radius"] = taken["constraint"].radius
    words = {
        "num_steps": "{:d} steps",
        "num_curves": "{:d} curves",
        "num_knots": "{:d} knots each",
        "learning_rate": "learning rate {:g}",
        "radius": "radius {:g}",
        "sparsity": "{:d} weights",
        "threshold": "records cut off at {:.3g}",
        "num_candidates": "{:,d} candidates",
        "num_subsets": "{:,d} subsets",
        "regularization": "regularization {:.3g}",
        "max_features": "{:,d} features at most",
        "truncation": "truncation {:.3g}",
    }
    return ", ".join(
        form.format(taken[name].item() if hasattr(taken[name], "item") else taken[name])
        for name, form in words.items()
        if taken.get(name) is not None
    )


def _table(data: Dataset, scored: Sequence[tuple[Run, Scores]]) -> Table:
    is_accuracy = data.task == "classification"
    table = Table()
    table.add_column("method", no_wrap=True)
    table.add_column("private")
    for title in ("test risk", score_name(data)):
        table.add_column(title, justify="right")
    for run, scores in scored:
        score = scores.scores[-1]
        table.add_row(
            run.method,
            _spent(run),
            f"{scores.risks[-1]:.4f}",
            f"{score:.1%}" if is_accuracy else f"{score:.4g}",
            style="bold" if run.is_private else None,
        )
    return table


def _spent(run: Run) -> str:
    privacy = run.solution.privacy
    if not run.is_private:
        return "no"
    return f"({rounded_up(privacy.epsilon, 4)}, {rounded_up(privacy.delta, 2)})-DP"
