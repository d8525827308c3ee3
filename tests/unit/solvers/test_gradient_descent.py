"""Gradient descent: its optimum, its noise, its transformations, its errors."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

from dpjax import accounting, losses
from dpjax.batching import (
    BallsInBins,
    CyclicPoisson,
    Disjoint,
    Full,
    Poisson,
    ShuffledEpochs,
    WithoutReplacement,
)
from dpjax.estimators import (
    Clipping,
    Mean,
    MedianOfMeans,
    SmoothedTruncation,
    Truncation,
    Winsorization,
)
from dpjax.solvers import Execution, dp_gradient_descent, robust_gradient_descent

ESTIMATORS = {
    "clipping": Clipping(1.0),
    "truncation": Truncation(1.0),
    "winsorization": Winsorization(1.0),
    "smoothed": SmoothedTruncation(1.0),
    "medians": MedianOfMeans(Truncation(1.0), 3),
}
BATCHINGS = {
    "full": Full(),
    "disjoint": Disjoint(),
    "poisson": Poisson(5.0),
    "without_replacement": WithoutReplacement(5),
    "cyclic": CyclicPoisson(5.0, 2),
    "bins": BallsInBins(4),
    "epochs": ShuffledEpochs(10),
}
BALL = functools.partial(optax.projections.projection_l2_ball, scale=0.5)


def linear(params, example):
    """A loss whose gradient is the example, whatever the parameters are."""
    return jnp.dot(params, example)


def location(params, example):
    return 0.5 * jnp.sum((params - example) ** 2)


def settings(**changes):
    return {
        "key": jax.random.key(1),
        "epsilon": 1.0,
        "delta": 1e-5,
        "estimator": Winsorization(1.0),
        "learning_rate": 0.1,
        "num_steps": 4,
    } | changes


def descend(loss_fn=location, params=None, data=None, **changes):
    params = jnp.zeros(2) if params is None else params
    data = jnp.ones((30, 2)) if data is None else data
    return dp_gradient_descent(loss_fn, params, data, **settings(**changes))


def regression(num_samples=200, dtype=jnp.float32):
    features = jax.random.normal(jax.random.key(3), (num_samples, 2), dtype)
    return features, features @ jnp.array([1.0, 2.0], dtype)


@pytest.mark.quick(1)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_noise_has_the_stated_scale(batching):
    # Without gradients T steps are a sum of T independent noises, each times the rate.
    num_keys, size, rate, num_steps = 1_000, 5, 0.3, 4

    def solve(key):
        return dp_gradient_descent(
            linear,
            jnp.zeros(size),
            jnp.zeros((40, size)),
            **settings(key=key, learning_rate=rate, batching=BATCHINGS[batching]),
        )

    keys = jax.random.split(jax.random.key(5), num_keys)
    solutions = jax.jit(jax.vmap(solve))(keys)
    stats = jax.tree.map(lambda x: float(x[0]), solutions.stats)
    estimator = Winsorization(1.0)
    sensitivity = (
        estimator.sampled_sensitivity
        if BATCHINGS[batching].is_sampled
        else estimator.sensitivity
    )(stats["batch_size"], size, rounded=False).l2
    np.testing.assert_allclose(stats["l2_sensitivity"], sensitivity, rtol=1e-5)
    np.testing.assert_allclose(
        stats["stddev"], stats["noise_multiplier"] * sensitivity, rtol=1e-5
    )
    draws = np.asarray(solutions.params, np.float64) / (rate * stats["stddev"])
    law = scipy.stats.chi2(draws.size)  # false alarms: 1e-6
    total = np.sum(draws**2) / num_steps
    assert law.ppf(5e-7) < total < law.isf(5e-7)
    # Half the noise, or one noise used in all four steps, is far outside.
    assert not law.ppf(5e-7) < total / 4 < law.isf(5e-7)
    assert not law.ppf(5e-7) < total * 4 < law.isf(5e-7)


# Of Poisson batches and samples of fixed size the accountant has such tests.
OTHER_EPSILONS = [
    (name, epsilon)
    for name in ("full", "disjoint", "bins", "epochs", "cyclic")
    for epsilon in (0.1, 20.0)
]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("batching", "epsilon"), [(name, 1.0) for name in BATCHINGS] + OTHER_EPSILONS
)
def test_spends_the_budget(batching, epsilon):
    batching = BATCHINGS[batching]
    data = jnp.zeros((40, 2))
    solution = descend(linear, data=data, epsilon=epsilon, batching=batching)
    multiplier = solution.stats["noise_multiplier"]
    spent = accounting.noise_multiplier_to_epsilon(
        multiplier, 1e-5, **batching.accounting(40, 4)
    )
    assert 0.98 * epsilon < spent <= epsilon
    assert solution.privacy.epsilon == epsilon
    assert solution.privacy.delta == 1e-5
    if isinstance(batching, Full | Disjoint):
        # Against the exact curve of T Gaussians, written out once more.
        mu = math.sqrt(4 if isinstance(batching, Full) else 1) / multiplier
        cdf = scipy.stats.norm.cdf
        delta = cdf(mu / 2 - epsilon / mu)
        delta -= math.exp(epsilon) * cdf(-mu / 2 - epsilon / mu)
        np.testing.assert_allclose(delta, 1e-5, rtol=1e-4)


def test_disjoint_steps_see_their_own_records():
    # A record moves no iterate before the step of its batch (parallel composition).
    iterates = []
    for value in (1.0, -1.0):
        seen = {}
        execution = Execution(
            callback=lambda step, params, seen=seen: seen.update({int(step): params})
        )
        data = jnp.ones((11, 2)).at[7].set(value)
        changes = {"batching": Disjoint(), "execution": execution, "num_steps": 5}
        descend(linear, data=data, **changes)
        jax.effects_barrier()
        iterates.append(seen)
    for step in range(1, 6):
        same = np.array_equal(iterates[0][step], iterates[1][step])
        assert same == (step < 4)  # record 7 is in batch 3, hence in step 4


@pytest.mark.quick(1)
@pytest.mark.parametrize("estimator", [Mean(), SmoothedTruncation(100.0)])
def test_reaches_the_optimum_without_noise(estimator):
    features, targets = regression()
    targets = targets + jax.random.normal(jax.random.key(4), targets.shape)
    solution = robust_gradient_descent(
        losses.squared,
        jnp.zeros(2),
        (features, targets),
        estimator=estimator,
        learning_rate=0.8,
        num_steps=60,
    )
    optimum = np.linalg.lstsq(features, targets)[0]
    # The smoothed truncation moves a gradient of size 3 by 3^3 / 100^2 at most.
    np.testing.assert_allclose(solution.params, optimum, atol=1e-5, rtol=5e-3)
    assert solution.privacy.epsilon == math.inf


@pytest.mark.quick(1)
@pytest.mark.parametrize("batching", ["poisson", "without_replacement", "disjoint"])
def test_stochastic_baseline(batching):
    features, targets = regression(400)
    solution = robust_gradient_descent(
        losses.squared,
        jnp.zeros(2),
        (features, targets),
        estimator=Mean(),
        learning_rate=0.2,
        num_steps=80,
        batching=BATCHINGS[batching],
        key=jax.random.key(0),
    )
    np.testing.assert_allclose(solution.params, [1.0, 2.0], atol=0.05)


def test_default_number_of_steps():
    solution = robust_gradient_descent(
        linear, jnp.zeros(2), jnp.zeros((40, 2)), estimator=Mean(), learning_rate=1.0
    )
    assert solution.stats["num_steps"] == math.ceil(10 * math.log(40))


def collect(every, **changes):
    seen = {}
    execution = Execution(
        callback=lambda step, params: seen.update({int(step): params}),
        callback_every=every,
    )
    solution = descend(execution=execution, **changes)
    jax.effects_barrier()
    return seen, solution


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("every", "steps"), [(1, range(1, 9)), (3, [3, 6, 8]), (4, [4, 8]), (20, [8])]
)
def test_callback(every, steps):
    seen, solution = collect(every, num_steps=8)
    assert sorted(seen) == list(steps)
    np.testing.assert_array_equal(seen[8], solution.params)


def test_averaging_projection_and_callback():
    seen, solution = collect(
        1, num_steps=8, averaging=True, projection_fn=BALL, learning_rate=3.0
    )
    iterates = np.stack([seen[step] for step in range(1, 9)])
    assert np.linalg.norm(iterates, axis=1).max() <= 0.5 * (1 + 1e-5)
    assert np.linalg.norm(iterates, axis=1).max() > 0.49
    np.testing.assert_allclose(solution.params, iterates.mean(axis=0), rtol=1e-5)


def test_schedules():
    fixed = descend()
    with jax.numpy_dtype_promotion("standard"):  # schedules mix int32 and floats
        scheduled, halved = (
            descend(learning_rate=schedule)
            for schedule in (
                optax.constant_schedule(0.1),
                optax.piecewise_constant_schedule(0.1, {2: 0.5}),
            )
        )
    np.testing.assert_allclose(fixed.params, scheduled.params, rtol=1e-6)
    assert (fixed.params != halved.params).all()


@pytest.mark.slow
def test_numbers_of_a_schedule_are_traced():
    traces = []

    def falling(first, step):
        traces.append(first)
        return first / (1 + step.astype(jnp.float32))

    def solve(schedule):
        return descend(learning_rate=schedule).params

    params = [solve(jax.tree_util.Partial(falling, first)) for first in (0.1, 0.2)]
    assert len(traces) == 1
    for first, found in zip((0.1, 0.2), params, strict=True):
        static = solve(functools.partial(falling, first))
        np.testing.assert_allclose(found, static, rtol=1e-6)
    assert (params[0] != params[1]).all()


def test_pytrees_and_half_precision():
    def loss_fn(params, example):
        prediction = jnp.dot(example["x"], params["w"]) + params["b"]
        return (prediction - example["y"]) ** 2

    params = {"w": jnp.zeros(2, jnp.bfloat16), "b": jnp.zeros((), jnp.bfloat16)}
    features, targets = (x.astype(jnp.bfloat16) for x in regression(40))
    with jax.numpy_dtype_promotion("standard"):
        solution = descend(loss_fn, params, {"x": features, "y": targets})
    assert jax.tree.map(lambda x: x.dtype, solution.params) == {
        "w": jnp.bfloat16,
        "b": jnp.bfloat16,
    }


@pytest.mark.slow
def test_derivatives_against_finite_differences():
    with jax.enable_x64(True):
        features, targets = regression(30, jnp.float64)
        targets = targets + jax.random.t(jax.random.key(4), 2.0, (30,), jnp.float64)

        def loss(hyperparameters, is_private):
            learning_rate, scale = hyperparameters
            changes = settings(
                learning_rate=learning_rate,
                estimator=SmoothedTruncation(scale if not is_private else 2.0),
            )
            solver = dp_gradient_descent
            if not is_private:
                solver = robust_gradient_descent
                for name in ("key", "epsilon", "delta"):
                    del changes[name]
            start = jnp.zeros(2, jnp.float64)
            params = solver(losses.squared, start, (features, targets), **changes)
            return jnp.sum((params.params - jnp.array([1.0, 2.0])) ** 2)

        point, step = jnp.array([0.3, 2.0]), 1e-5
        for is_private in (False, True):
            fn = jax.jit(functools.partial(loss, is_private=is_private))
            forward = jax.jit(jax.jacfwd(fn))(point)
            reverse = jax.jit(jax.grad(fn))(point)
            numeric = [
                (fn(point + step * e) - fn(point - step * e)) / (2 * step)
                for e in jnp.eye(2)
            ]
            np.testing.assert_allclose(forward, reverse, rtol=1e-9)
            # Central differences: an error of step^2 times the third derivative.
            np.testing.assert_allclose(reverse, numeric, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_memory_of_reverse_mode_does_not_grow_with_the_folds():
    def temporary_bytes(num_samples):
        @jax.jit
        def gradient(learning_rate, data):
            def loss(learning_rate):
                changes = settings(learning_rate=learning_rate, num_steps=3)
                start = jnp.zeros(8)
                return jnp.sum(
                    dp_gradient_descent(location, start, data, **changes).params
                )

            return jax.grad(loss)(learning_rate)

        data = jax.ShapeDtypeStruct((num_samples, 8), jnp.float32)
        compiled = gradient.lower(0.1, data).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    small, large = temporary_bytes(2**13), temporary_bytes(2**17)
    # All gradients of one step would take 4 MB more.
    assert large - small < 2**20


def bad(**changes):
    return changes


BAD = [
    (bad(learning_rate=None), "learning_rate must be positive and finite, got None"),
    (bad(num_steps=41, batching=Disjoint()), "num_steps must be at most the 40"),
    (bad(batching=Poisson(41.0)), "expected_batch_size must be at most the number"),
    (bad(batching=Poisson(9.0, capacity=9)), "capacity must be at least"),
    (bad(batching=WithoutReplacement(41)), "batch_size must be at most the number"),
    *(
        (bad(batching=x, estimator=ESTIMATORS["medians"]), r"batching must be .* index")
        for x in BATCHINGS.values()
        if x.is_sampled
    ),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_bad_arguments_before_any_computation(changes, message):
    calls = []

    def loss_fn(params, example):
        calls.append(1)
        return location(params, example)

    with pytest.raises(ValueError, match=message):
        descend(loss_fn, data=jnp.zeros((40, 2)), **changes)
    assert not calls


def test_baseline_asks_for_a_key_where_it_draws():
    for batching in (Poisson(4.0), WithoutReplacement(4)):
        with pytest.raises(ValueError, match="key must be given where batches"):
            robust_gradient_descent(
                location,
                jnp.zeros(2),
                jnp.zeros((40, 2)),
                estimator=Mean(),
                learning_rate=0.1,
                batching=batching,
            )
