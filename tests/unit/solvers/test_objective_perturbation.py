"""Objective perturbation: its certificate, noise, records, labels, losses, errors."""

import fractions
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from dpjax import accounting
from dpjax.accounting._objective import objective_noise
from dpjax.losses import MarginLoss
from dpjax.solvers import _perturbed_objective, dp_objective_perturbation

RNG = np.random.default_rng(20261120)
PSEUDO_HUBER = MarginLoss(lambda z: (z - 1) / jnp.hypot(1.0, z - 1), 1.0, 1.0)
LOSSES = {
    "logistic": MarginLoss.logistic(),
    "smoothed hinge": MarginLoss.smoothed_hinge(),
    "sharp hinge": MarginLoss.smoothed_hinge(0.01),
    "pseudo-Huber": PSEUDO_HUBER,
    "clipped square": MarginLoss(lambda z: jnp.clip(z - 1, -5, 5), 5.0, 1.0),
}


MINIMIZER = jax.jit(_perturbed_objective.minimize, static_argnums=0)


def settings(**changes):
    base = {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-6}
    return base | {"regularization": 0.01} | changes


def data_sets():
    normal = RNG.normal(size=(300, 4)).astype(np.float32)
    signs = np.where(RNG.normal(size=300) > 0, 1, -1)
    wild = (RNG.standard_cauchy(size=(300, 4)) * 1e30).astype(np.float32)
    wild[0], wild[1, 0], wild[2] = np.inf, np.nan, -3e38
    data = {
        "normal": (normal, signs),
        "separable": (normal, normal[:, 0]),
        "one record many times": (np.ones((300, 4), np.float32), np.ones(300)),
        "at odds": (np.ones((300, 4), np.float32), signs),
        "zeros": (np.zeros((300, 4), np.float32), signs),
        "tiny": (normal * np.float32(1e-30), signs),
        "wild": (wild, signs),
        "one record": (normal[:1], signs[:1]),
        "more features than records": (RNG.normal(size=(5, 30)), signs[:5]),
    }
    # Of one type: another is another program, and no other result (see below).
    return {name: (x, np.asarray(y, np.float32)) for name, (x, y) in data.items()}


DATA = data_sets()


def computed_minimizer(features, labels, loss, convexity, eta, gradient_norm):
    objective = _perturbed_objective.Objective(loss, *features.shape)
    with jax.enable_x64(True):
        rows = _perturbed_objective.signed_rows(
            jnp.asarray(features), jnp.asarray(labels)
        )
        params = MINIMIZER(objective, rows, convexity, jnp.asarray(eta), gradient_norm)
        return np.asarray(rows), np.asarray(params), objective


def exact_gradient(rows, params, loss, convexity, eta):
    """The gradient with exactly rounded sums, in NumPy alone."""
    margins = [math.fsum(row * params) for row in rows]
    with jax.enable_x64(True):
        slopes = np.asarray(loss.derivative(jnp.asarray(margins)))
    columns = (slopes[:, None] * rows).T
    sums = np.array([math.fsum(column) for column in columns])
    return sums + convexity * params + eta


# Every loss on the data of one shape, one loss on the other shapes: less to compile.
CASES = [
    (name, loss)
    for name, (features, _) in DATA.items()
    for loss in LOSSES
    if features.shape == (300, 4) or loss == "logistic"
]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("name", "loss"), CASES)
@pytest.mark.parametrize(("epsilon", "regularization"), [(0.1, 0.01), (10.0, 0.0)])
def test_certificate_holds(name, loss, epsilon, regularization):
    (features, labels), loss = DATA[name], LOSSES[loss]
    arguments = settings(epsilon=epsilon, regularization=regularization, loss=loss)
    solution = dp_objective_perturbation(features, labels, **arguments)
    assert np.isfinite(np.asarray(solution.params)).all()
    stats = solution.stats
    convexity = len(features) * stats["regularization"]
    eta = stats["stddev"] * RNG.normal(size=features.shape[1])
    rows, params, _ = computed_minimizer(
        features, labels, loss, convexity, eta, stats["gradient_norm"]
    )
    gradient = exact_gradient(rows, params, loss, convexity, eta)
    assert np.linalg.norm(gradient) <= stats["gradient_norm"]


@pytest.mark.slow
def test_rounding_bound_covers_the_error():
    features = RNG.normal(size=(3000, 20))
    convexity, eta = 30.0, 10 * RNG.normal(size=20)
    loss = LOSSES["logistic"]
    # At a bound of 1e-7 the computed norm is far below it, so compare the gradients.
    rows, params, objective = computed_minimizer(
        features, np.ones(3000), loss, convexity, eta, 1e-7
    )
    exact = exact_gradient(rows, params, loss, convexity, eta)
    plain = (-scipy.special.expit(-rows @ params)) @ rows + convexity * params + eta
    bound = objective.rounding(convexity, np.linalg.norm(params), np.linalg.norm(eta))
    assert 0 < np.linalg.norm(exact - plain) < bound < 1e-8


