"""The transforms' claims, on the record that moves updates as far as any can.

Claims by zCDP exceed what the noise costs: they are at delta = 0.05 and rho = 1/2.
"""

import dataclasses
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import UnsupportedDpEvent, ZCDpEvent

from benchmarks.audits.case import Build, Case, last_turned
from dpjax import accounting, estimators, transforms
from dpjax._types import ADD_OR_REMOVE_ONE, REPLACE_ONE, Key, PyTree
from dpjax.accounting import PrivacyGuarantee
from dpjax.accounting._selection import selection_event
from dpjax.accounting._smooth import calibrate_smooth_noise
from dpjax.accounting._subsampling import gaussian_event
from dpjax.batching import CyclicPoisson, Full
from dpjax.constraints import Simplex
from dpjax.estimators import (
    AdaptiveThreshold,
    Clipping,
    Estimator,
    Grouped,
    MedianOfMeans,
    Scaled,
    TrimmedMean,
    Truncation,
    Winsorization,
)
from dpjax.mechanisms import BandedToeplitz, BufferedToeplitz

Transform = optax.GradientTransformationExtraArgs

_EPSILON, _DELTA = 4.0, 1e-5
_RHO, _ZCDP_DELTA = 0.5, 0.05
_TURNED = [[0.0, 0.0], [1.0, -1.0]], [[0.0, 0.0], [1e15, -1e15]]  # near, and far
_NUM_STEPS = 4  # of correlated noise
_RECORDS = [[0.0, 0.0]] * 3 + [[3e9, 4e9]]


def gaussian_claim(num_releases=1, relation=REPLACE_ONE):
    """Returns stddev / l2 sensitivity of each release, and the guarantee of all."""
    multiplier = accounting.gaussian_stddev(
        _EPSILON, _DELTA, sensitivity=1.0, num_releases=num_releases
    )
    event = gaussian_event(multiplier, accounting.Sampling(num_releases))
    return multiplier, PrivacyGuarantee.of(
        _EPSILON, _DELTA, dp_event=event, relation=relation
    )


def _kinds_of_one_number() -> dict[str, Build]:
    """The gradient with the largest influence turns round, a case an estimator."""
    cases: dict[str, Build] = {}
    for kind in vars(estimators).values():
        if isinstance(kind, type) and issubclass(kind, Estimator):
            fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
            if sum(x.default is dataclasses.MISSING for x in fields) == 1:
                words = re.sub("(?=[A-Z])", "_", kind.__name__).lower()
                cases[f"privatize{words}"] = partial(_farthest, kind)
    return cases


def _privatize_added_record() -> Case:
    """A row of a padded batch is filled, under add/remove."""
    multiplier, privacy = gaussian_claim(relation=ADD_OR_REMOVE_ONE)
    options = {"normalize_by": 2.0, "relation": ADD_OR_REMOVE_ONE}

    def release(key: Key, batch: PyTree) -> PyTree:
        grads, is_padding = batch
        transform = _privatize(Clipping(1.0), multiplier, key, **options)
        state = transform.init(grads[0])
        return transform.update(grads, state, is_padding_example=is_padding)[0]

    grads = jnp.array([[0.0, 0.0], [9.0, 9.0], [3e9, 4e9]])
    data = grads, jnp.array([False, True, True])
    neighbor = grads, jnp.array([False, True, False])
    return Case(release, data, neighbor, privacy, is_gaussian=True)


def _add_gaussian_noise() -> Case:
    """Noise for the sensitivity of a mean, which one gradient moves."""
    multiplier, privacy = gaussian_claim()
    estimator = Winsorization(1.0)
    stddev = multiplier * estimator.sensitivity(2, 2).l2

    def make(key: Key) -> Transform:
        noise = transforms.add_gaussian_noise(stddev=stddev, key=key)
        return optax.chain(transforms.aggregate(estimator), noise)

    return _of_update(make, [[0.0, 0.0], [9.0, -9.0]], privacy, is_gaussian=True)


def _privatize_trimmed_mean() -> Case:
    """Sixteen coordinates cross the clamp, as far as one gradient can move them."""

    def statistic(mean: jax.Array) -> jax.Array:
        return jnp.sum(jnp.abs(mean + 1) - jnp.abs(mean - 1))  # as of Laplace noise

    grads = np.outer([-9.0, 9.0, 9.0], np.ones(16))
    estimator = TrimmedMean(0.34, lower=-1.0, upper=1.0)
    return _smoothly_privatized(estimator, grads, statistic=statistic)


def _privatize_trimmed_mean_smooth() -> Case:
    """The smooth sensitivity grows by its e^t, and the mean moves by all of it.

    A tenth of the claim shows: a new scale and a shift do not peak together.
    """
    num_samples, num_trimmed, num_outliers = 60, 15, 12
    num_kept, num_next = num_samples - 2 * num_trimmed, num_trimmed - num_outliers
    sizes = {"num_samples": num_samples, "trim_count": num_trimmed}
    noise = calibrate_smooth_noise(_RHO, **sizes)
    # S = e^(-3t) (upper - lower), by the outliers and by the values next to them.
    grads = np.zeros((num_samples, 1))
    grads[-num_trimmed:] = num_kept * np.exp(-num_next * noise.smoothness)
    grads[-num_outliers:] = 1e9
    neighbor = grads.copy()
    neighbor[0] = 1e9
    estimator = TrimmedMean(num_trimmed / num_samples, lower=0.0, upper=1.0)
    return _smoothly_privatized(estimator, grads, neighbor=neighbor)


