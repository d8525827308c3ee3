"""What predictions of a table are worth: models that need not be linear.

A fit returns test predictions here, so that curves and trees stand beside lines. The
"excess" of a row is the test loss itself, and "auc" the area under the ROC curve.
"""

import warnings
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.record import RESULTS, rounded
from benchmarks.utility import methods
from benchmarks.utility.hindsight import on_device
from benchmarks.utility.methods import Method, each
from benchmarks.utility.peers import LeftOut
from benchmarks.utility.problems import Problem, non_private_optimum
from dpjax import datasets, solvers
from dpjax.solvers._additive_model import _FINE as KNOTS
from dpjax.solvers._curves import hats

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
    return solvers.dp_additive_model(
        data.loss,
        on_device(data),
        key=key,
        epsilon=epsilon,
        delta=data.delta,
        smooth=data.smooth,
        intercept=data.intercept,
    ).predict(data.test_features)


def dp_ebm(data: Problem, keys: jax.Array, epsilon: float):
    """InterpretML's private boosting machine, at its defaults.

    It takes categories as such, and numbers within four public units. A range of
    targets starts at zero; its end is the best of several, by the test loss.
    """
    try:
        from interpret import privacy
    except ImportError as error:
        raise LeftOut(f"interpret-core: not installed ({error})") from None
    kinds, train, test = raw(data)

    def predict(key: jax.Array, largest: float | None) -> np.ndarray:
        options: dict[str, Any] = {
            "feature_types": kinds,
            "privacy_bounds": np.tile(FEATURE_RANGE, (len(kinds), 1)),
            "epsilon": epsilon,
            "delta": data.delta,
            "random_state": int(jax.random.randint(key, (), 0, 2**31 - 1)),
            "n_jobs": 1,
        }
        with warnings.catch_warnings():
            # It warns where it looks at what is not paid for.
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", ".*a fixed random_state.*")
            if largest is None:
                model = privacy.DPExplainableBoostingClassifier(**options)
                return model.fit(train, data.targets > 0).decision_function(test)
            options |= {"privacy_target_min": 0.0, "privacy_target_max": largest}
            model = privacy.DPExplainableBoostingRegressor(**options)
            return model.fit(train, data.targets.astype(np.float64)).predict(test)

    if data.loss == "logistic":
        return np.stack([predict(key, None) for key in keys], axis=1), {}
    found = {
        largest: np.stack([predict(key, largest) for key in keys], axis=1)
        for largest in TARGET_RANGES
    }
    best = min(found, key=lambda one: np.mean(data.mean_loss(found[one])))
    return found[best], {"largest_target": best}


def raw(data: Problem) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Returns the types of columns, and them of both parts, each category a text."""
    known = datasets.load(data.name)
    groups = *(f"{name}=" for name in known.schema), *_ONE_HOT
    places: dict[str, list[int]] = {}
    for index, name in enumerate(known.feature_names[:-1]):
        group = next((one for one in groups if name.startswith(one)), name)
        places.setdefault(group, []).append(index)
    kinds = ["nominal" if one in groups else "continuous" for one in places]

    def columns(features: np.ndarray) -> np.ndarray:
        found = np.empty((len(features), len(places)), object)
        for column, indices in enumerate(places.values()):
            part = features[:, indices]
            if kinds[column] == "nominal":
                part = np.where(part.any(1), part.argmax(1), -1).astype(str)
            found[:, column] = part.ravel()
        return found

    return kinds, columns(data.features), columns(data.test_features)


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

    optimum = non_private_optimum(data.loss, expanded(data.features), data.targets)
    return expanded(data.test_features) @ optimum


def trees(data: Problem) -> np.ndarray:
    """Returns predictions of scikit-learn's boosted trees at their defaults."""
    from sklearn import ensemble

    if data.loss == "squared":
        model = ensemble.HistGradientBoostingRegressor(random_state=0)
        return model.fit(*data.train).predict(data.test_features)
    model = ensemble.HistGradientBoostingClassifier(random_state=0)
    return model.fit(*data.train).decision_function(data.test_features)


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
        Method(
            *("linear", "linear model, not private"),
            of_weights(methods.optimum),
            is_private=False,
            needs="schema",
        ),
        Method(
            *("additive", "additive model, not private", ceiling(bent)),
            is_private=False,
            needs="schema",
        ),
        Method(
            *("trees", "boosted trees, not private", ceiling(trees)),
            is_private=False,
            needs="schema",
        ),
    )
}


def judged(method: Method, data: Problem, found: np.ndarray) -> dict[str, list[float]]:
    """Returns the loss of each column of predictions, and of labels the area, too."""
    del method
    judged = {"excess": [rounded(x) for x in data.mean_loss(found)]}
    if data.is_real and data.loss == "logistic":
        from sklearn.metrics import roc_auc_score

        labels = data.test_targets > 0
        judged["auc"] = [rounded(roc_auc_score(labels, one)) for one in found.T]
    return judged
