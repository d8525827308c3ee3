"""An additive model: the curves it finds, when it has none, and what it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import losses
from dpjax.accounting import PrivacyGuarantee
from dpjax.solvers import (
    Curves,
    Execution,
    Solution,
    dp_additive_model,
    dp_linear_model,
)
from dpjax.solvers._additive_model import _FINE, Rule, _curves, _expanded
from dpjax.solvers._curves import hats
from tests.refusals import refused
from tests.solvers.linear.test_model import REFUSED

# Tests are of curves and checks; speed matters where users compile.
pytestmark = pytest.mark.usefixtures("compiled_quickly")

KNOTS = (-2.0, 0.0, 2.0)
NUM = 4_000


def table(num=NUM, seed=0):
    """Features, the last of which is an intercept, and noise."""
    rng = np.random.default_rng(seed)
    features = np.c_[rng.standard_t(3, (num, 2)), np.ones(num)].astype(np.float32)
    return features, rng.standard_t(3, num).astype(np.float32)


def solve(loss="squared", data=None, **changes):
    if data is None:
        features, noise = table()
        data = features, bent(features) + noise
    options = {"key": jax.random.key(1), "epsilon": 8.0, "delta": 1e-5}
    options |= {"smooth": (0, 1), "intercept": 2}
    return dp_additive_model(loss, data, **(options | changes))


def bent(features):
    return 3 * np.minimum(np.abs(features[:, 0]), 2) - features[:, 1]


def test_hat_functions_interpolate():
    values = jnp.array([-1e15, -3.0, -0.5, 0.0, 0.3, 0.5, 2.0, 1e15])
    found = np.asarray(hats(values, KNOTS))
    np.testing.assert_allclose(found.sum(axis=-1), 1, rtol=1e-6)
    assert ((found >= 0) & (found <= 1)).all()
    heights = np.array([3.0, 1.0, -2.0])
    np.testing.assert_allclose(
        found @ heights, np.interp(values, KNOTS, heights), rtol=1e-5
    )


@pytest.mark.parametrize("outputs", [(), (3,)])
def test_a_prediction_is_the_sum_of_its_curves(outputs):
    rng = np.random.default_rng(0)
    slopes = jnp.asarray(rng.normal(size=(4, *outputs)), "float32")
    heights = jnp.asarray(rng.normal(size=(2, 3, *outputs)), "float32")
    curves = Curves(slopes, heights, KNOTS, (3, 0), 1)
    rows = rng.standard_t(2, (50, 4)).astype(np.float32)
    rows[0] = [np.nan, np.nan, 1e30, -np.inf]
    found = curves.predict(rows)
    assert found.shape == (50, *outputs)
    assert jnp.isfinite(found).all()
    rows[:, 1] = 1.0  # the intercept's column is not read
    parts = [np.asarray(curves.curve(j, rows[:, j])) for j in range(4)]
    np.testing.assert_allclose(found[1:], sum(parts)[1:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("outputs", [(), (3,)])
@pytest.mark.parametrize("tail", [0.5, 0.05])
def test_curves_are_sums_of_the_functions_that_are_fitted(outputs, tail):
    rng = np.random.default_rng(0)
    features = rng.standard_t(2, (50, 4)).astype(np.float32)
    features[:, 1] = 1.0
    columns = _expanded(features, (3, 0), _FINE, tail)
    weights = jnp.asarray(rng.normal(size=(columns.shape[1], *outputs)), "float32")
    curves = _curves(weights, 4, (3, 0), tail, _FINE, 1)
    expected = np.float64(columns) @ np.float64(weights)
    np.testing.assert_allclose(curves.predict(features), expected, rtol=1e-4, atol=1e-4)


def test_a_function_that_bends_is_found():
    features, _ = table(seed=1)
    solution = solve()
    assert solution.params.knots == _FINE
    error = solution.predict(features) - bent(features)
    assert np.mean(error**2) < 0.05 * np.var(bent(features))
    curve = solution.params.curve(0, [0.0, 2.0, 20.0])
    np.testing.assert_allclose(curve - curve[0], [0.0, 6.0, 6.0], atol=2.0)


def test_the_tail_of_a_line_is_kept():
    features, noise = table()
    features[:, 0] = features[:, 0] ** 3  # up to thousands
    solution = solve(data=(features, 2 * features[:, 0] + noise))
    ends = solution.params.curve(0, [-500.0, 500.0])
    np.testing.assert_allclose((ends[1] - ends[0]) / 1_000, 2.0, rtol=0.05)


def test_at_a_small_budget_it_is_the_linear_model():
    features, noise = table()
    data = features, bent(features) + noise
    options = {"key": jax.random.key(0), "epsilon": 0.01, "delta": 1e-5, "intercept": 2}
    additive = dp_additive_model("squared", data, smooth=(0, 1), **options)
    assert additive.params.knots == ()
    options["key"] = jax.random.key(0)
    linear = dp_linear_model("squared", data, **options)
    np.testing.assert_array_equal(additive.params.slopes, linear.params)
    assert additive.privacy == linear.privacy


@pytest.mark.parametrize(
    ("loss", "counts"),
    [
        (losses.logistic, [[0, 0, 0], [0, 3, 11], [0, 0, 3]]),
        (losses.softmax(3), [[0, 0, 0], [0, 3, 11], [0, 0, 3]]),
        (losses.huber(1.0), [[0, 0, 0], [0, 0, 11], [0, 0, 0]]),
        (losses.squared, [[0, 0, 0], [0, 0, 11], [0, 0, 0]]),
        (losses.poisson(10.0), [[0, 0, 0], [0, 0, 11], [0, 0, 0]]),
    ],
)
def test_knots_follow_from_public_numbers(loss, counts):
    rule = Rule.of(loss)
    found = [
        [len(rule.knots(clear, 10, smooth)) for clear in (10, 300, 1e4)]
        for smooth in (0, 5, 100)
    ]
    assert found == counts


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


@pytest.mark.slow
@pytest.mark.parametrize("name", STRAIGHT)
@pytest.mark.parametrize("is_bent", [False, True])
def test_columns_bend_where_that_gains(name, is_bent):
    features, _ = table(5 * NUM)
    features[:, :2] = features[:, :2].clip(-4, 4)
    means = bent(features) if is_bent else features[:, 0] - features[:, 1]
    data = features, STRAIGHT[name](means, np.random.default_rng(2))
    solution = solve(LOSSES.get(name, name), data=data, epsilon=4.0)
    assert solution.params.knots == _FINE
    assert bool(jnp.any(solution.params.heights != 0)) == is_bent


@pytest.mark.parametrize("num", [100, 1_000])
def test_under_jit_no_callback_is_shown_both_models(num):
    features, noise = table(num)
    options = Execution(callback=lambda step, params: None)

    def run(key):
        return solve("logistic", data=(features, noise), key=key, execution=options)

    if num == 100:  # too few for a choice
        assert jnp.isfinite(jax.jit(run)(jax.random.key(0)).params.slopes).all()
    else:
        with pytest.raises(ValueError, match="execution must be without a callback"):
            jax.jit(run)(jax.random.key(0))


@pytest.mark.slow
def test_classes():
    features, noise = table()
    margins = bent(features) - 2 + noise
    solution = solve("logistic", data=(features, margins > 0))
    found = solution.predict(features)
    assert np.mean((found > 0) == (margins > 0)) > 0.8
    scores = np.c_[margins, -margins, np.zeros(NUM)]
    several = solve(losses.softmax(3), data=(features, scores.argmax(axis=1)))
    found = several.predict(features)
    assert found.shape == (NUM, 3)
    assert np.mean(found.argmax(axis=1) == scores.argmax(axis=1)) > 0.75


@pytest.mark.slow
def test_exposures_and_weights():
    rng = np.random.default_rng(0)
    features, _ = table(5 * NUM)
    rates = np.exp(0.25 * bent(features.clip(-2, 2)))  # bounded, and a sum of curves
    exposures = rng.uniform(0.05, 1.0, len(rates))
    counts = rng.poisson(exposures * rates)
    is_wrong = np.arange(len(rates)) % 4 == 0
    solution = solve(
        losses.poisson(10.0),
        data=(features, np.where(is_wrong, 50, counts)),
        offsets=np.log(exposures),
        weights=np.where(is_wrong, 0.0, 3.0),
        max_weight=3.0,
    )
    found = np.exp(solution.predict(features))
    assert np.corrcoef(np.log(found), np.log(rates))[0, 1] > 0.9
    assert abs(np.sum(exposures * found) / np.sum(exposures * rates) - 1) < 0.15


def test_many_runs_are_one_program():
    features, noise = table(100)

    def run(seed):
        key, data = jax.random.key(seed), (features, noise)
        return solve("logistic", data=data, epsilon=4.0, key=key).params

    mapped = jax.jit(jax.vmap(run))(jnp.arange(2))
    assert mapped.knots == KNOTS
    for i in range(2):
        one, of_many = run(i), jax.tree.map(lambda x, i=i: x[i], mapped)
        np.testing.assert_allclose(
            one.predict(features), of_many.predict(features), rtol=1e-3, atol=1e-3
        )


def test_the_price_is_that_of_the_linear_model():
    solution = solve(smooth=(0,))
    multiplier = solution.stats["noise_multiplier"]
    same = solve(smooth=(0,), epsilon=None, noise_multiplier=multiplier)
    np.testing.assert_array_equal(same.params.heights, solution.params.heights)
    assert same.privacy.dp_event == solution.privacy.dp_event


BAD = {
    "constant": lambda x: np.full_like(x, 3.0),
    "NaN": lambda x: np.full_like(x, np.nan),
    "two values": lambda x: np.sign(x),
    "huge": lambda x: np.sign(x) * 1e308,
}


@pytest.mark.parametrize("name", BAD)
def test_a_finite_model_whatever_the_column(name):
    features, noise = table()
    odd = np.float64(features)
    odd[:, 0] = BAD[name](odd[:, 0])
    with np.errstate(over="ignore"):
        solution = solve(data=(odd, 3 - features[:, 1] + noise))
    for leaf in jax.tree.leaves(solution.params):
        assert jnp.isfinite(leaf).all()
    with np.errstate(over="ignore"):
        found = np.asarray(solution.predict(odd))
    assert np.isfinite(found).all()
    if name != "huge":  # beside which nothing else is seen: the constant is left
        assert np.median(np.abs(found - (3 - features[:, 1]))) < 0.5


@pytest.mark.parametrize("num", [1, 3, 19])
def test_few_records_have_an_answer(num):
    features, noise = table(num)
    solution = solve(data=(features, noise), epsilon=1.0)
    assert solution.params.knots == ()
    assert jnp.isfinite(solution.params.slopes).all()


test_bad_arguments_are_named = refused(
    lambda changes: solve(**changes),
    *REFUSED,
    ({"smooth": 0}, "smooth must be a sequence of indices"),
    ({"smooth": "01"}, "smooth must be a sequence of indices"),
    ({"smooth": (0, 3)}, "smooth must be the index of one of 3 columns"),
    ({"smooth": (0.5,)}, "smooth must be the index of one of 3 columns"),
    ({"smooth": (True,)}, "smooth must be the index of one of 3 columns"),
    ({"smooth": (0, 0)}, "smooth must be of different columns"),
    ({"smooth": (0, -3)}, "smooth must be of different columns"),
    ({"smooth": (0, 2)}, "smooth must be of different columns, without the int"),
    ({"intercept": 3}, "intercept must be the index of one of 3 columns"),
)


def test_curves_name_what_does_not_fit():
    curves = Curves(jnp.ones(3), jnp.zeros((1, 0)), (), (0,), None)
    for call, message in (
        (lambda: curves.predict(np.ones(3)), "features must be an array of 3 columns"),
        (lambda: curves.curve(3, [0.0]), "column must be the index of one of 3"),
        (lambda: curves.curve(0, 0.0), "grid must be of one axis"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_a_solution_has_the_shape_of_each_column():
    rng = np.random.default_rng(0)
    heights = jnp.asarray(rng.normal(size=(1, 3)), "float32")
    curves = Curves(jnp.asarray([1.0, 5.0, -2.0]), heights, KNOTS, (2,), 1)
    solution = Solution(curves, PrivacyGuarantee.non_private(), {})
    shapes = solution.shapes()
    assert list(shapes) == [0, 2]
    rows = rng.uniform(-4, 4, (50, 3)).astype(np.float32)
    parts = [np.interp(rows[:, j], *shapes[j]) for j in shapes]
    found = solution.predict(rows)
    np.testing.assert_allclose(found, 5 + sum(parts), rtol=1e-5, atol=1e-5)


def test_a_solution_of_another_kind_names_what_it_lacks():
    solution = Solution({"w": jnp.ones(2)}, PrivacyGuarantee.non_private(), {})
    for call, message in (
        (lambda: solution.predict(np.ones((1, 2))), "params must be those of a linear"),
        (solution.shapes, "params must be those of an additive model"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
