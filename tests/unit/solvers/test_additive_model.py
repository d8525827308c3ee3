"""An additive model: the curves it finds, when it has none, and what it takes."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from dpjax import accounting, losses
from dpjax.solvers import Curves, Solution, dp_additive_model, dp_linear_model
from dpjax.solvers.additive import _curves, _model
from dpjax.solvers.additive._choice import rare_columns
from dpjax.solvers.additive._curves import FINE, FINEST, NARROW, Hats
from dpjax.solvers.linear._bends import with_bends
from dpjax.solvers.linear._kind import Bends, Examples, ModelKind
from dpjax.solvers.statistics._moments import Whitening
from dpjax.solvers.training._curves import errors_of_sums
from tests.unit.refusals import refused

KNOTS = (-2.0, 0.0, 2.0)
NUM = 4_000
NOTHING = accounting.PrivacyGuarantee.non_private()


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


@pytest.mark.parametrize("outputs", [(), (3,)])
def test_a_prediction_is_the_sum_of_its_curves(outputs):
    rng = np.random.default_rng(0)
    slopes = jnp.asarray(rng.normal(size=(4, *outputs)), "float32")
    heights = jnp.asarray(rng.normal(size=(2, 3, *outputs)), "float32")
    curves = Curves(slopes, heights, KNOTS, (3, 0), 1)
    rows = rng.standard_t(2, (50, 4)).astype(np.float32)
    rows[0] = [np.nan, np.nan, 1e30, -np.inf]
    predictions = curves.predict(rows)
    assert predictions.shape == (50, *outputs)
    assert jnp.isfinite(predictions).all()
    rows[:, 1] = 1.0  # the intercept's column is not read
    parts = [np.asarray(curves.curve(j, rows[:, j])) for j in range(4)]
    np.testing.assert_allclose(predictions[1:], sum(parts)[1:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("outputs", "tail"), [((), 0.5), ((3,), 0.05), ((), 0.0)])
@pytest.mark.parametrize("is_narrow", [False, True])
def test_curves_are_sums_of_the_functions_that_are_fitted(outputs, tail, is_narrow):
    rng = np.random.default_rng(0)
    features = rng.standard_t(2, (50, 4)).astype(np.float32)
    features[:, 1] = 1.0
    # Narrow functions stand beside the others.
    both = np.append(features, features[:, [0]], axis=1) if is_narrow else features
    columns = Hats((3, 0), FINE, tail, num_finest=int(is_narrow))(jnp.asarray(both))
    weights = jnp.asarray(rng.normal(size=(columns.shape[1], *outputs)), "float32")
    wide = weights[: -len(NARROW)] if is_narrow else weights
    curves = _curves.curves_of(wide, 4, (3, 0), tail, FINE, 1)
    if is_narrow:
        curves = _curves.at_finest(curves, jnp.array([1]), weights[-len(NARROW) :])
        assert curves.knots == FINEST
    expected = np.float64(columns) @ np.float64(weights)
    np.testing.assert_allclose(curves.predict(features), expected, rtol=1e-4, atol=1e-4)


def test_bends_are_white_and_beside_their_lines():
    rng = np.random.default_rng(0)
    columns = jnp.asarray(rng.standard_t(3, (5_000, 3)), "float32")
    weights = jnp.asarray(rng.random(5_000), "float32")
    bends = Bends((2, 0), (-2.0, -0.5, 0.0, 1.0, 2.0))
    kind = ModelKind(losses.logistic, True, False, None, bends=bends)
    examples = Examples(columns, 0 * weights, 0 * weights, weights)
    whitening = Whitening(jnp.zeros(0), jnp.zeros((0, 0)), jnp.ones(()))
    empty, mean = (whitening, jnp.zeros((5000, 0))), jnp.mean(weights)
    _, z = with_bends(kind, examples, *empty, mean, jax.random.key(0), 1e-6)
    lines = np.clip(columns[:, (2, 0)], -2, 2)
    moments = np.cov(np.c_[z, lines].T, aweights=weights) * float(mean)
    for own in (slice(0, 3), slice(3, 6)):
        # The least eigenvalue that is added leaves them below one.
        np.testing.assert_allclose(moments[own, own], np.eye(3), atol=0.2)
    np.testing.assert_allclose([moments[:3, 6], moments[3:6, 7]], 0, atol=0.02)


@pytest.mark.parametrize(("epsilon", "knots"), [(0.7, _curves.COARSE), (2.0, FINE)])
def test_labels_have_split_curves_where_records_suffice(epsilon, knots):
    assert [_curves.may_be_split(n, 9, 4, 2.0) for n in (2_000, 2_300)] == [False, True]
    features = np.c_[np.random.default_rng(0).normal(size=(4_000, 2)), np.ones(4_000)]
    rare = np.abs(features[:, 0]) > 2  # no line tells these apart
    labels = np.where(rare, 1.0, -1.0)

    def fit(features, labels):
        changes = {"key": jax.random.key(1), "epsilon": epsilon}
        return solve("logistic", (features, labels), **changes).params

    curves = fit(features, labels)
    assert curves.knots == knots  # the coarse curves are released at fine ones, too
    predicted = np.asarray(curves.predict(features))
    under_jit = jax.jit(fit)(features, labels).predict(features)
    np.testing.assert_allclose(under_jit, predicted, atol=1e-3)
    assert predicted[rare].mean() > predicted[~rare].mean() + 1.5


@pytest.mark.parametrize(
    ("loss", "gain", "slope_norm", "terms"),
    [
        ("logistic", -1.0, 1.0, "lines"),
        ("logistic", 1e-4, 1.0, "coarse"),
        ("logistic", 1.0, 1.0, "fine"),
        ("squared", 1e-3, 1.0, "fine"),  # of light tails
        ("squared", 1e-3, 1e-3, "lines"),  # of heavy tails
        ("huber", 1e-3, 1.0, "lines"),
    ],
)
def test_a_gain_chooses_the_knots(loss, gain, slope_norm, terms, monkeypatch):
    rng = np.random.default_rng(0)
    features = np.c_[rng.normal(size=(4_000, 2)), np.ones(4_000)]
    targets = np.sign(rng.normal(size=4_000))
    released = jnp.asarray(gain), jnp.asarray(slope_norm)
    monkeypatch.setattr(_model, "released_gain", lambda *_, **__: released)
    curves = solve(loss, (features, targets)).params
    heights = dict(zip(curves.knots, np.moveaxis(curves.heights, 1, 0), strict=True))
    assert np.any(curves.heights) == (terms != "lines")
    assert (np.abs(heights[1.0] - heights[2.0] / 2).max() > 1e-5) == (terms == "fine")


def test_which_columns_are_mostly_zero():
    beside = np.arange(1_000)[:, None] < 1_000 * np.array([0.5, 0.05, 0.14, 0.0, 0.16])
    features = np.where(beside, 2.0, 0.03).astype(np.float32)

    def found(weights):
        zeros = jnp.zeros(len(weights))
        records = Examples(jnp.asarray(features), zeros, zeros, jnp.asarray(weights))
        places, num = rare_columns(None, records, jax.random.key(0), 1e-3)
        return places[:num].tolist()

    assert found(np.ones(1_000, "float32")) == [2, 1]
    # 40 of 900 in column 2, none in 1.
    assert found(np.float32(np.arange(1_000) >= 100)) == [4, 2]
    assert found(np.float32(np.arange(1_000) < 50)) == [3]


def test_the_choice_of_columns_has_the_stated_noise():
    ones = jnp.ones(1_000)
    features = jnp.where(jnp.arange(1_000) < 100, 2.0, 0.0)[:, None]
    records = Examples(features, 0 * ones, 0 * ones, ones)
    # The mean is -0.05, one stddev below zero: replacing a record moves it by 1 / n.
    multiplier = 0.05 * 1_000
    keys = jax.random.split(jax.random.key(0), 1_000)
    _, nums = jax.vmap(lambda key: rare_columns(None, records, key, multiplier))(keys)
    # Phi(1) is .841; with half of the noise it would be .977.
    assert 0.8 < jnp.mean(nums) < 0.88


def test_the_price_is_that_of_the_linear_model():
    features, _ = table(seed=1)
    solution = solve()
    same = solve(epsilon=None, noise_multiplier=solution.stats["noise_multiplier"])
    np.testing.assert_array_equal(same.params.heights, solution.params.heights)
    assert same.privacy.dp_event == solution.privacy.dp_event
    assert solution.params.knots == FINE
    error = solution.predict(features) - bent(features)
    assert np.mean(error**2) < 0.05 * np.var(bent(features))
    curve = solution.params.curve(0, [0.0, 2.0, 20.0])
    np.testing.assert_allclose(curve - curve[0], [0.0, 6.0, 6.0], atol=2.0)


def test_a_line_keeps_its_slope_in_the_tail():
    features, noise = table()
    features[:, 0] = features[:, 0] ** 3  # up to thousands
    solution = solve(data=(features, 2 * features[:, 0] + noise))
    ends = solution.params.curve(0, [-500.0, 500.0])
    np.testing.assert_allclose((ends[1] - ends[0]) / 1_000, 2.0, rtol=0.05)


def test_at_a_small_budget_it_is_the_linear_model():
    features, noise = table()
    additive = solve(epsilon=0.01)
    assert additive.params.knots == ()
    options = {"key": jax.random.key(1), "epsilon": 0.01, "delta": 1e-5, "intercept": 2}
    linear = dp_linear_model("squared", (features, bent(features) + noise), **options)
    np.testing.assert_array_equal(additive.params.slopes, linear.params)
    assert additive.privacy == linear.privacy


@pytest.mark.parametrize("outputs", [(), (3,)])
def test_curves_are_the_same_at_finer_knots(outputs):
    rng = np.random.default_rng(0)
    features = rng.standard_t(2, (50, 3)).astype(np.float32)
    weights = jnp.asarray(rng.normal(size=(3 + 4, *outputs)), "float32")
    bends = Bends((2, 0), _curves.COARSE)
    curves = _curves.curves_of(weights, 3, (2, 0), 1.0, _curves.COARSE, None, 1.0, 1.0)
    columns = np.c_[features, bends(jnp.asarray(features))]
    expected = np.float64(columns) @ np.float64(weights)
    for params in (curves, _curves.at_knots(curves, FINE)):
        predictions = params.predict(features)
        np.testing.assert_allclose(predictions, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("direction", "sign"), [("increasing", 1), ("decreasing", -1)])
def test_a_monotone_curve_is_the_nearest_one(direction, sign):
    heights = jnp.asarray(np.random.default_rng(0).normal(size=(1, 5)))
    noisy = Curves(jnp.array([0.3, 9.0]), heights, (-2.0, -1.0, 0.0, 1.0, 2.0), (0,), 1)
    nearest, rows = noisy.monotone({0: direction}), np.c_[noisy.knots, np.ones(5)]
    assert np.all(np.diff(sign * nearest.curve(0, jnp.linspace(-9, 9, 181))) >= -1e-5)
    assert abs(nearest.curve(0, [0.0])[0]) < 1e-6
    before, after = (sign * x.predict(rows).astype(float) for x in (noisy, nearest))
    # Differences are orthogonal to the result, and point away from every ascent.
    shares = np.diff(scipy.special.ndtr([-np.inf, -1.5, -0.5, 0.5, 1.5, np.inf]))
    moved = shares * (before - after)
    assert np.any(np.abs(moved) > 0.01)
    np.testing.assert_allclose([moved @ after, moved.sum()], 0, atol=1e-5)
    assert np.all(np.cumsum(moved) >= -1e-6)


def test_knots_follow_from_public_numbers():
    most = losses.logistic, losses.softmax(3), losses.huber(1.0), losses.squared
    cases = [(loss, [[0, 0, 0], [0, 11, 11], [0, 0, 3]]) for loss in most]
    amounts = [[0, 0, 0], [0, 3, 13], [0, 0, 3]]
    for loss, counts in [*cases, (losses.poisson(10.0), amounts)]:
        sizes = [loss.num_outputs * n for n in (300, 2_000, 25_000)]
        assert counts == [
            [len(_curves.knots_of(loss, n, 10, smooth, 1.0)) for n in sizes]
            for smooth in (0, 5, 100)
        ]
    # Where noise would hide a gain, models of labels have three knots at most.
    knots = [_curves.knots_of(losses.logistic, n, 9, 4, 30.0) for n in (9_000, 10**6)]
    assert [*map(len, knots)] == [3, 11]
    kind = ModelKind(losses.logistic, True, False, None)
    terms = _model.Terms(kind, 10, (), 9, FINE, False)
    num = 60 * (10 + 2 * len(NARROW))
    assert terms.may_be_finest(num, 1.0)
    assert not terms.may_be_finest(num - 1, 1.0)
    assert not terms._replace(knots=KNOTS).may_be_finest(10**9, 1.0)


@pytest.mark.parametrize("fit", [dp_additive_model, dp_linear_model])
def test_a_fit_on_a_sample_has_every_option(fit, monkeypatch):
    def on_sample(again, data, max_records, **given):
        assert again.func is fit
        passed.update({**again.keywords, **given, "max_records": max_records})
        return Solution(None, NOTHING, {})

    passed = {}
    monkeypatch.setitem(fit.__globals__, "on_sample", on_sample)
    options = {"smooth": (0,)} if fit is dp_additive_model else {}
    fit("squared", table(9), key=jax.random.key(0), epsilon=1.0, delta=0.1, **options)
    others = {"loss", "data", "noise_multiplier"}  # of which the last is refused
    assert {*inspect.signature(fit).parameters} - {*passed} == others


def test_a_solution_has_the_shape_of_each_column():
    rng = np.random.default_rng(0)
    heights = jnp.asarray(rng.normal(size=(1, 3)), "float32")
    curves = Curves(jnp.asarray([1.0, 5.0, -2.0]), heights, KNOTS, (2,), 1)
    shapes = Solution(curves, NOTHING, {}).shapes()
    assert list(shapes) == [0, 2]
    rows = rng.uniform(-4, 4, (50, 3)).astype(np.float32)
    expected = 5 + sum(np.interp(rows[:, j], *shapes[j]) for j in shapes)
    np.testing.assert_allclose(curves.predict(rows), expected, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def banded():
    features, noise = table(20_000)
    features[:, :2] = np.clip(features[:, :2], -2, 2)
    return solve(data=(features, bent(features) + noise), epsilon=4.0, intervals=True)


def test_bands_hold_curves_of_their_span(banded):
    assert banded.params.knots == (-2.0, -1.0, 0.0, 1.0, 2.0)
    assert banded.params.slopes[:2].tolist() == [0, 0]  # constant beyond the knots
    bands = banded.bands(0.999)
    assert list(bands) == [0, 1]
    curves = lambda x: 3 * np.minimum(abs(x), 2), lambda x: -np.clip(x, -2, 2)
    for column, curve in enumerate(curves):
        grid, low, high = map(np.asarray, bands[column])
        assert ((low <= curve(grid)) & (curve(grid) <= high)).all()
        assert ((low < high) == (grid != 0)).all()  # a difference from that at zero
        assert (high - low)[np.abs(grid) == 2].max() < 2
        np.testing.assert_allclose((low + high) / 2, banded.shapes()[column][1], 1e-4)
    # Two columns have seven numbers each, at which all bands hold together.
    together = banded.bands(0.986, simultaneous=True)[1]
    np.testing.assert_allclose(together, bands[1], rtol=1e-4)


def test_the_error_of_a_curve_is_that_of_a_sum_of_params(banded):
    """The same predictions, as a linear map of the weights, by finite differences."""
    curves, errors = banded.params, banded.standard_errors
    flat, restore = jax.flatten_util.ravel_pytree(curves)
    grid = jnp.array([-7.0, -1.3, 0.2, 2.0, 3.0])
    each = np.asarray(jax.flatten_util.ravel_pytree(errors)[0], float)
    covariance = np.asarray(banded.correlations, float) * np.outer(each, each)

    @jax.jit
    @jax.jacobian
    def slopes_of(flat):
        return [restore(flat).curve(column, grid) for column in range(3)]

    for column, slopes in enumerate(np.asarray(slopes_of(flat), float)):
        expected = np.sqrt(np.sum(slopes @ covariance * slopes, axis=1))
        stated = curves.errors(errors, banded.correlations, column, grid)
        np.testing.assert_allclose(stated, expected, rtol=1e-3)


def test_an_error_that_cancels_is_not_zero():
    """Two parts that are as good as equal leave the rounding of their sum."""
    opposite = jnp.array([[1.0, -1.0], [-1.0, 1.0]])
    factors = jnp.array([[1.0, 1.0], [2.0, 1.0]])
    for unit in (1.0, 1e-25):  # whose square is below float32
        stated = errors_of_sums(factors, jnp.full(2, unit), opposite)
        assert 0 < stated[0] / unit < 0.01
        np.testing.assert_allclose(stated[1] / unit, 1.0, rtol=1e-3)


def test_a_curve_has_no_error_where_it_reads_a_height_without_one():
    curves = Curves(jnp.ones(1), jnp.array([[0.0, jnp.inf]]), (0.0, 1.0), (0,), None)
    stated = curves.errors(curves, jnp.eye(3), 0, [-1.0, 0.0, 0.5, jnp.nan])
    assert stated.tolist() == [1.0, 0.0, np.inf, 0.0]


@pytest.mark.parametrize("value", [0.0, 1.0, np.nan, 1e38, -np.inf])
def test_bands_are_infinite_or_wide_whatever_the_values(value):
    features, noise = table(200)
    features[:, 0] = value
    noise[:3] = value
    solution = solve(data=(features, noise), epsilon=9_000.0, intervals=True)
    assert solution.params.knots
    for grid, low, high in solution.bands().values():
        assert jnp.all((high > low) | (grid == 0))


def test_knots_of_bands_follow_from_public_numbers():
    def solution_and_bands(features, noise):
        solution = solve(data=(features, noise), epsilon=0.3, intervals=True)
        return solution, solution.bands()

    sizes = [len(_curves.banded_knots_of(n, 3, 2, 1.0)) for n in (2_000, 5_000, 6_000)]
    assert sizes == [0, 3, 5]
    assert _curves.banded_knots_of(10**9, 3, 0, 1.0) == ()
    few, bands = jax.eval_shape(solution_and_bands, *table())
    assert (few.params.knots, few.correlations.shape) == ((), (3, 3))
    assert bands[0][1].shape == (3,)


def test_bands_cost_no_more_than_the_budget(banded):
    assert sum(banded.stats["shares"].values()) == pytest.approx(1.0)
    assert "gain" not in banded.stats  # there is no choice that they would not count
    assert banded.privacy.epsilon == 4.0
    expected = accounting.noise_multiplier(4.0, 1e-5, accounting.Sampling(num_steps=1))
    assert banded.stats["noise_multiplier"] == expected


LINES = Curves(np.ones(3, "f4"), np.zeros((1, 0), "f4"), (), (0,), None)
ADDITIVE, OTHER = (Solution(x, NOTHING, {}) for x in (LINES, {"w": np.ones(2)}))
test_solutions_name_what_does_not_fit = refused(
    lambda call: call(),
    (lambda: LINES.predict(np.ones(3)), "features must be of shape .n, 3"),
    (lambda: LINES.curve(3, [0.0]), "column must be the index of a column"),
    (lambda: LINES.curve(0, 0.0), "grid must be an array of ndim 1"),
    (lambda: OTHER.predict(np.ones((1, 2))), "params must be those of a linear"),
    (OTHER.shapes, "params must be those of an additive model"),
    (OTHER.bands, "params must be those of an additive model"),
    (ADDITIVE.bands, "standard_errors must be given"),
    (lambda: ADDITIVE.bands(1.0), "level must be strictly between"),
)
