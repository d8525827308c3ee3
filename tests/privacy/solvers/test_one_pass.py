"""One pass under attack: no record moves its mean by more than its noise is for."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import losses
from dpjax.solvers.papers._one_pass import _one_pass

LOSSES = {
    "squared": losses.squared,
    "logistic": losses.logistic,
    "huber": losses.huber(1.0),
    "poisson": losses.poisson(4.0),
    "gamma": losses.gamma(min_mean=0.2, max_target=6.0),
    "tweedie": losses.tweedie(1.5, min_mean=0.2, max_mean=3.0, max_target=6.0),
    "log link": losses.log_link(1.2),
    "smoothed hinge": losses.MarginLoss.smoothed_hinge(),
}
sizes = st.sampled_from([0.0, 1e-200, 1e-30, 1e-3, 1.0, 30.0, 1e8, 1e30, 1e200, np.inf])


@partial(jax.jit, static_argnums=0)
def mean_of_iterates(loss, rows, centre, radius, clipped, rate):
    return _one_pass(loss, rows, centre, jnp.zeros_like(centre), radius, clipped, rate)


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    length=sizes,
    far=sizes,
    shift=st.sampled_from([0.0, 1.0, 1e6]),
    rate=st.sampled_from([1e-3, 1.0, 100.0]),
    place=st.integers(0, 39),
)
def test_a_record_moves_the_mean_by_no_more_than_is_stated(
    name, seed, length, far, shift, rate, place
):
    rng = np.random.default_rng(seed)
    radius, clipped = 2.0, 1.0
    with jax.enable_x64(True), np.errstate(all="ignore"):
        x = rng.standard_normal((40, 3)) * rng.choice([1.0, length, 1e3], (40, 1))
        y = rng.standard_normal(40) * rng.choice([1.0, far], 40)
        other = x.copy(), y.copy()
        other[0][place] = rng.standard_normal(3) * far
        other[1][place] = rng.choice([-1.0, 1.0, np.nan]) * length
        centre = jnp.full(3, shift)
        means = [
            mean_of_iterates(LOSSES[name], rows, centre, radius, clipped, rate)
            for rows in ((x, y), other)
        ]
        moved = float(jnp.linalg.norm(means[0] - means[1]))
    reach = radius + 3**0.5 * shift + rate * clipped
    rounding = 2.0**-42 * (1 + 3 / 64) * 40 * reach
    assert moved <= 2 * rate * clipped + rounding


def test_the_sensitivity_is_attained():
    # The record's step is as long as a step can be, both ways, and nothing undoes it.
    x = np.zeros((40, 1))
    x[0] = 1.0
    with jax.enable_x64(True):
        loss, start = losses.huber(1.0), jnp.zeros(1)
        means = [
            mean_of_iterates(loss, (x, np.full(40, y)), start, 9.0, 1.0, 0.5)
            for y in (-1e12, 1e12)
        ]
    assert float(abs(means[0] - means[1])[0]) == pytest.approx(2 * 0.5 * 1.0)


@pytest.mark.parametrize("name", LOSSES)
def test_targets_beyond_the_range_move_the_mean_by_no_more(name):
    # Were the derivative to fall, steps would drive apart what one record has moved.
    targets = [0.0, 1e300, np.inf, *(-np.logspace(-3, 6, 10)), -1e300, -np.inf, np.nan]
    with jax.enable_x64(True):
        grid = jnp.meshgrid(
            jnp.array(targets),
            jnp.array([0.1, 1.0, 3.0]),  # the feature of all records
            jnp.array([0.1, 1.0, 10.0]),  # the step size
            jnp.array([-1.0, 1.0]),  # the first record's direction
            indexing="ij",
        )

        @jax.jit
        @partial(jnp.vectorize, signature="(),(),(),()->()")
        def mean(target, feature, rate, sign):
            x = jnp.full((200, 1), feature).at[0].multiply(sign)
            rows, start = (x, jnp.full(200, target).at[0].set(1e9)), jnp.zeros(1)
            return _one_pass(LOSSES[name], rows, start, start, 1e3, 1.0, rate)[0]

        moved = jnp.abs(jnp.diff(mean(*grid), axis=-1))[..., 0]
        claimed = 2 * grid[2][..., 0]
        assert float(jnp.max(moved / claimed)) <= 1 + 1e-9