def _accumulate() -> Case:
    """A gradient turns round that is the second of two pieces."""
    multiplier, privacy = gaussian_claim()

    def release(key: Key, pieces: PyTree) -> PyTree:
        mean = _privatize(Clipping(1.0), multiplier, key, normalize_by=2.0)
        optimizer = transforms.accumulate(mean, num_pieces=2)
        state = optimizer.init(pieces[0, 0])
        _, state = optimizer.update(pieces[0], state)
        return optimizer.update(pieces[1], state)[0]

    pieces = jnp.array([[[0.0, 0.0]], [[3.0, -9.0]]])
    return Case(release, pieces, last_turned(pieces), privacy, is_gaussian=True)


def _privatize_adaptive_threshold() -> Case:
    """A gradient turns round, and is longer than the threshold.

    At half of the budget each, neither the mean nor the threshold alone shows 2.8.
    """
    multiplier, privacy = gaussian_claim()
    options = {"lower": 1e-12, "upper": 1e30, "learning_rate": 0.1, "share": 0.5}
    estimator = AdaptiveThreshold(Clipping(1.0), **options)

    def release(key: Key, grads: jax.Array) -> PyTree:
        transform = _privatize(estimator, multiplier, key)
        mean, state = transform.update(grads, transform.init(grads[0]))
        return mean, jnp.log(optax.tree.get(state, "thresholds"))

    grads = jnp.array([[0.0, 0.0], [0.6, 0.8]])
    return Case(release, grads * 0.9999, grads * -1e15, privacy, is_gaussian=True)


def _zero_concentrated_claim() -> PrivacyGuarantee:
    epsilon = accounting.rho_to_epsilon(_RHO, _ZCDP_DELTA)
    return PrivacyGuarantee.of(epsilon, _ZCDP_DELTA, dp_event=ZCDpEvent(_RHO))


def _privatize(estimator: Any, multiplier: float, key: Key, **options) -> Transform:
    options |= {"noise_multiplier": multiplier, "key": key}
    return transforms.privatize(estimator, **options)


def _farthest(kind: type[Any]) -> Case:
    estimator = kind(1.0)
    most = max(_TURNED, key=lambda x: float(jnp.abs(estimator(jnp.array(x))).max()))
    return _privatized(estimator, most)


def _privatized(estimator: Any, grads: Any) -> Case:
    multiplier, privacy = gaussian_claim()
    make = partial(_privatize, estimator, multiplier)
    return _of_update(make, grads, privacy, is_gaussian=True)


def _smoothly_privatized(estimator: Any, grads: np.ndarray, **options) -> Case:
    make = partial(_privatize, estimator, (2 * _RHO) ** -0.5)
    return _of_update(make, grads, _zero_concentrated_claim(), **options)


def _of_update(make, grads, privacy, *, start=0.0, neighbor=None, **options) -> Case:
    """Audits one update; by default the neighbour's last gradient turns round."""
    data = grads if isinstance(grads, tuple) else jnp.asarray(grads, "float32")
    other = jax.tree.map(last_turned, data)
    if neighbor is not None:
        other = jnp.asarray(neighbor, "float32")
    params = jax.tree.map(lambda x: jnp.full(x.shape[1:], start), data)

    def release(key: Key, grads: PyTree) -> PyTree:
        transform = make(key)
        return transform.update(grads, transform.init(params), params)[0]

    return Case(release, data, other, privacy, **options)


def _frank_wolfe(mechanism, epsilon: float, *, num_others: int) -> Case:
    estimator, grads = Winsorization(1.0), [[1.0, -1.0]] * (num_others + 1)
    options = {"epsilon": epsilon, "mechanism": mechanism, "learning_rate": 1.0}
    options["sensitivity"] = estimator.sensitivity(len(grads), 2).linf
    options["limit"] = estimator.limit

    def make(key: Key) -> Transform:
        step = transforms.frank_wolfe(Simplex(1.0), key=key, **options)
        return optax.chain(transforms.aggregate(estimator), step)

    event = selection_event(epsilon, mechanism=mechanism)
    return _of_update(make, grads, PrivacyGuarantee.of(epsilon, 0.0, dp_event=event))


def _peeled(noise, rho: float, privacy: PrivacyGuarantee) -> Case:
    estimator = Winsorization(1.0)
    options = {"rho": rho, "limit": estimator.limit, "noise": noise}
    options["sensitivity"] = estimator.sensitivity(1, 2).linf

    def make(key: Key) -> Transform:
        step = transforms.peel(1, key=key, **options)
        return optax.chain(transforms.aggregate(estimator), optax.sgd(1.0), step)

    return _of_update(make, [[1.0, -1.0]], privacy, start=1.0)


