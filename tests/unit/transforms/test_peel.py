"""Steps into a set, by peeling, Frank-Wolfe or projection; averages of iterates."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

from dpjax import estimators, transforms
from dpjax.constraints import L1Ball, Polytope, Simplex
from dpjax.transforms import average_iterates, average_params

# The law of released noise, and how often the sensitivity is paid for each entry.
LAWS = {"gumbel": (scipy.stats.norm, 1), "laplace": (scipy.stats.laplace, 2.5)}
each = pytest.mark.parametrize("noise", LAWS)


def peel(noise="gumbel", sparsity=2, **changes):
    options = {"rho": 0.5, "sensitivity": 1e-4, "limit": 10.0, "key": jax.random.key(0)}
    return transforms.peel(sparsity, noise=noise, **(options | changes))


@each
def test_the_largest_entries_stay(noise):
    step = peel(noise, sensitivity=1e-6, limit=1.0)
    params = {"w": jnp.array([0.3, 0.0, -2.0]), "b": jnp.array(0.1)}
    updates = {"w": jnp.array([-0.1, 0.9, 0.5]), "b": jnp.array(0.0)}
    update, _ = jax.jit(step.update)(updates, step.init(params), params)
    moved = optax.apply_updates(params, update)
    np.testing.assert_allclose(moved["w"], [0, 0.9, -1.5], atol=1e-3)
    assert (moved["w"][0], moved["b"]) == (0, 0)


def released(noise, params, seed, num_draws, **changes):
    """What steps of zero updates release, one for each of so many keys."""

    def release(key):
        step = peel(noise, key=key, **changes)
        return step.update(jnp.zeros_like(params), step.init(params), params)[0]

    keys = jax.random.split(jax.random.key(seed), num_draws)
    return np.asarray(jax.jit(jax.vmap(release))(keys))


@each
def test_released_entries_have_the_noise_of_their_rho(noise):
    # Two-sided test with false alarm 1e-6 at the right scale; it rejects 2/3 and 3/2.
    law, rounds = LAWS[noise]
    scale, params = 0.01 * math.sqrt(rounds * 2 / 0.02), jnp.array([50.0, -50.0, 0.0])
    options = {"rho": 0.02, "sensitivity": 0.01, "limit": 1e-6}
    draws = released(noise, params, 3, 4000, **options)[:, :2].ravel() / scale
    for factor, is_right in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert (scipy.stats.kstest(draws * factor, law.cdf).pvalue > 1e-6) == is_right


@each
def test_rounding_of_a_large_start_is_paid_for(noise):
    # params + update has spacing 2^-4 here, far above the sensitivity of the update.
    options = {"sparsity": 1, "sensitivity": 1e-6, "limit": 1e-3}
    draws = released(noise, jnp.array([2.0**20, 0.0]), 4, 2000, **options)[:, 0]
    law, rounds = LAWS[noise]
    assert draws.std() > 0.9 * 2.0**-22 * 2**20 * math.sqrt(rounds / 0.5) * law.std()


def test_half_precision_is_summed_in_float32():
    step = peel(sparsity=1, sensitivity=1e-6, limit=1.0)
    params = jnp.array([1.0, 0.0], jnp.bfloat16)
    updates = jnp.array([0.0, 2.0**-12], jnp.bfloat16)
    update, _ = step.update(updates, step.init(params), params)
    assert update.dtype == jnp.bfloat16
    assert float(jnp.abs(update[0])) < 0.01
    assert update[1] == 0


def test_params_hold_as_many_entries_as_are_kept():
    with pytest.raises(ValueError, match="sparsity must be at most the number"):
        peel().init(jnp.zeros(1))


# -- Frank-Wolfe -----------------------------------------------------------------------
SETS = {
    "l1_ball": L1Ball(2.0),
    "simplex": Simplex(3.0),
    "polytope": Polytope(np.array([[1, 2, 0.5], [-1, 0, 0.25], [0, -3, 1]])),
}


def frank_wolfe(constraint=SETS["l1_ball"], **changes):
    options = {"epsilon": 1.0, "sensitivity": 1e-3, "limit": 1.0}
    options["key"] = jax.random.key(0)
    return transforms.frank_wolfe(constraint, **(options | changes))


def test_step_sizes_are_the_papers_or_those_of_a_schedule():
    rates = {"papers": None, "schedule": lambda step: 1 / (step.astype("float32") + 2)}
    expected = {"papers": [2 / 3, 2 / 4, 2 / 5], "schedule": [1 / 2, 1 / 3, 1 / 4]}
    for name, rate in rates.items():
        step = frank_wolfe(Simplex(1.0), learning_rate=rate, epsilon=1e6)
        params = jnp.array([0.0, 1.0])
        state = step.init(params)
        for fraction in expected[name]:
            update, state = step.update(jnp.array([-1.0, 1.0]), state, params)
            np.testing.assert_allclose(update[0], fraction * (1 - params[0]), rtol=1e-6)
            params = optax.apply_updates(params, update)


@pytest.mark.parametrize(
    ("name", "num_samples"),
    [("l1_ball", 10**5), ("simplex", 10**7), ("polytope", 10), ("polytope", 10**7)],
)
def test_computed_scores_stay_within_the_stated_range(name, num_samples):
    # Gradients near their limit, where products are rounded most, one record replaced.
    constraint, limit = SETS[name], 0.7
    sensitivity = estimators.Winsorization(limit).sensitivity(num_samples, 3).linf
    rng = np.random.default_rng(0)
    g = np.sign(rng.normal(size=(4000, 3))) * limit * rng.uniform(0.3, 1, (4000, 3))
    g = g.astype(np.float32)
    h = g + rng.choice([-1, 1], g.shape) * np.float64(sensitivity)
    h = np.clip(h.astype(np.float32), -limit, limit)
    far = np.abs(h - g.astype(np.float64)).max(axis=1) > sensitivity
    h[far] = g[far]
    scores = jax.vmap(constraint.vertex_scores)
    change = np.asarray(scores(h), np.float64) - np.asarray(scores(g), np.float64)
    span = (change.max(axis=1) - change.min(axis=1)).max()
    step = frank_wolfe(constraint, sensitivity=sensitivity, limit=limit)
    stated = float(step.init(jnp.zeros(3)).sensitivity_range)
    exact = constraint.diameter("l1", 3) * sensitivity
    assert span <= stated
    assert span > 0.5 * exact
    if num_samples < 10**5:
        assert stated < 1.001 * exact


def test_updates_of_frank_wolfe_are_clipped_to_the_limit():
    def update(first):
        step = frank_wolfe(epsilon=1e-3)
        gradient, zeros = jnp.array([first, 0, 0]), jnp.zeros(3)
        return step.update(gradient, step.init(zeros), zeros)[0]

    for huge in (jnp.inf, 3e38):
        np.testing.assert_array_equal(update(huge), update(1.0))


# -- Projections, averages, noise alone ------------------------------------------------
BALL = partial(optax.projections.projection_l2_ball, scale=1.0)


def test_added_gaussian_noise_has_the_stated_stddev(key):
    transform = transforms.add_gaussian_noise(stddev=0.3, key=key)
    zeros = jnp.zeros(10_000)
    noise, _ = transform.update(zeros, transform.init(zeros))
    law = scipy.stats.chi2(noise.size)  # false alarms: 1e-6
    total = np.sum(np.square(noise, dtype=np.float64)) / 0.3**2
    assert law.ppf(5e-7) < total < law.isf(5e-7)


def normal_like(params, key, step):
    key = jax.random.fold_in(jax.random.clone(key), step)
    return optax.tree.random_like(key, params)


def test_average_is_the_mean_of_the_iterates(key):
    optimizer = optax.chain(optax.sgd(0.1, momentum=0.9), average_iterates())
    params = {"a": jnp.ones(3), "b": jnp.zeros(())}
    state, iterates = optimizer.init(params), []
    for step in range(50):
        updates, state = optimizer.update(normal_like(params, key, step), state, params)
        params = optax.apply_updates(params, updates)
        iterates.append(params)
    mean = jax.tree.map(lambda *x: np.mean(x, axis=0, dtype=np.float64), *iterates)
    for name in params:
        np.testing.assert_allclose(average_params(state)[name], mean[name], rtol=1e-5)


def average_of(iterates, **options):
    transform = average_iterates(**options)

    def step(state, iterate):
        return transform.update(jnp.zeros_like(iterate), state, iterate)[1], None

    start = transform.init(jnp.zeros_like(iterates[0]))
    return average_params(jax.lax.scan(step, start, iterates)[0])


def test_average_of_half_precision_iterates_is_taken_in_float32():
    # In bfloat16 itself the mean of 1, 2, ..., 1000 would stop far from 500.5.
    iterates = jnp.arange(1, 1001).astype(jnp.bfloat16)
    with jax.numpy_dtype_promotion("standard"):
        average = average_of(iterates)
    assert average.dtype == jnp.float32
    np.testing.assert_allclose(average, np.float64(iterates).mean(), rtol=1e-5)


def test_a_moving_average_is_the_mean_of_ten_iterates_then_of_fixed_weights():
    iterates = np.random.default_rng(0).normal(size=(40, 3))
    mean = iterates[:10].mean(axis=0)
    for iterate in iterates[10:]:
        mean = 0.9 * mean + 0.1 * iterate
    average = average_of(jnp.float32(iterates), decay=0.9)
    np.testing.assert_allclose(average, mean, atol=1e-6)


def test_average_state_must_be_there_once():
    twice = optax.chain(average_iterates(), average_iterates())
    for optimizer in (optax.sgd(0.1), twice):
        with pytest.raises(ValueError, match="state must be the state of an optimizer"):
            average_params(optimizer.init(jnp.zeros(2)))


def test_projection_keeps_the_ball(key):
    optimizer = optax.chain(optax.sgd(1.0), transforms.project(BALL))
    params = {"a": jnp.zeros(3), "b": jnp.zeros((2, 2))}
    state = optimizer.init(params)
    for step in range(20):
        grads = jax.tree.map(lambda x: 10 * x, normal_like(params, key, step))
        updates, state = optimizer.update(grads, state, params)
        moved = jax.tree.map(jnp.subtract, params, grads)
        params = optax.apply_updates(params, updates)
        # params + (projection - params) is rounded a few times.
        assert optax.tree.norm(params) <= 1 + 1e-5
        np.testing.assert_allclose(params["a"], BALL(moved)["a"], atol=1e-5)
