"""Writes a training's files, model.npz and report.json, and prints its results."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from rich.console import Console

import dpjax
from dpjax._rounding import claim, digits, rounded_up
from dpjax.datasets import Categorical, Dataset, Numeric
from dpjax.solvers import Solution
from dpjax.solvers.linear._constant import missing_share
from dpjax.tables._statement import Statement
from dpjax.tables.cli._fit import Plan, Score
from dpjax.tables.cli._ranges import Ranges
from dpjax.tables.cli._run import Run
from dpjax.tables.cli._schema import Schema
from dpjax.tables.cli._settings import link_of
from dpjax.tables.cli._terminal import table_of
from dpjax.tables.models._model import Model, model_file
from dpjax.tables.models._scores import Interval, share_name

NAMES = MODEL, REPORT = "model.npz", "report.json"
_ADVICE = "More records, a larger epsilon or fewer columns would help."


@dataclass(frozen=True, eq=False)
class Trained:
    """A finished training: its numbers are released, or come from public data sets."""

    run: Run
    data: Dataset  # only the names of its columns and the sizes are shown
    solution: Solution
    schema: Schema | None = None  # of a file, with released ranges
    ranges: Ranges | None = None
    evaluation: dict[str, Any] | None = None  # what `evaluate` returns
    scores: list[Score] | None = None  # of all methods, on public records only
    entry: str | None = None  # in the ledger

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        assert self.run.plan is not None
        return self.run.plan

    def report(self, noise_key: str) -> dict[str, Any]:
        """Returns report.json's content; `noise_key` is the key's source, in words."""
        run, plan, data = self.run, self.plan, self.data
        power = getattr(plan.loss_fn, "power", None)
        content: dict[str, Any] = {
            "dpjax": dpjax.__version__,
            "data": data.name,
            "is_public": run.table is None,
            "num_samples": len(data.features),
            "num_test_samples": len(data.test_features),
            "num_features": len(data.feature_names),
            "feature_names": list(data.feature_names),
            "target_unit": data.target_unit,
            "method": run.method,
            "loss": plan.loss,
            "arguments": _plain({"power": power, **plan.arguments}),
            "stats": _plain(self.solution.stats),
            "privacy": Statement.of(run.privacy).content() | {"noise_key": noise_key},
        }
        if (ranges := self.ranges) is not None:
            content["ranges"] = {
                "columns": {k: x.declared() for k, x in ranges.columns.items()},
                "least_seen": ranges.least_seen,
                "is_informative": ranges.is_informative,
                "privacy": Statement.of(run.of_file(ranges.privacy)).content(),
            }
        if self.scores:
            content["comparison"] = [
                {
                    "method": name,
                    "epsilon": privacy.epsilon if privacy.epsilon < math.inf else None,
                    "delta": privacy.delta if privacy.epsilon < math.inf else None,
                    **dict(zip(_score_names(data), map(_number, numbers), strict=True)),
                }
                for name, privacy, *numbers in self.scores
            ]
        if run.table is not None and run.table.units is not None:
            content["unit"] = run.table.units.report()
        if self.evaluation is not None:
            privacy = Statement.of(run.released["evaluation"]).content()
            content["evaluation"] = self.evaluation | {"privacy": privacy}
        more = {"sample": run.sample, "ledger_entry": self.entry}
        return content | {name: x for name, x in more.items() if x is not None}

    def model(self) -> Model:
        """Returns the released model in the units of its table, for model.npz.

        A target of a public data set stays in the unit that the set states.
        """
        data, solution, schema = self.data, self.solution, self.schema
        is_classification = data.task == "classification"
        target = Categorical(("+1",)) if is_classification else Numeric()
        if schema is not None and schema.target is not None:
            target = schema.target
        names = "noise_errors", "noise_correlations"
        errors: Any = {name: solution.stats.get(name) for name in names}
        errors["standard_errors"] = solution.standard_errors
        errors["correlations"] = solution.correlations
        params, errors = jax.tree.map(np.asarray, (solution.params, errors))
        table = self.run.table
        return Model(
            params=params,
            **errors,
            columns=data.schema,
            target_name="target" if table is None else table.target,
            target=target,
            target_unit=data.target_unit,
            link=link_of(self.plan.loss),
            exposure=None if schema is None else schema.exposure,
            privacy=self.run.privacy,
            method=self.run.method,
            data=data.name,
            versions={x.__name__: x.__version__ for x in (dpjax, jax, np)},
        )


def files(model: Model, content: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns report.json (of `content`) and model.npz, which is written last, by name.

    The report lists coefficients with their intervals, if the model has intervals.
    """
    if model.standard_errors is not None:
        table = model.summary()
        columns = [table.coefficients, table.standard_errors, *table.intervals.T]
        columns += [] if table.noise_shares is None else [table.noise_shares]
        names = "coefficient", "standard_error", "low", "high", "part_by_noise"
        rows = zip(table.names, np.vstack(columns).T, strict=True)
        by_name = {
            name: dict(zip(names, map(_number, row), strict=False))
            for name, row in rows
        }
        intervals = {"level": table.level, "coefficients": by_name}
        content = {**content, "intervals": intervals}
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return {REPORT: text.encode(), MODEL: model_file(model)}


