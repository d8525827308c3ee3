"""What predictions of a table are worth: models that need not be linear.

A fit returns test predictions; "excess" is the test loss, "auc" the area under the ROC.
"""

import importlib
import math
import warnings
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import comparison, page
from benchmarks.comparison import Numbers, Summary, Verdict
from benchmarks.data import load
from benchmarks.record import RESULTS, read, rounded
from benchmarks.utility import methods, problems
from benchmarks.utility.methods import Method, each, untuned
from benchmarks.utility.peers import LeftOut
from benchmarks.utility.problems import Problem, non_private_optimum
from dpjax import solvers
from dpjax.solvers.additive._curves import FINE as KNOTS
from dpjax.solvers.training._curves import hats

PATH = RESULTS / "predictions.json"
EPSILONS = (0.1, 0.5, 1.0, 3.0, 8.0)
LINEAR, ADDITIVE, EBM = "dp_linear_model", "dp_additive_model", "dp_ebm"
# Of DP-EBM: features in public units, and the ranges of targets that are tried.
FEATURE_RANGE = (-4.0, 4.0)
TARGET_RANGES = (1.0, 3.0, 10.0, 30.0)
# One-hot columns of a schema, by what their names begin with, beside its categories.
_ONE_HOT = ("EDUCATION_", "MARRIAGE_", "weekday-now-", "weekday-published-")


def of_weights(fit):
    """Returns the test predictions of a method that returns weights."""

    def predict(data: Problem, keys: jax.Array, epsilon: float):
        params, taken = fit(data, keys, epsilon)
        return data.test_features @ np.asarray(params, np.float64), taken

    return predict


def additive(data: Problem, key: jax.Array, epsilon: float) -> jax.Array:
    """The additive model without settings."""
    if data.max_features is not None:
        raise LeftOut("it chooses no features")
    solver = partial(solvers.dp_additive_model, smooth=data.smooth)
    return untuned(solver, data, key, epsilon).predict(data.test_features)


def dp_ebm(data: Problem, keys: jax.Array, epsilon: float):
    """InterpretML's private boosting machine at its defaults, numbers in four units.

    A range of targets starts at zero; its end is the best of several, by the test loss.
    """
    places = raw(data)
    ranges = [(0.0, x) for x in TARGET_RANGES] if data.loss == "squared" else [None]

    def predict(ends: tuple[float, float] | None) -> np.ndarray:
        options = {"feature_range": FEATURE_RANGE, "target_range": ends}
        runs = [boosted(data, places, key, epsilon, **options) for key in keys]
        return np.stack(runs, axis=1)

    found = {ends: predict(ends) for ends in ranges}
    best = min(found, key=lambda one: np.mean(data.mean_loss(found[one])))
    return found[best], {} if best is None else {"largest_target": best[1]}


def boosted(
    data: Problem,
    places: Mapping[tuple[int, ...], bool],  # features of a column: is it a category?
    key: jax.Array,
    epsilon: float,
    *,
    feature_range: tuple[float, float],  # of all numbers
    target_range: tuple[float, float] | None,  # None: targets are labels
) -> np.ndarray:
    """Returns test predictions of the boosting machine, with one column a category."""
    try:
        privacy: Any = importlib.import_module("interpret.privacy")
    except ImportError as error:
        raise LeftOut(f"interpret-core: not installed ({error})") from None

    def columns(features: np.ndarray) -> np.ndarray:
        found = np.empty((len(features), len(places)), object)
        for column, (indices, is_category) in enumerate(places.items()):
            part = features[:, indices]
            if is_category:
                part = np.where(part.any(1), part.argmax(1), -1).astype(str)
            found[:, column] = part.ravel()
        return found

    kinds = ["nominal" if one else "continuous" for one in places.values()]
    options: dict[str, Any] = {"feature_types": kinds, "n_jobs": 1}
    options |= {"epsilon": epsilon, "delta": data.delta}
    options["privacy_bounds"] = np.tile(feature_range, (len(kinds), 1))
    options["random_state"] = int(jax.random.randint(key, (), 0, 2**31 - 1))
    train, test = columns(data.features), columns(data.test_features)
    with warnings.catch_warnings():
        # It warns where it looks at what is not paid for.
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*a fixed random_state.*")
        if target_range is None:
            model = privacy.DPExplainableBoostingClassifier(**options)
            return model.fit(train, data.targets > 0).decision_function(test)
        low, high = target_range
        options |= {"privacy_target_min": low, "privacy_target_max": high}
        model = privacy.DPExplainableBoostingRegressor(**options)
        return model.fit(train, data.targets.astype(np.float64)).predict(test)