def test_minimiser_agrees_with_scipy():
    features, labels = DATA["normal"]
    convexity, eta = 3.0, 10 * RNG.normal(size=4)
    rows, params, _ = computed_minimizer(
        features, labels, LOSSES["logistic"], convexity, eta, 1e-6
    )

    def objective(w):
        losses = np.logaddexp(0, -rows @ w).sum()
        return losses + convexity / 2 * w @ w + eta @ w

    found = scipy.optimize.minimize(objective, np.zeros(4), method="BFGS").x
    np.testing.assert_allclose(params, found, atol=1e-4)


def test_an_uncertified_point_is_never_released():
    features, labels = DATA["normal"]
    arguments = (features, labels, LOSSES["logistic"], 3.0, np.ones(4))
    assert np.isnan(computed_minimizer(*arguments, 1e-16)[1]).all()
    assert np.isfinite(computed_minimizer(*arguments, 1e-9)[1]).all()


@pytest.mark.quick(1)
@pytest.mark.parametrize("loss", ["logistic", "pseudo-Huber"])
def test_noise_has_the_stated_scale(loss):
    # Zero records leave w = -eta / (N Lambda), and the noise of the output.
    features, labels = jnp.zeros((20, 3)), jnp.ones(20)

    def solve(key):
        return dp_objective_perturbation(
            features, labels, **settings(key=key, loss=LOSSES[loss])
        )

    solution = jax.jit(jax.vmap(solve))(jax.random.split(jax.random.key(5), 1_000))
    stats = {name: float(value[0]) for name, value in solution.stats.items()}
    convexity = 20 * stats["regularization"]
    stddev = math.hypot(stats["stddev"] / convexity, stats["output_stddev"])
    draws = np.asarray(solution.params, np.float64) / stddev
    law = scipy.stats.chi2(draws.size)  # false alarms: 1e-6
    low, high = law.ppf(5e-7), law.isf(5e-7)
    total = np.sum(draws**2)
    assert low < total < high
    assert not low < total * 1.5**2 < high
    assert not low < total / 1.5**2 < high


def test_budget_is_split_as_stated():
    solution = dp_objective_perturbation(*DATA["normal"], **settings())
    stats, share = solution.stats, 0.01
    noise = objective_noise(
        1 - share,
        1e-6 * (1 - share),
        num_samples=300,
        regularization=0.01,
        curvature_bound=0.25,
        is_non_increasing=True,
    )
    assert stats["stddev"] == pytest.approx(noise.stddev)
    convexity = 300 * (0.01 + noise.extra_regularization)
    spent = accounting.gaussian_epsilon(
        stats["output_stddev"],
        1e-6 * share,
        sensitivity=2 * stats["gradient_norm"] / convexity,
    )
    assert spent == pytest.approx(share, rel=1e-6)
    assert stats["gradient_norm"] >= 1e-8 * convexity
    assert (solution.privacy.epsilon, solution.privacy.delta) == (1.0, 1e-6)


def test_a_record_without_a_label_has_no_weight():
    features, labels = DATA["normal"]
    is_missing = np.arange(len(labels)) % 3 == 0
    without = np.where(is_missing[:, None], 0.0, features).astype(np.float32)
    expected = dp_objective_perturbation(without, labels, **settings()).params
    known = np.where(is_missing, np.nan, labels).astype(np.float32)
    params = dp_objective_perturbation(features, known, **settings()).params
    np.testing.assert_allclose(params, expected, atol=1e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_no_row_is_longer_than_one(dtype):
    largest = float(np.finfo(dtype).max)
    rows = RNG.normal(size=(200, 7))
    rows[:100] /= np.linalg.norm(rows[:100], axis=1, keepdims=True)
    rows[100] = largest
    rows[101] = [np.inf, *[largest] * 6]
    rows[102] = [np.nan, 1, 0, 0, 0, 0, 0]
    rows[103] = [-np.inf, np.inf, 0, 0, 0, 0, 0]
    rows[104] = np.nan
    rows[105] = 4 * float(np.finfo(dtype).tiny)
    with jax.enable_x64(True):
        found = np.asarray(
            _perturbed_objective.signed_rows(
                jnp.asarray(rows.astype(dtype)), jnp.ones(200)
            )
        )
    assert np.isfinite(found).all()
    for row in found:  # in rational numbers
        assert sum(fractions.Fraction(entry) ** 2 for entry in row) <= 1
    root = math.sqrt(0.5)
    np.testing.assert_allclose(found[100], 1 / math.sqrt(7))
    np.testing.assert_allclose(found[102], [0, 1, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(found[103], [-root, root, 0, 0, 0, 0, 0], atol=1e-300)
    assert not found[104].any()
    assert (found[105] > 0).all()
    # A row that is short stays as it is, to rounding.
    inside = np.linalg.norm(rows[106:], axis=1) < 0.99
    short = rows[106:][inside].astype(dtype).astype(np.float64)
    np.testing.assert_allclose(found[106:][inside], short, rtol=1e-14)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("yes", "no", "dtype"),
    [
        (True, False, bool),
        (7.5, -2.5, np.float64),
        (math.inf, -math.inf, np.float32),
        (200, 0, np.uint8),
    ],
)
def test_labels_are_signs_whatever_they_are(yes, no, dtype):
    features, labels = DATA["normal"]
    expected = dp_objective_perturbation(features, labels, **settings()).params
    other = np.where(labels > 0, yes, no).astype(dtype)
    found = dp_objective_perturbation(features, other, **settings()).params
    np.testing.assert_array_equal(found, expected)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32])
