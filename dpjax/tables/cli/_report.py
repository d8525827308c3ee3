"""The files of a run, model.npz and report.json, written all or none."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import dpjax
from dpjax import _files
from dpjax.accounting import PrivacyGuarantee
from dpjax.datasets import Categorical, Dataset, Numeric
from dpjax.solvers import Solution
from dpjax.tables.cli._losses import link_of
from dpjax.tables.cli._plan import Plan
from dpjax.tables.cli._ranges import Ranges
from dpjax.tables.cli._runs import Run, Scores
from dpjax.tables.cli._sources import Table
from dpjax.tables.models._file import model_file
from dpjax.tables.models._model import Model
from dpjax.tables.models._terms import Link

NAMES = MODEL, REPORT = "model.npz", "report.json"
_NOTHING: Mapping[str, Path] = {}


def report(
    plan: Plan,
    data: Dataset,
    private: Run,
    scored: Sequence[tuple[Run, Scores]] = (),
    ranges: Ranges | None = None,
    *,
    is_public: bool,
    noise_key: str,
) -> dict[str, Any]:
    """Returns the public facts about a run for JSON.

    Args:
        plan: the run.
        data: its records; their numbers and names are reported, no values.
        private: the private method's run.
        scored: all methods with their test scores; none if the records are private.
        ranges: the released centers and scales.
        is_public: whether the records are public.
        noise_key: where the noise comes from, in words; never a seed.
    """
    privacy = private.solution.privacy
    content = {
        "dpjax": dpjax.__version__,
        "data": data.name,
        "is_public": is_public,
        "num_samples": len(data.features),
        "num_test_samples": len(data.test_features),
        "num_features": len(data.feature_names),
        "feature_names": list(data.feature_names),
        "target_unit": data.target_unit,
        "method": private.method,
        "loss": plan.loss,
        "arguments": _plain({"power": plan.power, **plan.arguments}),
        "stats": _plain(private.solution.stats),
        "privacy": statement(privacy) | {"noise_key": noise_key},
    }
    if ranges is not None:
        content["ranges"] = {
            "columns": {
                name: _constants(column) for name, column in ranges.columns.items()
            },
            "least_seen": ranges.least_seen,
            "is_informative": ranges.is_informative,
            "privacy": statement(ranges.privacy),
        }
    if scored:
        content["comparison"] = [_row(data, run, scores) for run, scores in scored]
    return content


def statement(privacy: PrivacyGuarantee) -> dict[str, Any]:
    """Returns a guarantee for JSON."""
    return {
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "relation": privacy.relation.name,
        "description": privacy.description,
    }


def _plain(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments or numbers for JSON; None was left to the solver."""
    return {name: _plain_entry(entry) for name, entry in entries.items()}


def _plain_entry(entry: Any) -> Any:
    if isinstance(entry, Mapping):
        return _plain(entry)
    if hasattr(entry, "shape"):
        if np.ndim(entry) > 1:
            return f"an array of shape {entry.shape}"
        entry = np.asarray(entry).tolist()
    if isinstance(entry, list):
        return [_plain_entry(x) for x in entry]
    if isinstance(entry, float):
        return _number(entry)
    if isinstance(entry, bool | int | str) or entry is None:
        return entry
    return repr(entry)


def _row(data: Dataset, run: Run, scores: Scores) -> dict[str, Any]:
    privacy = run.solution.privacy
    return {
        "method": run.method,
        "epsilon": privacy.epsilon if run.is_private else None,
        "delta": privacy.delta if run.is_private else None,
        "test_risk": _number(scores.risk),
        score_name(data): _number(scores.score),
    }


def score_name(data: Dataset) -> str:
    """Returns the name of the score that is shown with the risk."""
    if data.task == "classification":
        return "accuracy"
    return f"mean absolute error ({data.target_unit})"