def _plain(entry: Any) -> Any:
    """Returns a solver's arguments or statistics in types of JSON, for report.json.

    Vectors become lists, larger arrays a text with their shape, NaN and infinities
    None, and unknown objects their repr.
    """
    if isinstance(entry, Mapping):
        return {name: _plain(x) for name, x in entry.items()}
    if hasattr(entry, "shape"):
        if np.ndim(entry) > 1:
            return f"an array of shape {entry.shape}"
        entry = np.asarray(entry).tolist()
    if isinstance(entry, list):
        return [_plain(x) for x in entry]
    if isinstance(entry, float):
        return _number(entry)
    return entry if isinstance(entry, bool | int | str | None) else repr(entry)


def _number(x: Any) -> float | None:
    """Returns a float for JSON, which knows neither NaN nor infinities."""
    return float(x) if math.isfinite(x) else None


def _score_names(data: Dataset) -> tuple[str, str, str]:
    """Returns the names of the numbers in a `Score` of public records."""
    if data.task == "classification":
        return "test_risk", "AUC", "accuracy"
    return "test_risk", "R2", f"mean absolute error ({data.target_unit})"


def show(console: Console, trained: Trained) -> None:
    """Prints a training's sizes, its scores if there are any, and the guarantee."""
    run, data, ranges = trained.run, trained.data, trained.ranges
    table, stats, num_places = run.table, trained.solution.stats, len(data.features)
    units = None if table is None else table.units
    records = f"{num_places:,} records"
    if units is not None:
        num_units = num_places // units.size
        records = f"{num_units:,} values of {units.column}, {units.size} places each"
    words = {
        "num_steps": "{:d} steps",
        "num_curves": "{:d} curves",
        "num_knots": "{:d} knots each",
        "max_features": "{:,d} features at most",
    }
    sizes = {**trained.plan.arguments, **stats}
    steps = [
        form.format(int(sizes[name]))
        for name, form in words.items()
        if sizes.get(name) is not None
    ]
    console.print(
        f"{data.name}: n = {records}, d = {len(data.feature_names)} features, "
        f"{trained.plan.loss} loss, {', '.join(steps)}"
    )
    if trained.scores:
        head, lines = ["method", "private", *_score_names(data)], []
        for name, privacy, risk, quality, score in trained.scores:
            costs = rounded_up(privacy.epsilon, 4), rounded_up(privacy.delta, 2)
            spent = f"({', '.join(costs)})-DP" if privacy.epsilon < math.inf else "no"
            lines.append([name, spent, f"{risk:.4f}", f"{quality:.3f}", digits(score)])
        table_of_all = table_of([x.replace("_", " ") for x in head], lines, head[2:])
        table_of_all.columns[0].no_wrap = True
        console.print(table_of_all)
        if trained.scores[-1].risk >= trained.scores[0].risk:
            console.print(f"The last model is no better than the constant. {_ADVICE}")
    if trained.evaluation is not None:
        _show_evaluation(console, trained, trained.evaluation)
    text = claim(run.privacy.epsilon, run.privacy.delta)
    console.print(f"Privacy of {run.method}: {text}. {run.privacy}")
    if ranges is not None:
        part = run.of_file(ranges.privacy)
        console.print(
            f"Of it, {claim(part.epsilon, part.delta)} is for the centers and scales "
            f"of {len(ranges.columns)} columns: see ranges in report.json."
        )
    is_counted = table is not None and table.schema.weight is None and units is None
    if is_counted and (missing := missing_share(stats, num_places)):
        console.print(
            f"About {missing:.0%} of the records have no target that can be read, by a "
            "private count of this run. They have no weight in the model.",
            style="yellow",
        )
    show_units_and_sample(console, run)
    if not (trained.evaluation or trained.scores):
        console.print(
            "Test risks and comparisons are not shown, because no guarantee would "
            "cover them: --holdout 0.2 releases private scores."
        )


