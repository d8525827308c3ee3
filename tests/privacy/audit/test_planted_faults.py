"""Audits have power: faults that have been made in practice and in print are caught.

Each is planted in a release that is sound but for it, and both are audited with the
claim of the sound one, as the cases of `benchmarks.audits` are. Faults of papers have
their printed constant and their own claim.
"""

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from dp_accounting import UnsupportedDpEvent, ZCDpEvent

from benchmarks.audits.case import Case
from benchmarks.audits.transforms import gaussian_claim
from benchmarks.figures import printed
from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE, losses, solvers, transforms
from dpjax._sums.fold import Unrounded
from dpjax.accounting import PrivacyGuarantee, gaussian_epsilon, rho_to_epsilon
from dpjax.estimators import Clipping, Mean, MedianOfMeans, TrimmedMean, Truncation
from dpjax.estimators._clipping import clip_to_norm
from dpjax.mechanisms import arsinh_normal, gaussian
from dpjax.solvers.statistics._moments import noisy_second_moments
from dpjax.solvers.statistics._noisy_quantile import noisy_quantile

EPSILON, DELTA = 4.0, 1e-5  # of `gaussian_claim`
gaussian_case = partial(Case, is_gaussian=True)
ROOTS_EPSILON = 1.0
OBJECTIVE = {"num_samples": 1, "regularization": 1.0, "curvature_bound": 0.25}


class Fault(NamedTuple):
    """A release with a fault, and what an accountant says that it costs."""

    build: Callable[[bool], Case]  # build(is_planted): with the fault or without it
    epsilon: float  # at the claim's delta, or a bound of it; inf where none holds


def cost(excess):
    multiplier, _ = gaussian_claim()
    return gaussian_epsilon(multiplier, DELTA, sensitivity=excess)


def turned(values):
    data = jnp.array(values)
    return data, data.at[-1].multiply(-1)


def privatized(grads, key, multiplier, relation=REPLACE_ONE):
    """A private mean of gradients that are clipped to norm 1."""
    options = {"normalize_by": len(grads), "relation": relation, "sampled": False}
    transform = transforms.privatize(
        Clipping(1.0), noise_multiplier=multiplier, key=key, **options
    )
    return transform.update(grads, transform.init(None))[0]


def one_update(factor=1.0, relation=REPLACE_ONE):
    multiplier, privacy = gaussian_claim()

    def release(key, grads):
        return privatized(grads, key, factor * multiplier, relation)

    return gaussian_case(release, *turned([[0.0, 0.0], [3.0, 4.0]]), privacy)


def noise_halved(is_planted):
    return one_update(0.5 if is_planted else 1.0)


def sensitivity_of_add_or_remove(is_planted):
    # A record that is replaced moves the sum twice as far as one that is removed.
    return one_update(relation=ADD_OR_REMOVE_ONE if is_planted else REPLACE_ONE)


def key_used_twice(is_planted):
    # Gradients of two steps under the same noise: their difference has none.
    multiplier, privacy = gaussian_claim(num_releases=2)

    def release(key, grads):
        first, second = two_keys(key, is_planted)
        releases = (grads, first), (-grads, second)
        return tuple(privatized(*pair, multiplier) for pair in releases)

    return gaussian_case(release, *turned([[0.0], [3.0]]), privacy)


def two_keys(key, is_same):
    return (key, jax.random.clone(key)) if is_same else jax.random.split(key)


def division_by_realised_size(is_planted):
    # Three records at -1 and one at 1: without it their mean is -1, with it -1/2.
    # Divided by four in any case, the sum of the three is -3/4.
    multiplier, privacy = gaussian_claim(relation=ADD_OR_REMOVE_ONE)
    estimator, public_size = Clipping(1.0), 4.0
    sensitivity = estimator.sensitivity(public_size, 1, ADD_OR_REMOVE_ONE).l2

    def release(key, batch):
        grads, is_padding_example = batch
        realised_size = jnp.sum(~is_padding_example).astype(jnp.float32)
        size = realised_size if is_planted else public_size
        mean = estimator(grads, is_padding_example, normalize_by=size)
        return gaussian(key, mean, stddev=multiplier * sensitivity)

    grads = jnp.array([-1.0, -1.0, -1.0, 1.0])
    masks = [jnp.array([False, False, False, is_out]) for is_out in (False, True)]
    return gaussian_case(release, *((grads, mask) for mask in masks), privacy)


def clipping_of_the_batch(is_planted):
    # The mean of eight gradients is clipped to the norm, not each of them.
    multiplier, privacy = gaussian_claim()
    stddev = multiplier * Clipping(1.0).sensitivity(8, 1).l2

    def release(key, grads):
        mean = clip_to_norm(Mean()(grads), 1.0) if is_planted else Clipping(1.0)(grads)
        return gaussian(key, mean, stddev=stddev)

    return gaussian_case(release, *turned([0.0] * 7 + [1e9]), privacy)