def raw(data: Problem) -> dict[tuple[int, ...], bool]:
    """Returns the features of each column of the data, and if it is a category."""
    known = load(data.name)
    groups = *(f"{name}=" for name in known.schema), *_ONE_HOT
    places: dict[str, list[int]] = {}
    for index, name in enumerate(known.feature_names[:-1]):
        group = next((one for one in groups if name.startswith(one)), name)
        places.setdefault(group, []).append(index)
    return {tuple(indices): name in groups for name, indices in places.items()}


def ceiling(fit):
    """Makes a `fit` of test predictions that are not private, made once."""
    kept = cache(fit)

    def predict(data: Problem, keys: jax.Array, epsilon: float):
        del epsilon
        return np.repeat(kept(data)[:, None], keys.size, axis=1), {}

    return predict


def bent(data: Problem) -> np.ndarray:
    """Returns predictions of the additive model of the finest knots, not private."""

    def expanded(features: np.ndarray) -> np.ndarray:
        heights = np.asarray(hats(jnp.asarray(features[:, data.smooth]), KNOTS))
        heights = np.delete(heights, KNOTS.index(0.0), axis=-1)
        return np.hstack([features, heights.reshape(len(features), -1)])

    train, test = expanded(data.features), expanded(data.test_features)
    if data.loss == "logistic":
        return test @ non_private_optimum(data.loss, train, data.targets)
    from sklearn.linear_model import RidgeCV

    model = RidgeCV(np.logspace(-2, 4, 7)).fit(train.astype(np.float64), data.targets)
    return model.predict(test)


def trees(data: Problem) -> np.ndarray:
    """Returns predictions of scikit-learn's boosted trees at their defaults."""
    from sklearn import ensemble

    if data.loss == "squared":
        model = ensemble.HistGradientBoostingRegressor(random_state=0)
        return model.fit(*data.train).predict(data.test_features)
    model = ensemble.HistGradientBoostingClassifier(random_state=0)
    return model.fit(*data.train).decision_function(data.test_features)


_CEILING = {"is_private": False, "needs": "schema"}
_LINES = of_weights(methods.optimum)
METHODS = {
    method.name: method
    for method in (
        Method(
            *("constant", "private constant"),
            of_weights(each(methods.private_constant)),
            needs="intercept",
        ),
        Method(*(LINEAR, f"**`{LINEAR}`**"), of_weights(each(methods.dp_linear_model))),
        Method(ADDITIVE, f"**`{ADDITIVE}`**", each(additive)),
        Method(EBM, "DP-EBM", dp_ebm, needs="schema"),
        Method("linear", "linear model, not private", _LINES, **_CEILING),
        Method("additive", "additive model, not private", ceiling(bent), **_CEILING),
        Method("trees", "boosted trees, not private", ceiling(trees), **_CEILING),
    )
}


def judged(method: Method, data: Problem, found: np.ndarray) -> dict[str, list[float]]:
    """Returns the loss of each column of predictions, and of labels the area, too."""
    del method
    judged = {"excess": [rounded(x) for x in data.mean_loss(found)]}
    if data.loss == "logistic" and data.is_real:
        from sklearn.metrics import roc_auc_score

        labels = data.test_targets > 0
        judged["auc"] = [rounded(roc_auc_score(labels, one)) for one in found.T]
    return judged


# What was asked: a problem, what is measured, and the bound at each epsilon.
ASKED: tuple[tuple[str, str, dict[float, float]], ...] = (
    ("credit_default", "excess", {0.1: 0.466, 0.5: 0.437, 1.0: 0.434, 3.0: 0.430}),
    ("credit_default", "auc", {0.5: 0.770, 1.0: 0.774, 3.0: 0.780}),
    ("adult", "excess", {0.1: 0.342, 0.5: 0.316, 1.0: 0.309, 3.0: 0.304, 8.0: 0.300}),
    ("adult", "auc", {1.0: 0.910}),
)
MEASURES = {"excess": "test loss", "auc": "area under the ROC curve"}