def show_units_and_sample(console: Console, run: Run) -> None:
    """Prints public facts on a run's units of privacy and random sample, if any."""
    if run.table is not None and run.table.units is not None:
        console.print(run.table.units.public)
    if (sample := run.sample) is not None:
        noun = f"values of {sample['unit']}" if sample["unit"] else "records"
        own = claim(*run.own, digits=4)
        console.print(
            f"It is a random sample of {sample['num_records']:,} {noun}: a run on "
            f"{sample['max_records']:,} of them may spend {own}, which costs the table "
            f"{claim(*run.asked)}. Which were drawn must stay secret."
        )


def _show_evaluation(
    console: Console, trained: Trained, scores: Mapping[str, Any]
) -> None:
    """Prints private scores on held-out records, of the model and of a constant."""
    privacy = trained.run.released["evaluation"]
    console.print(
        f"On {scores['num_samples']:,} records held out, by a budget of their own of "
        f"{claim(privacy.epsilon, privacy.delta)}; in brackets, 95 percent bounds for "
        f"sampling and noise. The constant is {scores['constant']}."
    )
    if scores["num_scored"] < scores["num_samples"]:
        console.print(
            f"About {scores['num_scored']:,.0f} of them have a target that can be "
            "read, by a private count; the others have no weight."
        )
    head, lines = rows_of_scores(scores)
    console.print(table_of(head, lines, head[1:]))
    if verdict := scores["verdict"]:
        console.print(f"{verdict} {_ADVICE} {_plan_of(trained)}", style="bold")
    known = {
        k.split(" of")[0]: x["model"]["value"] for k, x in scores["measures"].items()
    }
    if "median" in known:
        half, most = (digits(known[name]) for name in ("median", "90th percentile"))
        console.print(
            f"How to read it: half of the predictions are off by at most {half}, and "
            f"nine of ten by at most {most}; one of ten is off by more."
        )


def rows_of_scores(scores: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns the titles and the rows of a table of scores, of report.json."""
    lines = [
        [name, *(str(Interval(**both[x])) for x in ("model", "constant"))]
        for name, both in scores.get("measures", {}).items()
    ]
    for x in scores.get("calibration", ()):
        name = share_name(x["from"], x["to"])
        lines.append([name, str(Interval(**x["share"])), ""])
    return ["measure", "model", "constant"], lines


def _plan_of(trained: Trained) -> str:
    """Returns the command that estimates what a run like this one would need."""
    settings, loss = trained.run.settings, trained.plan.loss
    epsilons = (digits(factor * settings.epsilon) for factor in (1, 3, 10))
    words = f"dpjax plan {settings.schema} --rows {len(trained.data.features)}"
    words += f" --loss {loss} --epsilon {','.join(epsilons)}"
    if loss == "logistic" and "constant" in (stats := trained.solution.stats):
        share = 1 / (1 + math.exp(-float(stats["constant"])))
        words += f" --base-rate {min(max(share, 0.01), 0.99):.2g}"
    return f"To see how much, without reading a record: {words}"