def _two_updates(make: Callable[..., Transform]) -> Case:
    multiplier, privacy = gaussian_claim(num_releases=2)

    def release(key: Key, grads: jax.Array) -> PyTree:
        optimizer = make(Clipping(1.0), noise_multiplier=multiplier, key=key)
        params = jnp.zeros(2)
        first, state = optimizer.update(grads, optimizer.init(params), params)
        second, _ = optimizer.update(grads, state, params)
        return first, second

    grads = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    return Case(release, grads, last_turned(grads), privacy, is_gaussian=True)


def _run(strategy: Any, batching: Any, *, delta: float = 1e-5) -> Case:
    """Audits all updates of a run, moved by one record's steps."""
    sizes, budget = (len(_RECORDS), _NUM_STEPS), {"epsilon": 4.0, "delta": delta}
    sampling = batching.sampling(*sizes, strategy=strategy)
    multiplier = accounting.noise_multiplier(**budget, sampling=sampling)
    options = {"normalize_by": batching.divisor(*sizes), "noise": strategy}
    options["sampled"] = batching.is_sampled

    def release(key: Key, data: jax.Array) -> PyTree:
        key, noise_key = jax.random.split(key)
        transform = _privatize(Clipping(1.0), multiplier, noise_key, **options)
        state, updates = transform.init(jnp.zeros(2)), []
        batches = batching.init(key, *sizes, **budget)
        for _ in range(_NUM_STEPS):
            batch, mask, batches = batching.draw(batches, data)
            update, state = transform.update(batch, state, is_padding_example=mask)
            updates.append(update)
        return jnp.stack(updates)

    data = jnp.array(_RECORDS)
    event = gaussian_event(multiplier, sampling)
    privacy = PrivacyGuarantee.of(**budget, dp_event=event)
    is_gaussian = sampling.sampling_prob == 1
    return Case(release, data, -data, privacy, is_gaussian=is_gaussian)


CASES: dict[str, Build] = {
    **_kinds_of_one_number(),
    # Of 3, 2 and 2 gradients the last group is the median.
    "privatize_median_of_means": lambda: _privatized(
        MedianOfMeans(Truncation(1.0), num_groups=3),
        [[1.0]] * 3 + [[-1.0]] * 2 + [[1.0]] * 2,
    ),
    # Two groups turn round at once, by bounds of their own.
    "privatize_grouped": lambda: _privatized(
        Grouped(Clipping(jnp.array([1.0, 3.0])), ("0", "1")),
        (jnp.array(_TURNED[1]), jnp.array([[0.0], [9.0]])),
    ),
    # Coordinates turn round that are of other scales.
    "privatize_scaled": lambda: _privatized(
        Scaled(Winsorization(1.0), jnp.array([0.01, 100.0])),
        [[0.0, 0.0], [9.0, -999.0]],
    ),
    "privatize_added_record": _privatize_added_record,
    "add_gaussian_noise": _add_gaussian_noise,
    "privatize_trimmed_mean": _privatize_trimmed_mean,
    "privatize_trimmed_mean_smooth": _privatize_trimmed_mean_smooth,
    # The rarer of two vertices gets rarer.
    "frank_wolfe": lambda: _frank_wolfe("exponential", 2.0, num_others=2),
    # One of two vertices that tie falls behind.
    "frank_wolfe_permute_and_flip": lambda: _frank_wolfe(
        "permute_and_flip", 1.0, num_others=1
    ),
    # The two entries of the parameters change places.
    "peel": lambda: _peeled("gumbel", _RHO, _zero_concentrated_claim()),
    "peel_laplace": lambda: _peeled(
        *("laplace", 5 * 2.0**2 / 18),
        PrivacyGuarantee.of(2.0, 0.0, dp_event=UnsupportedDpEvent()),
    ),
    # Both updates of a run, each moved by one gradient.
    "dp_sgd": lambda: _two_updates(
        lambda mean, **options: transforms.dp_sgd(0.1, mean, **options)
    ),
    # The same with momentum.
    "chain": lambda: _two_updates(
        lambda *how, **options: transforms.chain(
            transforms.privatize(*how, **options), optax.trace(0.5)
        )
    ),
    "accumulate": _accumulate,
    "privatize_adaptive_threshold": _privatize_adaptive_threshold,
    # Under correlated noise all four steps see the record.
    "privatize_correlated_bands": lambda: _run(
        BandedToeplitz.square_root(_NUM_STEPS, 2), Full()
    ),
    "privatize_correlated_buffers": lambda: _run(
        BufferedToeplitz(_NUM_STEPS, decays=(0.5,), scales=(0.5,)), Full()
    ),
    # Two steps may see the record, with probability 1/2 each.
    "privatize_correlated_cyclic": lambda: _run(
        BandedToeplitz.square_root(_NUM_STEPS, 2),
        CyclicPoisson(1.0, cycle_length=2, capacity=2),
        delta=0.01,
    ),
}
