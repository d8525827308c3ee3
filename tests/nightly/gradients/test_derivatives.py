"""Robust means of gradients: derivatives, platforms, and what they are compiled to."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.estimators import Clipping, SmoothedClipping, SmoothedTruncation
from tests.factored import FAST_TO_COMPILE, GROUPS
from tests.unit.gradients.test_robust import BATCH, ESTIMATORS, PARAMS, loss_fn


@pytest.mark.parametrize(
    "estimator", [Clipping(0.5), SmoothedClipping(0.5), SmoothedTruncation(0.02)]
)
@pytest.mark.parametrize(
    ("group", "name"), [("loops", "heads"), ("loops", "dense"), ("tables", "two reads")]
)
def test_a_factored_mean_has_the_derivative_of_gradients_written_out(
    estimator, group, name
):
    uses, batch = GROUPS[group]
    use, batch = uses[name], batch[:5]
    grads_fn = dpjax.per_sample_grad(use.loss_fn)
    grad_fn = dpjax.robust_grad(use.loss_fn, estimator)

    def size(grad):
        return sum(jnp.sum(jnp.sin(50 * x)) for x in jax.tree.leaves(grad))

    def derivative(mean):
        of_size = jax.grad(lambda params: size(mean(params)))
        return jax.jit(of_size, compiler_options=FAST_TO_COMPILE)(use.params())

    factored = derivative(lambda params: grad_fn(params, batch))
    expected = derivative(lambda params: estimator(grads_fn(params, batch)))
    largest = max(float(np.abs(x).max()) for x in jax.tree.leaves(expected))
    chex.assert_trees_all_close(factored, expected, rtol=1e-3, atol=1e-4 * largest)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_derivatives_in_params_and_hyperparameters(name):
    with jax.enable_x64(True):
        wide = jax.tree.map(jnp.float64, BATCH)
        estimator = jax.tree.map(jnp.float64, ESTIMATORS[name])
        point = (jax.tree.map(jnp.float64, PARAMS), estimator)
        rng = np.random.default_rng(0)
        tangent = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), point)

        def total(point):
            params, estimator = point
            grads = dpjax.robust_grad(loss_fn, estimator)(params, wide)
            return (grads["w"] * jnp.array([1.0, -2.0, 0.5])).sum() + grads["b"]

        @jax.jit
        def derivatives(point):
            value, forward = jax.jvp(total, (point,), (tangent,))
            return value, forward, jax.grad(total)(point)

        _, forward, gradient = derivatives(point)
        step = 1e-6
        up, down = (
            derivatives(jax.tree.map(lambda x, t, h=h: x + h * t, point, tangent))[0]
            for h in (step, -step)
        )
        np.testing.assert_allclose(forward, (up - down) / (2 * step), atol=1e-6)
        products = jax.tree.map(lambda g, t: (g * t).sum(), gradient, tangent)
        np.testing.assert_allclose(sum(jax.tree.leaves(products)), forward, rtol=1e-10)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_lowers_for_every_platform(name):
    grad_fn = dpjax.robust_grad(loss_fn, ESTIMATORS[name], return_values=True)
    args, platforms = (PARAMS, BATCH, jnp.zeros(70, bool)), ("cpu", "cuda", "tpu")
    exported = jax.export.export(jax.jit(grad_fn), platforms=platforms)(*args)
    assert exported.platforms == platforms
    mean, values = exported.call(*args)
    expected = jax.jit(grad_fn)(PARAMS, BATCH)[0]
    chex.assert_trees_all_close(mean, expected, rtol=0, atol=2e-6)
    assert values.shape == (70,)