def model_of(
    data: Dataset,
    solution: Solution,
    *,
    method: str,
    link: Link,
    table: Table | None = None,
) -> Model:
    """Returns a trained model with the units of its table.

    Args:
        data: what it was trained on, encoded by its schema.
        solution: the weights and their cost.
        method: its name.
        link: of its loss, for a target that is no class.
        table: what the data were made of, where a user's file was; a target of a named
            data set stays in the unit that the set states.
    """
    is_classification = data.task == "classification"
    target = Categorical(("+1",)) if is_classification else Numeric()
    if table is not None and table.schema.target is not None:
        target = table.schema.target
    errors = (solution.standard_errors, solution.correlations)
    standard_errors, correlations = (
        None if x is None else np.asarray(x) for x in errors
    )
    return Model(
        params=jax.tree.map(np.asarray, solution.params),
        standard_errors=standard_errors,
        correlations=correlations,
        columns=data.schema,
        target_name="target" if table is None else table.target,
        target=target,
        target_unit=data.target_unit,
        link="logit" if is_classification else link,
        exposure=table.schema.exposure if table is not None else None,
        privacy=solution.privacy,
        method=method,
        data=data.name,
        versions={module.__name__: module.__version__ for module in (dpjax, jax, np)},
    )


def _constants(column: Numeric) -> dict[str, float]:
    """Returns what a column is standardized by; JSON has no infinity."""
    constants = dataclasses.asdict(column)
    return {name: x for name, x in constants.items() if math.isfinite(x)}


def files_of(
    plan: Plan,
    data: Dataset,
    private: Run,
    scored: Sequence[tuple[Run, Scores]],
    ranges: Ranges | None,
    table: Table | None,
    more: Mapping[str, Any],
    **said: Any,
) -> dict[str, bytes]:
    """Returns the files of a run, by name: what `report` says and more, and the model.

    Further entries of the report that are None are left out.
    """
    content = report(plan, data, private, scored, ranges, **said)
    content |= {name: x for name, x in more.items() if x is not None}
    link = link_of(plan.loss)
    names = {"method": private.method, "table": table, "link": link}
    return files(model_of(data, private.solution, **names), content)


def files(model: Model, content: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns the files of a run, by name.

    The report has the coefficients with their intervals, if there are some.
    """
    if model.standard_errors is not None:
        table = model.summary()
        columns = table.coefficients, table.standard_errors, table.intervals.T
        names = "coefficient", "standard_error", "low", "high"
        rows = zip(table.names, np.vstack(columns).T, strict=True)
        by_name = {
            name: dict(zip(names, map(_number, row), strict=True)) for name, row in rows
        }
        intervals = {"level": table.level, "coefficients": by_name}
        content = {**content, "intervals": intervals}
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return {MODEL: model_file(model), REPORT: text.encode()}


def check_folder(
    folder: Path, inputs: Mapping[str, Path] = _NOTHING, names: Sequence[str] = NAMES
) -> None:
    """Requires a folder that a run's files can be written to, before anything is spent.

    Args:
        folder: it may be made.
        inputs: the files that are read, by the option that named them: none of them
            may be written over.
        names: of the files.

    Raises:
        ValueError: with --output, if not.
    """
    _files.check_folder("--output", folder, names=names)
    _files.check_spared("--output", [folder / name for name in names], inputs)


def write(
    folder: Path,
    contents: Mapping[str, bytes],
    forget: Callable[[], None],
) -> None:
    """Writes the files of a run, all of them or none.

    The model appears last: nothing is released before.

    Args:
        folder: where.
        contents: of the files, by name.
        forget: called before one appears, to remove the key of the run.
    """
    ordered = dict(sorted(contents.items(), key=lambda item: item[0] == MODEL))
    _files.write_together(folder, ordered, name="--output", before=forget)


def _number(x: Any) -> float | None:
    """Returns a float for JSON, which knows neither NaN nor infinities."""
    return float(x) if math.isfinite(x) else None
