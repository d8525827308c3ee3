"""Losses against their formulas in float64, and gradients against differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import losses


def _huber(s, c=1.5):
    return s**2 / 2 if abs(s) <= c else c * abs(s) - c**2 / 2


def _biweight(s, c=2.5):
    return c**2 / 6 * (1 - (1 - (s / c) ** 2) ** 3) if abs(s) <= c else c**2 / 6


def _log_link(eta, y, p, low, high):
    inner = np.clip(eta, np.log(low), np.log(high))
    slope = np.exp((2 - p) * inner) - y * np.exp((1 - p) * inner)
    rising = np.expm1((2 - p) * inner) / (2 - p) if p < 2 else inner
    falling = np.expm1((1 - p) * inner) / (1 - p) if p > 1 else inner
    return rising - y * falling + slope * (eta - inner)


# Name: the loss, and the formula in the weights, the features and the target.
CASES = {
    "squared": (losses.squared, lambda w, x, y: (w @ x - y) ** 2 / 2),
    "absolute": (losses.absolute, lambda w, x, y: abs(w @ x - y)),
    "logistic": (losses.logistic, lambda w, x, y: np.log1p(np.exp(-y * (w @ x)))),
    "huber": (losses.huber(1.5), lambda w, x, y: _huber(w @ x - y)),
    "biweight": (losses.biweight(2.5), lambda w, x, y: _biweight(w @ x - y)),
    "poisson": (
        losses.poisson(5.0),
        lambda w, x, y: _log_link(w @ x, y, 1, 5e-6, 5.0),
    ),
    "gamma": (
        losses.gamma(min_mean=0.2, max_target=9.0),
        lambda w, x, y: _log_link(w @ x, y, 2, 0.2, 9.0),
    ),
    "tweedie": (
        losses.tweedie(1.3, min_mean=0.2, max_mean=5.0, max_target=9.0),
        lambda w, x, y: _log_link(w @ x, y, 1.3, 0.2, 5.0),
    ),
    "ridge": (
        losses.regularized(losses.squared, l2=0.3),
        lambda w, x, y: (w @ x - y) ** 2 / 2 + 0.15 * w @ w,
    ),
    "regularized_logistic": (
        losses.regularized(losses.logistic, l2=0.3),
        lambda w, x, y: np.log1p(np.exp(-y * (w @ x))) + 0.15 * w @ w,
    ),
}
cases = pytest.mark.parametrize(("loss_fn", "formula"), CASES.values(), ids=CASES)
FACTORIES = {
    "huber": losses.huber,
    "biweight": losses.biweight,
    "regularized": lambda l2: losses.regularized(losses.logistic, l2),
}
factories = pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)


def _examples(num_examples=200):
    rng = np.random.default_rng(0)
    weights = rng.normal(size=4)
    features = rng.standard_t(3, size=(num_examples, 4))
    labels = np.where(rng.normal(size=num_examples) > 0, 1.0, -1.0)
    return weights, features, labels


@cases
def test_value_is_the_formula(loss_fn, formula):
    weights, features, labels = _examples()
    data = (jnp.float32(features), jnp.float32(labels))
    values = jax.vmap(loss_fn, (None, 0))(jnp.float32(weights), data)
    expected = [
        formula(weights, *example) for example in zip(features, labels, strict=True)
    ]
    assert values.dtype == jnp.float32
    np.testing.assert_allclose(values, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.quick(2)
@cases
def test_gradient_is_the_difference_quotient(loss_fn, formula):
    weights, features, labels = _examples()
    data = (jnp.float32(features), jnp.float32(labels))
    gradients = jax.vmap(jax.grad(loss_fn), (None, 0))(jnp.float32(weights), data)
    steps = 1e-6 * np.eye(4)
    expected = [
        [
            (formula(weights + step, x, y) - formula(weights - step, x, y)) / 2e-6
            for step in steps
        ]
        for x, y in zip(features, labels, strict=True)
    ]
    np.testing.assert_allclose(gradients, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.quick(7)
@cases
@pytest.mark.parametrize("size", [0.0, 1e-30, 1.0, 1e18, -1e18])
def test_gradient_is_finite_for_finite_data(loss_fn, formula, size):
    example = (jnp.array([size, 1.0, 0.0]), jnp.float32(1))
    for params in (jnp.zeros(3), jnp.ones(3), -jnp.ones(3)):
        assert bool(jnp.all(jnp.isfinite(jax.grad(loss_fn)(params, example))))


@pytest.mark.parametrize(
    ("loss_fn", "slope"), [(losses.huber(0.5), 0.5), (losses.biweight(2.5), 0.0)]
)
def test_robust_gradient_outlives_an_overflowing_prediction(loss_fn, slope):
    features = jnp.array([3e38, 3e38])
    gradient = jax.grad(loss_fn)(jnp.ones(2), (features, jnp.float32(1)))
    np.testing.assert_allclose(gradient, slope * features, rtol=1e-6)


def test_biweight_is_flat_beyond_its_threshold():
    loss_fn = losses.biweight(2.5)
    far = (jnp.array([100.0]), jnp.float32(0))
    assert float(loss_fn(jnp.ones(1), far)) == pytest.approx(2.5**2 / 6)
    assert float(jax.grad(loss_fn)(jnp.ones(1), far)[0]) == 0


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("loss_fn", "target", "curvature"),
    [
        (losses.squared, 0, 1.0),
        (losses.logistic, 1, 0.25),
        (losses.huber(1.5), 0, 1.0),
        (losses.biweight(2.5), 0, 1.0),
        (losses.regularized(losses.squared, l2=0.3), 0, 1.3),
    ],
)
def test_curvature_where_the_prediction_is_zero(loss_fn, target, curvature):
    hessian = jax.hessian(loss_fn)(jnp.zeros(1), (jnp.ones(1), jnp.float32(target)))
    assert float(hessian[0, 0]) == pytest.approx(curvature)


@cases
def test_odd_values_do_not_raise(loss_fn, formula):
    for target in (jnp.nan, jnp.inf, 7):
        loss_fn(jnp.ones(2), (jnp.array([jnp.nan, -jnp.inf]), target))


@cases
def test_integer_labels_and_numpy_examples(loss_fn, formula):
    features = np.array([0.5, -1.0], np.float32)
    expected = loss_fn(jnp.ones(2), (jnp.asarray(features), jnp.float32(1)))
    assert float(loss_fn(jnp.ones(2), (features, np.int32(1)))) == float(expected)


@pytest.mark.quick(3)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@cases
def test_half_precision_is_kept(loss_fn, formula, dtype):
    example = (jnp.ones(2, dtype), jnp.ones((), dtype))
    assert loss_fn(jnp.ones(2, dtype), example).dtype == dtype


def test_the_penalty_covers_every_leaf():
    loss_fn = losses.regularized(lambda params, example: jnp.float32(0), l2=2.0)
    params = {"w": jnp.ones((2, 3)), "b": jnp.full(2, 2.0)}
    assert float(loss_fn(params, None)) == 14.0


@factories
def test_made_losses_compare_and_hash_by_value(factory):
    assert factory(0.5) == factory(0.5)
    assert hash(factory(0.5)) == hash(factory(0.5))
    assert factory(0.5) != factory(0.25)


@factories
def test_a_static_loss_compiles_once(factory):
    num_traces = 0

    def evaluate(loss_fn, params):
        nonlocal num_traces
        num_traces += 1
        return loss_fn(params, (jnp.ones(2), jnp.float32(1)))

    evaluate = jax.jit(evaluate, static_argnums=0)
    for _ in range(3):
        evaluate(factory(0.5), jnp.ones(2))
    assert num_traces == 1


@pytest.mark.quick(1)
@factories
def test_hyperparameters_may_be_traced(factory):
    example = (jnp.ones(2), jnp.float32(1))
    sweep = jax.vmap(lambda value: factory(value)(jnp.ones(2), example))
    values = sweep(jnp.array([0.5, 2.0]))
    expected = [float(factory(value)(jnp.ones(2), example)) for value in (0.5, 2.0)]
    np.testing.assert_allclose(values, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: losses.huber(0.0), "threshold"),
        (lambda: losses.biweight(-1.0), "threshold"),
        (lambda: losses.biweight(float("nan")), "threshold"),
        (lambda: losses.regularized(losses.squared, l2=-1.0), "l2"),
        (lambda: losses.regularized(losses.logistic, float("inf")), "l2"),
    ],
)
def test_bad_hyperparameters_are_named(make, name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        make()