def parts(path: Path = PATH) -> dict[str, page.Part]:
    """Returns the parts of the page."""
    content = read(path)
    numbers = {one: Numbers(content, one) for one in MEASURES}
    judgements = comparison.verdicts_table(f"`{ADDITIVE}`", verdicts(numbers))
    return {
        "predictions_source": page.source(path),
        "predictions": _tables(numbers),
        "predictions_verdicts": judgements,
        "predictions_machines": page.machines(content),
        "feature_range": FEATURE_RANGE[1],
        "target_ranges": page.listed(TARGET_RANGES),
    }


def _tables(numbers: dict[str, Numbers]) -> Iterator[str]:
    titles = {name: method.title for name, method in METHODS.items()}
    losses = numbers["excess"]
    for name in names(losses, is_real=True):
        facts = losses.facts[name]
        yield (
            f"**{page.capitalized(facts['title'])}**: n = {facts['n']:,}, "
            f"d = {facts['d']:,}, {facts['loss']} loss; the best constant has "
            f"{_constant(facts):.5g}."
        )
        for measure, words in MEASURES.items():
            yield comparison.table_of_problem(
                *(numbers[measure], name, titles, words, cell),
                is_rival=lambda one: METHODS[one].is_private,
                best=max if measure == "auc" else min,
            )


def cell(one: Summary) -> str:
    """Returns a loss or an area, and its standard error where it has one."""
    error = f" ± {one.error:.1g}" if one.error > 1e-9 * abs(one.mean) else ""
    return f"{one.mean:.5g}{error}"


def names(numbers: Numbers, *, is_real: bool | None = None) -> list[str]:
    """Returns the problems, all or of one kind, in the order of their tables."""
    return [
        name
        for name in problems.NAMES
        if name in numbers.facts and is_real in (None, numbers.facts[name]["is_real"])
    ]


def verdicts(numbers: dict[str, Numbers]) -> Iterator[Verdict]:
    """Judges what the additive model was asked to reach."""
    losses = numbers["excess"]
    for problem, measure, bounds in ASKED:
        for epsilon, bound in bounds.items():
            one = numbers[measure].of(problem, ADDITIVE, epsilon)
            side = "at least" if measure == "auc" else "at most"
            title = losses.facts.get(problem, {"title": problem})["title"]
            asked = f"{title}, {MEASURES[measure]}, epsilon "
            asked += f"{epsilon:g}: {side} {bound:g}"
            if one is None:
                yield Verdict(asked, "", None)
            else:
                reached = one.mean >= bound if measure == "auc" else one.mean <= bound
                yield Verdict(asked, cell(one), reached)
    every = names(losses)
    for asked, bar, holds in (
        (
            "every real and made set, epsilon {:g}: loss at most that of "
            f"`{LINEAR}`, two standard errors, and 2 % of its lead on a constant",
            *(LINEAR, _as_linear),
        ),
        (
            "every set with an intercept, epsilon {:g}: loss at most that of the "
            "private constant and its standard error",
            *("constant", lambda _, ours, bar: ours.mean <= bar.mean + ours.error),
        ),
    ):
        for epsilon in EPSILONS:
            place = losses, every, (ADDITIVE, bar), epsilon
            yield comparison.judged(*place, asked.format(epsilon), holds, cell)
    for measure, sign in ("excess", 1), ("auc", -1):
        for epsilon in EPSILONS[1:]:
            yield comparison.judged(
                *(numbers[measure], every, (ADDITIVE, EBM), epsilon),
                f"every set, epsilon {epsilon:g}: ahead of DP-EBM, {MEASURES[measure]}",
                lambda _, ours, bar, sign=sign: sign * ours.mean < sign * bar.mean,
                cell,
            )


def _constant(facts: Mapping[str, Any]) -> float:
    return facts["reference_risk"] + facts["intercept_excess"]


def _as_linear(facts, ours: Summary, linear: Summary) -> bool:
    room = 2 * math.hypot(ours.error, linear.error)
    room += 0.02 * max(_constant(facts) - linear.mean, 0)
    return ours.mean <= linear.mean + room
