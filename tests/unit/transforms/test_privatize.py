"""`privatize`: its noise by either sensitivity, the divisor, the key, the pitfalls."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from jax.flatten_util import ravel_pytree

import dpjax
from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE, estimators, gradients, mechanisms
from dpjax.accounting._smooth import calibrate_smooth_noise
from dpjax.transforms import aggregate, dp_sgd, privatize
from tests.unit.refusals import refused

FALSE_ALARM = 1e-6
WINSORIZATION, TRUNCATION = estimators.Winsorization(1.0), estimators.Truncation(1.0)
CLIPPING = estimators.Clipping(1.0)
NOISES = [("clipping", REPLACE_ONE, None), ("medians", REPLACE_ONE, None)]
NOISES += [("smoothed", REPLACE_ONE, 5.0), ("winsorization", ADD_OR_REMOVE_ONE, 40.0)]
ESTIMATORS = {
    "clipping": estimators.Clipping(2.0),
    "winsorization": estimators.Winsorization(3.0),
    "smoothed": estimators.SmoothedTruncation(1.5),
    "medians": estimators.MedianOfMeans(estimators.Truncation(0.5), 3),
}


def updated(transform, updates, **kwargs):
    params = jax.tree.map(lambda x: x[0], updates)
    return transform.update(updates, transform.init(params), params, **kwargs)[0]


def stddev_bounds(num_draws):
    """Where stddev / (the claimed one) lies, but for one run in a million."""
    law = scipy.stats.chi2(num_draws)
    low, high = law.ppf(FALSE_ALARM / 2), law.isf(FALSE_ALARM / 2)
    return math.sqrt(low / num_draws), math.sqrt(high / num_draws)


@pytest.mark.parametrize(("name", "relation", "normalize_by"), NOISES)
def test_noise_is_the_multiplier_times_the_sensitivity(
    name, relation, normalize_by, key
):
    estimator, multiplier, num_rows, size = ESTIMATORS[name], 1.7, 12, 5_000
    options = {"normalize_by": normalize_by, "relation": relation}
    options["sampled"] = False if name == "medians" else None
    transform = private(estimator, multiplier, key, **options)
    grads = {"a": jnp.zeros((num_rows, size)), "b": jnp.zeros((num_rows, 50, 100))}
    noise = np.concatenate([x.ravel() for x in updated(transform, grads).values()])
    sensitivity = estimator.sensitivity(normalize_by or num_rows, 2 * size, relation).l2
    low, high = stddev_bounds(noise.size)
    ratio = math.sqrt(np.mean(np.square(noise, dtype=np.float64)))
    ratio /= multiplier * sensitivity
    assert low < ratio < high
    assert high < 1.05  # so that half the noise, or 2/3 of it, is far outside
    assert low > 0.95
    distance = scipy.stats.kstest(noise / (multiplier * sensitivity), "norm").statistic
    assert distance < math.sqrt(math.log(2 / FALSE_ALARM) / (2 * noise.size))


def private(estimator=WINSORIZATION, multiplier=1.0, key=None, **options):
    key = jax.random.key(0) if key is None else key
    return privatize(estimator, noise_multiplier=multiplier, key=key, **options)


@pytest.mark.parametrize("normalize_by", [None, 40.0])
def test_the_mask_does_not_change_the_divisor(normalize_by, key):
    grads, divisor = jax.random.normal(key, (16, 3)), normalize_by or 16
    mask, options = jnp.arange(16) >= 5, {"normalize_by": normalize_by}
    clipped = jnp.clip(grads, -1, 1)
    masked = updated(private(multiplier=0.0, **options), grads, is_padding_example=mask)
    np.testing.assert_allclose(masked, clipped[:5].sum(axis=0) / divisor, rtol=1e-6)
    plain = updated(aggregate(WINSORIZATION, **options), grads)
    np.testing.assert_allclose(plain, clipped.sum(axis=0) / divisor, rtol=1e-6)
    # The noise does not depend on the mask either, were it even all padding.
    noise, with_rows = (
        updated(private(**options), grads, is_padding_example=x)
        for x in (jnp.ones(16, bool), mask)
    )
    np.testing.assert_allclose(with_rows - masked, noise, rtol=1e-4, atol=1e-5)
    assert 0 < jnp.abs(noise).max() < 6 * WINSORIZATION.sensitivity(divisor, 3).l2


def test_a_mask_is_of_a_batch_that_was_sampled():
    # Its noise is that of the same divisor given by hand, not that of all records.
    grads, mask = jnp.zeros((16, 3)), {"is_padding_example": jnp.arange(16) >= 5}
    noise = [updated(private(normalize_by=n), grads, **mask) for n in (None, 16.0)]
    np.testing.assert_array_equal(*noise)
    sampled = WINSORIZATION.sampled_sensitivity(16, 3, rounded=False)
    full = WINSORIZATION.sensitivity(16, 3, rounded=False)
    assert sampled.l2 > 1.0001 * full.l2
    ratio = noise[0] / updated(private(), grads)
    np.testing.assert_allclose(ratio, sampled.l2 / full.l2, rtol=1e-5)


@pytest.mark.parametrize("is_whole", [True, False], ids=["the chain", "its first"])
def test_injected_hyperparameters_follow_their_schedule(is_whole, key):
    def inner(noise_multiplier):
        return private(TRUNCATION, noise_multiplier, key)

    schedule = optax.piecewise_constant_schedule(2.0, {1: 0.0})  # 2, then nothing
    first = optax.inject_hyperparams(inner)(noise_multiplier=schedule)
    with pytest.raises(ValueError, match=r"transforms\[0\] .* around the chain"):
        dpjax.chain(first, optax.scale(1.0))
    wrapped = optax.inject_hyperparams(
        lambda noise_multiplier: dpjax.chain(inner(noise_multiplier), optax.scale(1.0))
    )(noise_multiplier=schedule)
    optimizer = wrapped if is_whole else optax.chain(first, optax.scale(1.0))
    params, rows = jnp.zeros(2_000), jnp.full((4, 2_000), 0.5)

    @jax.jit
    def update(state):
        stream = gradients.streamed_grad(jnp.vdot)(params, rows, jnp.zeros(4, bool))
        return optimizer.update(stream, state, params)

    with jax.numpy_dtype_promotion("standard"):
        noisy, state = update(optimizer.init(params))
        mean, _ = update(state)
    stddev = 2.0 * TRUNCATION.sensitivity(4, 2_000).l2
    low, high = stddev_bounds(2_000)
    assert low < np.sqrt(np.mean(np.square(noisy - 0.5))) / stddev < high
    np.testing.assert_allclose(mean, 0.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("rate", "name"), [(0.3, "bands"), (optax.constant_schedule(0.3), None)]
)
def test_dp_sgd_is_privatize_then_sgd(rate, name):
    grads = jnp.asarray(np.random.default_rng(0).standard_t(2, (10, 4)), jnp.float32)
    mask, results = {"is_padding_example": jnp.arange(10) == 3}, []
    options = {"noise_multiplier": 0.5, "noise": name and STRATEGIES[name]}

    def chained(*args, **options):
        return optax.chain(privatize(*args, **options), optax.sgd(rate))

    for make in (partial(dp_sgd, rate), chained):
        key = jax.random.key(7)
        optimizer = make(TRUNCATION, key=key, normalize_by=12.0, **options)
        first, state = optimizer.update(grads, optimizer.init(grads[0]), **mask)
        results.append((first, optimizer.update(grads, state, **mask)[0]))
    jax.tree.map(np.testing.assert_array_equal, *results)
    assert (results[0][0] != results[0][1]).all()


def without_noise(make):
    return lambda key, noise_multiplier, **options: make(CLIPPING, **options)


ADAPTIVE = estimators.AdaptiveThreshold(CLIPPING, lower=0.1, upper=9.0)
DIVIDING = {
    "privatize": partial(privatize, CLIPPING),
    "of scaled": partial(privatize, estimators.Scaled(CLIPPING, 2.0)),
    "of adaptive": partial(privatize, ADAPTIVE),
    "dp_sgd": partial(dp_sgd, 0.1, CLIPPING),
    "aggregate": without_noise(aggregate),
    "robust_grad": without_noise(partial(dpjax.robust_grad, jnp.multiply)),
}


@pytest.mark.parametrize("name", DIVIDING)
def test_a_private_size_divides_nothing(name, key):
    make = partial(DIVIDING[name], key=key, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="normalize_by must be given under ADD_OR_REM"):
        make(relation=ADD_OR_REMOVE_ONE)
    make(relation=ADD_OR_REMOVE_ONE, normalize_by=3)
    with pytest.raises(ValueError, match="relation must be REPLACE_ONE or ADD_OR_REM"):
        make(relation="replace", normalize_by=3)


TRIMMED = estimators.TrimmedMean(0.1, -1.0, 1.0)
smoothly = jax.jit(TRIMMED.with_smooth_sensitivity, static_argnums=1)
EACH_FIRST = {
    "aggregate": lambda key: aggregate(TRUNCATION),
    "privatize": lambda key: private(TRUNCATION, key=key),
    "dp_sgd": lambda key: dp_sgd(0.1, TRUNCATION, noise_multiplier=1.0, key=key),
    "trimmed mean": lambda key: private(TRIMMED, key=key),
}
each_first = pytest.mark.parametrize("name", EACH_FIRST)
WRAPPERS = {
    # Leaves that are masked out would pass raw per-sample gradients through.
    "masked": lambda inner: optax.masked(inner, {"w": True, "other": False}),
    "apply_if_finite": lambda inner: optax.apply_if_finite(inner, 5),
    "MultiSteps": lambda inner: optax.MultiSteps(inner, every_k_schedule=4),
}


@each_first
def test_gradients_have_a_sample_axis(name, key):
    transform = EACH_FIRST[name](key)
    params = {"a": jnp.zeros((8, 2)), "b": jnp.zeros(8)}  # all share an axis
    state = transform.init(params)
    with pytest.raises(ValueError, match="updates must be per-sample gradients"):
        transform.update(params, state, params)
    params = {"a": jnp.zeros((8, 2)), "b": jnp.zeros(()), "c": None}
    grads = {"a": jnp.ones((8, 8, 2)), "b": jnp.ones(8), "c": None}
    update = jax.eval_shape(transform.update, grads, transform.init(params), params)[0]
    assert (update["a"].shape, update["b"].shape) == ((8, 2), ())


@each_first
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_that_break_the_privacy_are_refused(name, wrapper, key):
    inner = EACH_FIRST[name](key)
    params = {"w": jnp.zeros(2), "other": jnp.zeros(3)}
    grads = {"w": jnp.ones((6, 2)), "other": jnp.full((6, 3), 7.0)}
    message = f"optax.{wrapper} must not stand around privatize"
    for of_it in (inner, optax.chain(inner, optax.sgd(0.1))):
        optimizer = WRAPPERS[wrapper](of_it)
        with pytest.raises(ValueError, match=message):
            optimizer.init(params)
        if wrapper == "MultiSteps":
            continue  # its state begins with that of the first init
        state = of_it.init(params)  # even so
        if wrapper == "masked":
            state = optax.MaskedState(state)
        else:
            zero = jnp.int32(0)
            state = optax.ApplyIfFiniteState(zero, jnp.array(True), zero, state)
        with pytest.raises(ValueError, match=message):
            jax.jit(optimizer.update)(grads, state, params)


def test_wrappers_may_stand_after_privatize(key):
    mean = EACH_FIRST["privatize"](key)
    grads = {"w": jnp.ones((6, 2)), "frozen": jnp.full((6, 3), 7.0)}
    frozen = optax.masked(optax.set_to_zero(), {"w": False, "frozen": True})
    optimizer = optax.chain(mean, frozen, optax.apply_if_finite(optax.sgd(0.1), 5))
    result = updated(optimizer, grads)
    assert result["w"].shape == (2,)
    np.testing.assert_array_equal(result["frozen"], jnp.zeros(3))


# -- Correlated noise ------------------------------------------------------------------
T = 6
STRATEGIES = {
    "bands": mechanisms.BandedToeplitz.square_root(T, 3),
    "buffers": mechanisms.BufferedToeplitz(T, decays=(0.9, 0.25), scales=(0.3, 0.2)),
}


def released(strategy, key, params):
    """All updates of a run, leaves (T, ...)."""
    transform = private(multiplier=3.0, key=key, noise=strategy)
    grads = jax.tree.map(lambda x: jnp.stack([x] * 4), params)

    def step(state, _):
        updates, state = transform.update(grads, state, params)
        return state, updates

    return jax.lax.scan(step, transform.init(params), length=T)[1]


@pytest.mark.parametrize("name", STRATEGIES)
def test_correlated_noise_is_independent_noise_of_the_same_keys_times_the_inverse(name):
    # What a run adds with C is C^-1 times what it adds without.
    params = {"w": jnp.zeros((2, 3)), "b": jnp.zeros(())}
    run = jax.jit(released, static_argnums=0)
    correlated = run(STRATEGIES[name], jax.random.key(1), params)
    independent = run(None, jax.random.key(1), params)
    matrix = STRATEGIES[name].matrix()
    for x, z in zip(*map(jax.tree.leaves, (correlated, independent)), strict=True):
        assert np.abs(z).min() > 0
        x, z = (np.float64(y).reshape(T, -1) for y in (x, z))
        np.testing.assert_allclose(matrix @ x, z, rtol=1e-5, atol=1e-5)


# -- Noise by smooth sensitivity ------------------------------------------------------
def test_noise_is_the_multiplier_times_the_smooth_sensitivity(key):
    rho, n, d = 40.0, 50, 20_000
    samples = np.random.default_rng(0).standard_t(2, (n, d // 2))
    samples *= np.tile([0.0, 1e-2, 1.0, 1e2], d // 8)  # of very different spread
    grads = {"a": jnp.float32(samples), "b": jnp.zeros((n, d // 2))}
    released = updated(private(TRIMMED, (2 * rho) ** -0.5, key), grads)
    # Each of d coordinates gets a d-th of the budget.
    law = calibrate_smooth_noise(rho / d, num_samples=n, trim_count=5)
    cost = law.smoothness / law.sigma + np.exp(1.5 * law.sigma**2) / law.multiplier
    assert 0.999 * rho < d * cost**2 / 2 <= rho
    mean, sensitivity = smoothly(grads, law.smoothness)
    trees = (ravel_pytree(tree)[0] for tree in (released, mean, sensitivity))
    x, y, s = map(np.float64, trees)
    units = (x - y) / (law.multiplier * s)
    assert units.size == d
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    rates, weights = np.exp(-law.sigma * nodes), weights / weights.sum()

    def distance(scale):
        def cdf(z):  # of Laplace noise of every spread, averaged
            tails = np.exp(-np.abs(z)[:, None] / scale * rates)
            return 0.5 + 0.5 * np.sign(z) * (1 - tails @ weights)

        return scipy.stats.kstest(units, cdf).statistic

    # Massart: Pr[distance > t] <= 2 exp(-2 n t^2).
    bound = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * d))
    assert distance(1.0) <= bound
    for wrong in (2 / 3, 3 / 2):
        assert distance(wrong) > 2 * bound


def test_the_guess_of_the_spread_changes_the_split_alone(key):
    grads = jax.random.normal(key, (200, 4))
    transform = private(dataclasses.replace(TRIMMED, relative_spread=1e4), 2e6**-0.5)
    sizes = {"num_samples": 200, "trim_count": 20, "relative_spread": 1e4}
    noise = calibrate_smooth_noise(1e6 / 4, **sizes)
    mean, sensitivity = smoothly(grads, noise.smoothness)
    # Laplace beyond 45 scales, normal beyond 9.4: never drawn.
    largest = 45 * math.exp(9.4 * noise.sigma) * noise.multiplier * sensitivity
    assert (jnp.abs(updated(transform, grads) - mean) <= largest).all()


ROWS, MASK = jnp.zeros((10, 2)), {"is_padding_example": jnp.zeros(10, bool)}
of_trimmed = partial(private, TRIMMED)
test_what_does_not_fit_a_trimmed_mean_is_named = refused(
    lambda call: call(),
    (
        lambda: jax.jit(lambda x: updated(of_trimmed(x), ROWS))(1.0),
        "noise_multiplier must be a concrete number",
    ),
    (lambda: updated(of_trimmed(), ROWS, **MASK), "must be one that takes masks"),
    (lambda: updated(of_trimmed(sampled=False), ROWS, **MASK), "padding_example must"),
    (lambda: of_trimmed(relation=ADD_OR_REMOVE_ONE), "must be one that takes masks"),
    (
        lambda: of_trimmed(noise=mechanisms.BandedToeplitz(4, (1.0,))),
        "noise must be None with Trimmed",
    ),
    (lambda: updated(of_trimmed(), ROWS[:2]), "num_samples must be more than the 2"),
    (lambda: updated(of_trimmed(), {"a": ROWS, "b": ROWS[:5]}), "arrays that share"),
)
