"""Losses of a prediction: values, derivatives, declared bounds, ranges, extremes."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from dpjax import losses
from dpjax.losses._residual_losses import Huber, named

RNG = np.random.default_rng(20261123)


def _tweedie(eta, y, p, low, high, most):
    """The formula, continued by parabolas outside [log low, log high], then lines."""
    inner = np.clip(eta, np.log(low), np.log(high))
    if p == 1:
        value = np.exp(inner) - 1 - y * inner
    elif p == 2:
        value = inner + y * (np.exp(-inner) - 1)
    else:
        rising = (np.exp((2 - p) * inner) - 1) / (2 - p)
        value = rising + y * (np.exp((1 - p) * inner) - 1) / (p - 1)
    slope = np.exp((2 - p) * inner) - y * np.exp((1 - p) * inner)
    q, beyond = 2 - p, eta - inner
    bend = max(q * m**q + (p - 1) * most * m ** (q - 1) for m in (low, high))
    for m, change, sign in ((low, 2 * low**q, -1), (high, most * high ** (q - 1), 1)):
        bent = min(m**q, bend)
        part = np.clip(sign * beyond, 0, change / bent)
        value = value + bent * part * (np.maximum(sign * beyond, 0) - part / 2)
    return value + slope * beyond


def _huber(eta, y, t=1.5):
    s = np.abs(eta - y)
    return np.where(s <= t, s**2 / 2, t * s - t**2 / 2)


def _hinge(eta, y, h=0.5):
    z = eta * y
    inner = np.where(z < 1 - h, 1 - z, (1 + h - z) ** 2 / 4 / h)
    return np.where(z > 1 + h, 0.0, inner)


_sharp_hinge = partial(_hinge, h=0.01)
POISSON = losses.poisson(4.0, max_target=9.0)
GAMMA = losses.gamma(min_mean=0.2, max_target=6.0)
TWEEDIE = losses.tweedie(1.5, min_mean=0.2, max_mean=3.0, max_target=6.0)
WIDE = losses.tweedie(1.2, min_mean=0.01, max_mean=50.0, max_target=20.0)
# Name: the loss, its formula in float64, the least and the largest target to try.
CASES = {
    "squared": (losses.squared, lambda e, y: (e - y) ** 2 / 2, -3, 3),
    "absolute": (losses.absolute, lambda e, y: np.abs(e - y), -3, 3),
    "huber": (losses.huber(1.5), _huber, -3, 3),
    "biweight": (
        losses.biweight(2.5),
        lambda e, y: 2.5**2 / 6 * (1 - (1 - np.minimum(((e - y) / 2.5) ** 2, 1)) ** 3),
        *(-3, 3),
    ),
    "logistic": (losses.logistic, lambda e, y: -scipy.special.log_expit(y * e), -1, 1),
    "smoothed hinge": (losses.MarginLoss.smoothed_hinge(), _hinge, -1, 1),
    "sharp hinge": (losses.MarginLoss.smoothed_hinge(0.01), _sharp_hinge, -1, 1),
    "poisson": (POISSON, lambda e, y: _tweedie(e, y, 1, 4e-6, 4.0, 9), 0, 9),
    "gamma": (GAMMA, lambda e, y: _tweedie(e, y, 2, 0.2, 6.0, 6), 0, 6),
    "tweedie": (TWEEDIE, lambda e, y: _tweedie(e, y, 1.5, 0.2, 3.0, 6), 0, 6),
    "wide": (WIDE, lambda e, y: _tweedie(e, y, 1.2, 0.01, 50.0, 20), 0, 20),
}
cases = pytest.mark.parametrize("name", CASES)
LOSSES = {name: loss for name, (loss, *_) in CASES.items()}
ALL = LOSSES | {"softmax": losses.softmax(4)}
SMOOTH = ["squared", "logistic", "poisson", "gamma", "tweedie", "wide"]
FINITE = [0, 1, -1, 0.5, 1e-45, -1e-45, 1e3, 1e18, -1e18, 3e38, -3e38]
WILD = np.array([*FINITE, np.inf, -np.inf, np.nan], np.float32)


def draw(name, num=400, spread=4.0):
    _, _, low, high = CASES[name]
    predictions = spread * RNG.standard_t(3, size=num)
    if low == -1:
        return predictions, RNG.choice([-1.0, 1.0], size=num)
    return predictions, np.clip(RNG.uniform(low - 1, high + 1, size=num), low, high)


def derivatives(loss):
    @jax.jit
    def evaluate(*points):
        slope_fn = jax.grad(loss.value)
        methods = loss.value, loss.derivative, loss.curvature
        declared = [method(*points) for method in methods]
        slopes = jax.vmap(slope_fn)(*points)
        if loss.num_outputs > 1:
            return *declared, slopes
        return *declared, slopes, jax.vmap(jax.grad(slope_fn))(*points)

    return evaluate


@cases
def test_value_and_derivatives_are_those_of_the_formula(name):
    loss, formula, *_ = CASES[name]
    predictions, targets = draw(name)
    expected = formula(predictions, targets)
    with jax.enable_x64(True):
        value, slope, bend, slopes, bends = derivatives(loss)(predictions, targets)
        np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(slope, slopes, 1e-10, 1e-12)
        np.testing.assert_allclose(bend, bends, 1e-10, 1e-12)
    points = [jnp.float32(x) for x in (predictions, targets)]
    rough = loss.value(*points)
    assert rough.dtype == jnp.float32
    np.testing.assert_allclose(rough, expected, rtol=3e-5, atol=3e-6)
    np.testing.assert_allclose(loss.derivative(*points), slopes, 1e-4, 3e-6)


def search(loss, low, high):
    """The largest |derivative| and extreme rises, on a grid and nearer to the best."""
    targets = np.array([-1.0, 1.0]) if low == -1 else np.linspace(low, high, 21)
    center, width = np.zeros((1, targets.size)), 20.0
    largest, rises = 0.0, []
    for _ in range(6):
        grid = center + width * np.linspace(-1, 1, 4001)[:, None]
        points = jnp.asarray(grid), jnp.asarray(np.broadcast_to(targets, grid.shape))
        slopes = np.asarray(loss.derivative(*points))
        rise = np.diff(slopes, axis=0) / np.diff(grid, axis=0)
        largest = max(largest, np.abs(slopes).max())
        rises += [rise.max(), rise.min()]
        best = np.abs(rise).argmax(axis=0)
        center, width = np.take_along_axis(grid, best[None], axis=0), width / 8
    return largest, max(rises), min(rises)


@cases
def test_properties_hold_for_targets_beyond_the_range(name):
    # A solver may pass any target: the loss is convex, smooth and bounded there too.
    loss = LOSSES[name]
    targets = np.array([0, 0.3, 1e3, -1e-9, -1e-3, -1, -5, -1e3, np.inf, -np.inf])
    etas, targets = np.meshgrid(np.linspace(-12, 12.1, 2400), targets, indexing="ij")
    with jax.enable_x64(True):
        points = jnp.asarray(etas).ravel(), jnp.asarray(targets).ravel()
        value, slopes, _, gradients, _ = map(np.asarray, derivatives(loss)(*points))
    is_finite = np.isfinite(value)
    np.testing.assert_allclose(slopes[is_finite], gradients[is_finite], 1e-9, 1e-9)
    assert np.abs(slopes).max() <= loss.derivative_bound
    slopes = slopes.reshape(etas.shape)
    rises = np.diff(slopes, axis=0) / np.diff(etas, axis=0)
    if loss.curvature_bound < math.inf:
        assert np.abs(rises).max() <= loss.curvature_bound * (1 + 1e-9)
    assert rises.min() >= -1e-7 or not loss.is_convex


@cases
def test_declared_bounds_outlive_a_search_and_are_near_to_it(name):
    loss, _, low, high = CASES[name]
    with jax.enable_x64(True):
        slope, steepest, lowest = search(loss, low, high)
    assert slope <= loss.derivative_bound * (1 + 1e-12)
    assert max(steepest, -lowest) <= loss.curvature_bound * (1 + 1e-7)
    if loss.derivative_bound < math.inf:
        assert slope >= 0.99 * loss.derivative_bound
    if loss.curvature_bound < math.inf:
        assert steepest >= 0.99 * loss.curvature_bound
    assert (lowest >= -1e-7 * max(steepest, 1)) == loss.is_convex
    if getattr(loss, "is_non_increasing", False):
        assert (loss.derivative(jnp.linspace(-50, 50, 10_001)) <= 0).all()


def test_bounds_hold_for_any_range():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        for _ in range(30):
            p = rng.choice([1.0, 2.0, rng.uniform(1.001, 1.999)])
            low = 10 ** rng.uniform(-4, 1)
            high, most = low * 10 ** rng.uniform(0, 4), 10 ** rng.uniform(-2, 4)
            if p == 1:
                loss = losses.poisson(high, max_target=most)
            elif p == 2:
                loss = losses.gamma(min_mean=low, max_target=high)
            else:
                loss = losses.tweedie(p, min_mean=low, max_mean=high, max_target=most)
            slope, steepest, lowest = search(loss, 0.0, loss.target_range[1])
            assert slope <= loss.derivative_bound * (1 + 1e-12)
            # Slopes are rounded; steps are of 40 / 4,000 / 8^5.
            rounding, bound = 2.0**-50 * slope / (0.01 / 8**5), loss.curvature_bound
            assert 0.9 * bound <= steepest <= bound * (1 + 1e-6) + rounding
            assert lowest >= -1e-6 * steepest - rounding


def test_softmax_is_the_formula():
    loss = losses.softmax(4)
    predictions = 3 * RNG.standard_t(3, size=(200, 4))
    labels = RNG.integers(4, size=200)
    shares = scipy.special.softmax(predictions, axis=1)
    own = np.take_along_axis(predictions, labels[:, None], axis=1)
    # Of the other classes alone: -log(share) is rounded where the share is nearly one.
    odds = np.where(np.eye(4)[labels] == 1, 0, np.exp(predictions - own)).sum(axis=1)
    slopes = shares - np.eye(4)[labels]
    bends = shares[:, :, None] * np.eye(4) - shares[:, :, None] * shares[:, None]
    with jax.enable_x64(True):
        values, slope, bend, grads = derivatives(loss)(predictions, labels)
    rounding = 4 * np.finfo(np.float64).eps * np.abs(predictions).max()
    np.testing.assert_allclose(values, np.log1p(odds), 1e-10, rounding)
    np.testing.assert_allclose(slope, slopes, 1e-10, 1e-13)
    np.testing.assert_allclose(bend, bends, 1e-9, 1e-13)
    np.testing.assert_allclose(grads, slopes, 1e-9, 1e-13)
    params, features = (jnp.float32(RNG.normal(size=x)) for x in ((3, 4), 3))
    expected = -jax.nn.log_softmax(features @ params)[2]
    np.testing.assert_allclose(loss(params, (features, 2)), expected, rtol=1e-5)


@pytest.mark.parametrize("num_classes", [2, 3, 7])
def test_bounds_of_softmax_outlive_a_search(num_classes):
    loss = losses.softmax(num_classes)
    predictions = 4 * RNG.normal(size=(3000, num_classes))
    predictions[0, :2] = 40.0  # two classes of the same share: the worst case
    predictions[1, :2] = 40.0, -40.0
    with jax.enable_x64(True):
        points = jnp.asarray(predictions), jnp.ones(3000)
        norms = np.linalg.norm(loss.derivative(*points), axis=1)
        eigenvalues = np.linalg.eigvalsh(np.asarray(loss.curvature(*points)))
    assert 0.999 <= norms.max() / loss.derivative_bound <= 1 + 1e-12
    assert 0.999 <= eigenvalues.max() / loss.curvature_bound <= 1 + 1e-12
    assert eigenvalues.min() >= -1e-12


@pytest.mark.parametrize("name", ALL)
def test_nothing_leaves_its_bound_or_its_range(name):
    loss = ALL[name]
    etas, targets = (x.reshape(-1) for x in np.meshgrid(WILD, WILD))
    if name == "softmax":
        others = [np.roll(etas, 1), np.roll(etas, 7), np.zeros_like(etas)]
        etas = np.stack([etas, *others], axis=1)
    for y in (jnp.asarray(targets), loss.targets_of(jnp.asarray(targets))):
        slopes = np.asarray(loss.derivative(jnp.asarray(etas), y))
        bends = np.asarray(loss.curvature(jnp.asarray(etas), y))
        assert slopes.dtype == bends.dtype == np.float32
        for x, bound in (slopes, loss.derivative_bound), (bends, loss.curvature_bound):
            assert np.isfinite(x).all()
            assert np.abs(x).max() <= np.float32(bound)
        assert not loss.is_convex or name == "softmax" or bends.min() >= 0
        assert (slopes[np.isnan(etas)] == 0).all()
    # A missing target has no slope, and NaN for a value.
    targets, shape = jnp.array([jnp.nan, 1.0]), (loss.num_outputs,)
    predictions = jnp.zeros((2, *(shape if loss.num_outputs > 1 else ())))
    assert bool(jnp.isnan(loss.value(predictions, targets)[0]))
    for method in (loss.derivative, loss.curvature):
        missing, present = method(predictions, targets)
        np.testing.assert_array_equal(missing, 0)
        np.testing.assert_array_equal(present, method(predictions[1:], targets[1:])[0])
    # Any target is mapped into the range, and a mean has a finite prediction.
    mapped = loss.targets_of(jnp.asarray(WILD))
    assert (mapped.dtype, mapped.shape) == (jnp.float32, WILD.shape)
    assert bool(jnp.isfinite(mapped).all())
    low, high = loss.target_range
    assert bool((low <= mapped).all() & (mapped <= high).all())
    assert (loss.targets_of(mapped) == mapped).all()
    for mean in (-1e30, -1.0, 0.0, 1.0, 1e30):
        means = jnp.float32([mean] * 4) if name == "softmax" else jnp.float32(mean)
        prediction = loss.constant_prediction(means)
        assert bool(jnp.isfinite(prediction).all())
        assert prediction.shape == means.shape
        assert bool(jnp.isfinite(loss.mean_of(prediction)).all())


def test_targets_follow_the_public_rule():
    for loss, given, expected in (
        (losses.squared, [np.nan, np.inf, -2.5, -1e30], [0, 1e18, -2.5, -1e18]),
        (losses.logistic, [np.nan, np.inf, 0, -2, 1e-30, -0.0], [-1, 1, -1, -1, 1, -1]),
        (POISSON, [np.nan, -1, 3, 10, np.inf], [0, 0, 3, 9, 9]),
        (losses.softmax(3), [np.nan, -1, 1.2, 1.7, 3, -np.inf], [0, 0, 1, 2, 2, 0]),
    ):
        mapped = loss.targets_of(jnp.array(given, jnp.float32))
        np.testing.assert_array_equal(mapped, np.array(expected, np.float32))


@pytest.mark.parametrize("name", [*SMOOTH, "softmax"])
def test_the_constant_prediction_is_the_best_constant(name):
    if name == "softmax":
        loss, targets = losses.softmax(3), np.array([0.0, 1, 1, 2, 1, 2])
        mean = expected = np.array([1, 3, 2]) / 6
    else:
        loss, (_, targets) = LOSSES[name], draw(name, num=50)
        targets = np.where(targets > 2, 0.7, targets) if targets.min() >= 0 else targets
        mean = targets.mean()
        expected = (1 + mean) / 2 if name == "logistic" else mean
    prediction = loss.constant_prediction(jnp.float32(mean))
    assert name != "softmax" or abs(float(prediction.sum())) <= 1e-6
    predictions = jnp.tile(prediction, (len(targets), *[1] * prediction.ndim))
    slopes = loss.derivative(predictions, jnp.float32(targets)).mean(axis=0)
    error = 1e-6 if name == "softmax" else 1e-5
    np.testing.assert_allclose(slopes, 0, atol=error)
    np.testing.assert_allclose(loss.mean_of(prediction), expected, rtol=error)


def test_equal_losses_share_their_programs():
    for make in (
        lambda a: losses.poisson(2.0 * a),
        lambda a: losses.gamma(min_mean=0.1, max_target=a),
        lambda a: losses.tweedie(1.5, min_mean=0.1, max_mean=1.0, max_target=a),
        lambda a: losses.softmax(int(2 * a)),
        losses.huber,
        losses.biweight,
        losses.MarginLoss.smoothed_hinge,
        lambda a: losses.squared if a == 1.0 else losses.logistic,
    ):
        assert make(1.0) == make(1.0) != make(2.0)
        assert hash(make(1.0)) == hash(make(1.0))


def test_few_counts_pass_the_default_maximum():
    for mean in (1e-3, 0.1, 1.0, 4.0, 30.0, 1e4):
        most = losses.poisson(mean).target_range[1]
        assert 0 < scipy.stats.poisson.sf(most - 1, mean) < math.exp(-18)


def test_a_margin_loss_is_a_loss_of_the_prediction():
    def phi(z):
        return jnp.hypot(1.0, z - 1) - 1

    loss = losses.MarginLoss(jax.grad(phi), 1.0, 1.0, value_fn=phi)
    predictions = jnp.array([-3.0, 0.5, 2.0])
    for label in (-1.0, 1.0):
        labels, margins = jnp.full(3, label), label * predictions
        slopes = label * jax.vmap(jax.grad(phi))(margins)
        np.testing.assert_array_equal(loss.derivative(predictions, labels), slopes)
        np.testing.assert_allclose(loss.value(predictions, labels), phi(margins))
    example = jnp.array([1.0, 2.0]), -1
    expected = loss.derivative(jnp.float32(0.7), -1) * example[0]
    gradient = jax.grad(loss)(jnp.array([0.1, 0.3]), example)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)
    loss = losses.MarginLoss(jnp.tanh, 1.0, 1.0)
    assert float(loss.derivative(jnp.float32(0.0), 1.0)) == 0
    with pytest.raises(ValueError, match="value_fn must be given"):
        loss(jnp.ones(2), (jnp.ones(2), 1.0))


@pytest.mark.parametrize("loss", [losses.logistic, losses.MarginLoss.smoothed_hinge()])
def test_a_label_above_zero_is_the_positive_class(loss):
    predictions = jnp.array([-2.0, 0.3, 5.0])
    labels = np.array([-1, 0, -0.0, -7, 1, 1e-3, 3], np.float32)
    signs = np.array([-1] * 4 + [1] * 3, np.float32)
    for method in (loss.value, loss.derivative, loss.curvature):
        of_each = jax.vmap(method, in_axes=(None, 0))
        pairs = (jnp.stack([x] * 3, 1) for x in (labels, signs))
        ours, expected = (of_each(predictions, x) for x in pairs)
        np.testing.assert_array_equal(ours, expected)
    for label, sign in ((False, -1.0), (0, -1.0), (True, 1.0), (3, 1.0)):
        slope = jax.grad(loss)(jnp.ones(1), (jnp.ones(1), label))
        np.testing.assert_allclose(slope, loss.derivative(jnp.ones(1), sign), 1e-6)


def test_losses_have_names_and_means_an_order():
    for name in ("squared", "logistic"):
        assert named(name) is getattr(losses, name)
        assert named(named(name)) is getattr(losses, name)
    assert named("huber") == Huber(1.345, in_scales=True)
    for bad in ("hinge", 3, None, lambda params, example: 0.0, ["squared"]):
        with pytest.raises(ValueError, match="loss must be 'squared' or 'logistic' or"):
            named(bad)
    tweedie = partial(losses.tweedie, 1.5, min_mean=3, max_mean=2)
    for make in (partial(losses.gamma, min_mean=4), tweedie):
        with pytest.raises(ValueError, match="min_mean must be"):
            make(max_target=3)
