"""Additive models of many losses: the curves that they find, and of few records."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import losses, solvers
from dpjax.solvers.additive._curves import FINE, FINEST
from tests.unit.solvers.test_additive_model import NUM, bent, solve, table

STRAIGHT = {
    "squared": lambda means, rng: means + rng.standard_t(3, len(means)),
    "huber": lambda means, rng: 1e3 * (means + rng.standard_t(2, len(means))),
    "logistic": lambda means, rng: means > rng.logistic(size=len(means)),
    "poisson": lambda means, rng: rng.poisson(np.exp(means / 4)),
    "classes": lambda means, rng: (
        np.stack([means, -means, 0 * means]) + rng.gumbel(size=(3, len(means)))
    ).argmax(0),
}
LOSSES = {"poisson": losses.poisson(10.0), "classes": losses.softmax(3)}


def test_under_jit_the_same_model_is_chosen():
    data, options = amounts(), {"loss": "logistic", "epsilon": 20.0}
    solution = solve(**options, data=data)
    traced = jax.jit(lambda data, key: solve(**options, data=data, key=key).params)
    predictions = traced(data, jax.random.key(1)).predict(data[0])
    expected = solution.predict(data[0])
    np.testing.assert_allclose(predictions, expected, rtol=1e-2, atol=1e-2)


def made(name, *, is_bent):
    features, _ = table(5 * NUM)
    features[:, :2] = features[:, :2].clip(-4, 4)
    means = bent(features) if is_bent else features[:, 0] - features[:, 1]
    return features, STRAIGHT[name](means, np.random.default_rng(2))


def has_fine_curves(curves):
    """Tells whether curves bend at more than the knots -2, 0 and 2 of labels."""
    coarse = [curves.knots.index(knot) for knot in (-2.0, 0.0, 2.0)]
    heights = np.moveaxis(np.asarray(curves.heights), 1, -1)
    heights = heights.reshape(-1, len(curves.knots))
    few = [np.interp(curves.knots, (-2.0, 0.0, 2.0), row[coarse]) for row in heights]
    return not np.allclose(heights, few, atol=1e-5)


@pytest.mark.parametrize("name", sorted({*STRAIGHT} - {"poisson"}))
@pytest.mark.parametrize("is_bent", [False, True])
def test_columns_bend_where_that_gains(name, is_bent):
    data = made(name, is_bent=is_bent)
    solution = solve(LOSSES.get(name, name), data=data, epsilon=4.0)
    assert solution.params.knots == (FINEST if name == "logistic" else FINE)
    assert has_fine_curves(solution.params) == is_bent
    if name not in ("classes", "logistic"):  # labels have coarse curves, not lines
        assert bool(jnp.any(solution.params.heights != 0)) == is_bent


def test_curves_are_coarse_where_labels_are_rare():
    # The first model is inaccurate, so that its slopes have a mean.
    rng = np.random.default_rng(3)
    features = rng.normal(size=(16_000, 6))
    features[:, -1] = 1.0
    labels = features[:, 0] - 4 > rng.logistic(size=16_000)
    for key in range(3):
        options = {"epsilon": 0.5, "delta": 1e-5, "key": jax.random.key(key)}
        options |= {"smooth": range(5), "intercept": 5}
        model = solvers.dp_additive_model("logistic", (features, labels), **options)
        assert "gain" in model.stats
        assert not has_fine_curves(model.params)


@pytest.mark.parametrize("is_bent", [False, True])
def test_columns_of_counts_bend_at_little_cost(is_bent):
    loss, (features, counts) = LOSSES["poisson"], made("poisson", is_bent=is_bent)
    targets = loss.targets_of(jnp.asarray(counts, "float32"))

    def risk(columns, **options):
        solution = solve(loss, data=(columns, counts), epsilon=4.0, **options)
        assert "gain" not in solution.stats
        return float(jnp.mean(loss.value(solution.predict(columns), targets)))

    line = risk(features, smooth=())
    lead = risk(features[:, 2:], smooth=(), intercept=0) - line
    assert risk(features) < line + (-1 if is_bent else 0.01) * lead


def test_records_of_weight_zero_and_exposures_leave_the_rates():
    rng = np.random.default_rng(0)
    features, _ = table(5 * NUM)
    rates = np.exp(0.25 * bent(features.clip(-2, 2)))  # bounded, and a sum of curves
    exposures = rng.uniform(0.05, 1.0, len(rates))
    counts = rng.poisson(exposures * rates)
    is_wrong = np.arange(len(rates)) % 4 == 0
    data = features, np.where(is_wrong, 50, counts)
    options = {"offsets": np.log(exposures), "max_weight": 3.0}
    options["weights"] = np.where(is_wrong, 0.0, 3.0)
    predicted = solve(losses.poisson(10.0), data=data, **options).predict(features)
    assert np.corrcoef(predicted, np.log(rates))[0, 1] > 0.9
    ratio = np.sum(exposures * np.exp(predicted)) / np.sum(exposures * rates)
    assert abs(ratio - 1) < 0.15


def test_knots_of_a_sample_are_those_of_its_size():
    features, noise = table(5 * NUM, seed=1)
    data = features, bent(features) + noise
    solution = solve(data=data, epsilon=2.7, max_records=NUM)
    assert solution.params.knots
    error = solution.predict(features) - bent(features)
    assert np.mean(error**2) < 0.2 * np.var(bent(features))


def amounts(shift=0.0):
    """A column of zeros and, in one of seven records, amounts that decide the label."""
    features, noise = table()
    rng = np.random.default_rng(1)
    sizes = rng.choice([0.3125, 0.375, 0.4375], NUM)
    features[:, 0] = np.where(rng.random(NUM) < 0.14, sizes, 0.0)
    labels = np.where(features[:, 0] == 0, noise > features[:, 1], sizes == 0.375)
    features[:, 0] += shift
    return features, labels


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_a_column_that_is_mostly_zero_tells_amounts_apart(shift):
    solution = solve("logistic", data=amounts(shift), epsilon=20.0)
    assert solution.params.knots == FINEST
    assert solution.stats["shares"]["rare_columns"] == 0.005
    assert sum(solution.stats["shares"].values()) == pytest.approx(1.0)
    grid = shift + jnp.array([0.3125, 0.375, 0.4375])
    low, high, last = solution.params.curve(0, grid)
    if shift:  # the column is never zero: a line between wider knots
        np.testing.assert_allclose(high - low, last - high, rtol=1e-3, atol=1e-4)
    else:
        assert high - max(low, last) > 1.0


def test_under_jit_no_callback_is_shown_both_models():
    options = solvers.Execution(callback=lambda step, params: None)

    def run(*data):
        return solve("logistic", data=data, execution=options).params

    jax.eval_shape(run, *table(100))  # too few for a choice
    with pytest.raises(ValueError, match="execution must be without a callback"):
        jax.eval_shape(run, *table(1_000))
