"""Losses as functions of weights and an example: robust, of any dtype."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import losses
from tests import registry

ALL = {name: loss for name, loss in registry.LOSSES.items() if name != "softmax"}


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", ALL)
def test_a_loss_is_that_of_the_prediction(name):
    # Whose value and derivative are compared with formulas in test_linear_losses.py.
    rng = np.random.default_rng(0)
    weights, features = rng.normal(size=4), rng.standard_t(3, size=(200, 4))
    labels = np.where(rng.normal(size=200) > 0, 1.0, -1.0)
    with jax.enable_x64(True):
        w, x, y = (jnp.asarray(z) for z in (weights, features, labels))
        both = jax.jit(jax.vmap(jax.value_and_grad(ALL[name]), (None, 0)))
        values, gradients = both(w, (x, y))
        np.testing.assert_allclose(values, ALL[name].value(x @ w, y), rtol=1e-12)
        expected = ALL[name].derivative(x @ w, y)[:, None] * x
        np.testing.assert_allclose(gradients, expected, 1e-9, 1e-12)


@pytest.mark.parametrize(
    ("loss_fn", "slope"), [(losses.huber(0.5), 0.5), (losses.biweight(2.5), 0.0)]
)
def test_robust_gradient_outlives_an_overflowing_prediction(loss_fn, slope):
    features = jnp.array([3e38, 3e38])
    gradient = jax.grad(loss_fn)(jnp.ones(2), (features, jnp.float32(1)))
    np.testing.assert_allclose(gradient, slope * features, rtol=1e-6)


@pytest.mark.parametrize("loss_fn", ALL.values(), ids=ALL)
def test_odd_values_do_not_raise_and_half_precision_is_kept(loss_fn):
    odd = np.array([np.nan, -np.inf], np.float32)
    for target in (jnp.nan, np.int32(7)):
        jax.eval_shape(lambda w, t=target: loss_fn(w, (odd, t)), jnp.ones(2))
    loss_fn(jnp.ones(2), (odd, jnp.inf))
    for dtype in (jnp.bfloat16, jnp.float16):
        vector, number = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((2,), ()))
        assert jax.eval_shape(loss_fn, vector, (vector, number)).dtype == dtype


def test_hyperparameters_may_be_traced():
    for make in (losses.huber, losses.biweight):
        call = lambda x, f=make: f(x)(jnp.ones(2), (jnp.ones(2), 1.0))  # noqa: E731
        values = jax.vmap(call)(jnp.array([0.5, 2.0]))
        np.testing.assert_allclose(values, [call(0.5), call(2.0)], rtol=1e-6)