def test_released_dtype(dtype):
    features, labels = np.ones((10, 2), dtype), np.ones(10)
    solution = dp_objective_perturbation(features, labels, **settings())
    is_half = dtype == np.float16
    assert solution.params.dtype == (jnp.float16 if is_half else jnp.float32)
    with jax.enable_x64(True):
        solution = dp_objective_perturbation(features, labels, **settings())
        if dtype == np.float64:
            assert solution.params.dtype == jnp.float64


@pytest.mark.quick(2)
@pytest.mark.parametrize("loss", LOSSES)
def test_losses_keep_their_declared_bounds(loss):
    loss = LOSSES[loss]
    with jax.enable_x64(True):
        margins = jnp.linspace(-50, 50, 200_001)
        slopes = np.asarray(loss.derivative(margins))
        curvatures = np.asarray(loss.curvature(margins))
    assert np.abs(slopes).max() <= loss.derivative_bound
    assert np.abs(slopes).max() >= 0.95 * loss.derivative_bound
    rises = np.diff(slopes) / np.diff(np.asarray(margins))
    assert rises.min() >= -1e-12
    assert 0.95 * loss.curvature_bound < rises.max() < loss.curvature_bound * (1 + 1e-9)
    assert curvatures.max() <= loss.curvature_bound
    assert not loss.is_non_increasing or slopes.max() <= 0


def test_made_losses_are_those_of_the_formulas():
    def hinge(z, h=0.5):
        if z > 1 + h:
            return 0.0
        return (1 + h - z) ** 2 / (4 * h) if abs(1 - z) <= h else 1 - z

    def logistic(z):
        return math.log1p(math.exp(-z))

    pairs = [(MarginLoss.smoothed_hinge(), hinge), (MarginLoss.logistic(), logistic)]
    for loss, formula in pairs:
        for low, high in ((-3.0, 0.3), (0.2, 0.9), (0.7, 5.0)):
            margins = jnp.linspace(low, high, 4001)
            rise = np.trapezoid(loss.derivative(margins), margins)
            assert rise == pytest.approx(formula(high) - formula(low), abs=1e-5)


def test_a_derivative_cannot_leave_its_bound():
    loss = MarginLoss(lambda z: jnp.where(z > 3, jnp.nan, 10 * z), 1.0, 10.0)
    found = loss.derivative(jnp.array([-5.0, 0.05, 2.0, 4.0]))
    np.testing.assert_allclose(found, [-1.0, 0.5, 1.0, 0.0])


def test_losses_compare_by_their_fields():
    assert MarginLoss.logistic() == MarginLoss.logistic()
    assert hash(MarginLoss.smoothed_hinge(0.3)) == hash(MarginLoss.smoothed_hinge(0.3))
    assert MarginLoss.smoothed_hinge(0.3) != MarginLoss.smoothed_hinge(0.4)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [None, MarginLoss.smoothed_hinge()], ids=str)
def test_more_budget_finds_the_classifier(loss):
    features = RNG.normal(size=(4000, 5)) / 3
    labels = features @ np.array([1.0, -2.0, 0.5, 0.0, 3.0])
    params = dp_objective_perturbation(
        features, labels, **settings(regularization=1e-3, loss=loss)
    ).params
    predicted = features @ np.asarray(params, np.float64) > 0
    assert np.mean(predicted == (labels > 0)) > 0.97


def test_a_loss_without_declared_bounds_is_refused():
    with pytest.raises(ValueError, match="declares the bounds"):
        dp_objective_perturbation(*DATA["normal"], **settings(loss=jax.nn.softplus))


@pytest.mark.parametrize(
    ("features", "labels", "name"),
    [
        (np.ones(3), np.ones(3), "features"),
        (np.ones((3, 0)), np.ones(3), "features"),
        (np.ones((3, 2), complex), np.ones(3), "features"),
        ([[1.0]], np.ones(1), "features"),
        (np.ones((3, 2)), np.ones((3, 1)), "labels"),
        (np.ones((3, 2)), np.array(["a", "b", "c"]), "labels"),
        (np.ones((3, 2)), np.ones(4), "labels"),
    ],
)
def test_bad_arrays_are_named(features, labels, name):
    with pytest.raises(ValueError, match=name):
        dp_objective_perturbation(features, labels, **settings())