def paper_001_scale_that_is_not_smooth(is_planted):
    # Algorithm 2 is said to be (epsilon^2/2)-zCDP with noise in units of 1/s times
    # max((x_(n) - x_(1)) / (n - 2m), e^(-mt) (b - a)), t = epsilon^2/16, s = epsilon/4.
    # An outlier moves that from 1 to 3e8; a smooth sensitivity would move by e^t.
    paper_epsilon = 0.5
    rho, smoothness = paper_epsilon**2 / 2, paper_epsilon**2 / 16
    estimator = TrimmedMean(0.2, lower=0.0, upper=1.0)  # m = 1 of n = 5

    def release(key, samples):
        mean, sensitivity = estimator.with_smooth_sensitivity(samples, smoothness)
        if is_planted:
            spread = (samples.max() - samples.min()) / 3
            sensitivity = jnp.maximum(spread, math.exp(-smoothness))
        scale = sensitivity * 4 / paper_epsilon
        return arsinh_normal(key, mean, scale=scale, sigma=1.0)

    epsilon = rho_to_epsilon(rho, DELTA)
    privacy = PrivacyGuarantee.of(epsilon, DELTA, dp_event=ZCDpEvent(rho))
    return Case(release, jnp.zeros(5), jnp.zeros(5).at[-1].set(1e9), privacy)


def paper_002_one_noise_for_all_rounds(is_planted):
    # The third party of Algorithm 1 sees S_t = G(w_t) + eta in each round, with one
    # eta: S_2 - S_1 = G(w_2) - G(w_1), at points that it knows. G has slope 2 on one
    # data set and slope 1 on the other, where a record has x = 0.
    multiplier, privacy = gaussian_claim(num_releases=2)
    objective = {"num_samples": 2, "regularization": 1.0, "curvature_bound": 1.0}
    noise = printed.procedure_3(EPSILON, DELTA, num_features=1, **objective)
    stddev = noise.stddev if is_planted else 2 * multiplier
    rate, estimator = 0.01, Clipping(1.0)

    def release(key, features):
        params, sums = jnp.zeros(()), []
        for round_key in two_keys(key, is_planted):
            total = 2 * estimator(features * (features * params - 0.5))
            sums.append(gaussian(round_key, total, stddev=stddev))
            params = params - rate * sums[-1]
        return sums

    def slope(sums):
        return (sums[1] - sums[0]) / (rate * sums[0])

    data = jnp.ones(2)
    return gaussian_case(release, data, data.at[-1].set(0.0), privacy, slope)


def l1_regression(key, features, is_printed):
    solve = printed.l1_regression if is_printed else solvers.dp_l1_regression
    options = {"epsilon": 2.0, "candidates": jnp.eye(2), "truncation": 1.0}
    return solve(features, jnp.zeros(2), key=key, **options)


def paper_000_exponent(is_planted):
    # Algorithm 1 divides by the sensitivity D = log(2) / (n iota), where scores change
    # by 2D against each other: it is 2 epsilon-DP. Two candidates tie, or one of them
    # is ahead by 2D; the other then has 1 / (1 + e^(2 epsilon)) in place of 1/2, which
    # at epsilon = 2 is a ratio of e^3.3.
    data = jnp.array([[0.0, 9.0], [9.0, 0.0]])
    privacy = PrivacyGuarantee.of(2.0, 0.0, dp_event=UnsupportedDpEvent())

    def release(key, features):
        return l1_regression(key, features, is_planted).params

    return Case(release, data, data.at[0].set(data[1]), privacy)


def paper_003_group_size(is_planted):
    # Algorithm 3 takes 2 tau m / n for the sensitivity. With n = 61 and m = 31 the last
    # group, which is the median, has one record and not n/m = 1.97.
    multiplier, privacy = gaussian_claim()
    num_samples, num_groups = 61, 31
    estimator = MedianOfMeans(Truncation(1.0), num_groups)
    sensitivity = 2 * num_groups / num_samples
    if not is_planted:
        sensitivity = estimator.sensitivity(num_samples, 1).l2

    def release(key, samples):
        return gaussian(key, estimator(samples), stddev=multiplier * sensitivity)

    samples = [1.0] * 30 + [-1.0] * 30 + [1.0]
    return gaussian_case(release, *turned(samples), privacy)


def roots():
    noise = printed.procedure_3(ROOTS_EPSILON, DELTA, num_features=1, **OBJECTIVE)
    assert noise.extra_regularization == 0
    # The roots of sigma^2 e -+ 2 q sigma - 2 = 0: their product is 2/e.
    remaining = ROOTS_EPSILON - 2 * math.log1p(0.25)
    return noise.stddev, 2 / (remaining * noise.stddev)


def paper_002_second_root(is_planted):
    # P(chi^2 <= ((sigma^2 e - 2) / (2 sigma))^2) = 1 - delta, Procedure 3, holds for a
    # small sigma too, with sigma^2 e < 2.
    stddev = roots()[1 if is_planted else 0]
    loss = losses.logistic

    def release(key, label):
        eta = gaussian(key, jnp.zeros(()), stddev=stddev)

        def step(_, params):
            gradient = loss.derivative(label * params) * label + params + eta
            return params - gradient / 1.25  # shrinks to a fifth at each step

        return jax.lax.fori_loop(0, 20, step, jnp.zeros(()))

    privacy = PrivacyGuarantee.of(ROOTS_EPSILON, DELTA, dp_event=UnsupportedDpEvent())
    return Case(release, jnp.ones(()), -jnp.ones(()), privacy)


def second_moments_without_root_two(is_planted):
    # Of a row that turns by a right angle, two entries of the diagonal move.
    multiplier, privacy = gaussian_claim()
    if is_planted:
        multiplier /= 2**0.5

    def release(key, rows):
        moments, _ = noisy_second_moments(
            key, rows, radius=1.0, noise_multiplier=multiplier, axis_name=None
        )
        return moments[0, 0] - moments[1, 1]

    rows = jnp.array([[0.0, 0.0], [9.0, 0.0]])
    return gaussian_case(release, rows, rows[:, ::-1], privacy)


def threshold_unpaid(is_planted):
    # Three quantiles of the sizes, and gradients clipped to the last: four releases.
    # Quantiles are near 4, and tell how many are above: the last record, or not.
    multiplier, privacy = gaussian_claim(num_releases=1 if is_planted else 4)
    num = 100_000.0
    others = jnp.repeat(jnp.array([3.0, 6.0], jnp.float32), int(num))

    def release(key, grads):
        mean_key, *size_keys = jax.random.split(key, 4)
        options = {"num_above": 1.05 * num, "noise_multiplier": multiplier}
        values = jnp.concatenate([others, jnp.abs(grads[0])])
        sizes = [noisy_quantile(size_key, values, **options) for size_key in size_keys]
        mean = privatized(grads / sizes[-1], mean_key, multiplier)[0]
        return mean + sum((jnp.log2(size) - 1.95) * num for size in sizes)

    return gaussian_case(release, jnp.array([[6.0]]), jnp.array([[-3.99]]), privacy)


@functools.cache
def means_near_one():
    # Of 2^24 + 3 ones or one fewer, over 2^24: as floats they are two records apart.
    multiplier, _ = gaussian_claim()
    ones = jnp.ones(2**24 + 3)

    @jax.jit
    def measure(num):
        options = {"normalize_by": 2.0**24, "relation": ADD_OR_REMOVE_ONE}
        transform = transforms.privatize(
            Clipping(1.0), noise_multiplier=multiplier, key=jax.random.key(0), **options
        )
        is_padding_example = jnp.arange(ones.size) >= num
        state = transform.init(None)
        return transform.measure(ones, state, is_padding_example=is_padding_example)

    return measure(ones.size), measure(ones.size - 1)


def noise_after_rounding(is_planted):
    # The noise is for the exact mean, but is added to a float.
    multiplier, privacy = gaussian_claim(relation=ADD_OR_REMOVE_ONE)

    def release(key, mean):
        if is_planted:
            mean = mean._replace(value=Unrounded.of(mean.value.high))
        transform = transforms.privatize(
            Clipping(1.0), noise_multiplier=multiplier, key=key
        )
        return transform.release(mean, transform.init(None))[0] - 1

    return gaussian_case(release, *means_near_one(), privacy)


PAPER_000 = jax.eval_shape(
    partial(l1_regression, is_printed=True), jax.random.key(0), jnp.zeros((2, 2))
)
PAPER_002 = gaussian_epsilon(roots()[1], 0.999 * DELTA, sensitivity=2)
PAPER_002 += math.log1p(0.25)  # of the minimizer's Jacobian
FAULTS = {
    build.__name__: Fault(build, epsilon)
    for build, epsilon in {
        noise_halved: cost(2),
        sensitivity_of_add_or_remove: cost(2),
        key_used_twice: math.inf,
        division_by_realised_size: cost(2),
        clipping_of_the_batch: cost(8),
        paper_001_scale_that_is_not_smooth: math.inf,
        paper_002_one_noise_for_all_rounds: math.inf,
        paper_000_exponent: PAPER_000.privacy.epsilon,
        paper_003_group_size: cost(61 / 31),
        paper_002_second_root: PAPER_002,
        second_moments_without_root_two: cost(2**0.5),
        threshold_unpaid: cost(2),
        noise_after_rounding: cost(2),
    }.items()
}


@pytest.mark.parametrize(
    "is_all", [False, pytest.param(True, marks=pytest.mark.quick(0))]
)
@pytest.mark.parametrize("name", FAULTS)
def test_a_few_releases_catch(name, is_all, key):
    case = FAULTS[name].build(True)
    few = max(200, case.num_releases // 20)
    audit = case.audit(key=key, num_releases=case.num_releases if is_all else few)
    assert case.privacy.epsilon < audit.epsilon <= FAULTS[name].epsilon
    assert (audit.delta, audit.confidence) == (case.privacy.delta, 1 - 1e-6)


@pytest.mark.quick(0)
@pytest.mark.parametrize("name", FAULTS)
def test_without_the_fault_the_claim_stands(name, key):
    case = FAULTS[name].build(False)
    assert case.privacy.epsilon == FAULTS[name].build(True).privacy.epsilon
    assert case.audit(key=key).epsilon <= case.privacy.epsilon
