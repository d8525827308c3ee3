"""The transforms' claims, on the record that moves one update as far as any can.

A Gaussian claim shows nearly whole; the record tells the share of each. One that goes
through zCDP is larger than what the noise costs: it is stated at delta = 0.05 and
rho = 1/2, where most of it shows.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import UnsupportedDpEvent, ZCDpEvent

from benchmarks.audits.case import Case, audited
from benchmarks.audits.updates import gaussian_claim
from dpjax import accounting, estimators, transforms
from dpjax._types import ADD_OR_REMOVE_ONE, Key, PeelingNoise, PyTree, SelectionName
from dpjax.accounting import PrivacyGuarantee
from dpjax.accounting._smooth import calibrate_smooth_noise
from dpjax.audit._releases import Statistic
from dpjax.constraints import Simplex
from dpjax.estimators import (
    Clipping,
    Estimator,
    Grouped,
    MedianOfMeans,
    Scaled,
    TrimmedMean,
    Truncation,
    Winsorization,
)

TransformFn = Callable[[Key], optax.GradientTransformationExtraArgs]

_RHO, _ZCDP_DELTA = 0.5, 0.05
_TURNED = [[0.0, 0.0], [1.0, -1.0]], [[0.0, 0.0], [1e15, -1e15]]  # near, and far


def _enter_kinds_of_one_number() -> None:
    """The gradient with the largest influence turns round."""
    for kind in vars(estimators).values():
        if isinstance(kind, type) and issubclass(kind, Estimator):
            fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
            if sum(x.default is dataclasses.MISSING for x in fields) == 1:
                _enter(kind)


def _enter(kind: type[Any]) -> None:
    def build() -> Case:
        estimator = kind(1.0)
        most = max(_TURNED, key=lambda x: float(jnp.abs(estimator(jnp.array(x))).max()))
        return _privatized(estimator, most)

    words = re.sub("(?=[A-Z])", "_", kind.__name__).lower()
    build.__name__ = f"privatize{words}"
    audited(build)


_enter_kinds_of_one_number()


@audited
def privatize_median_of_means() -> Case:
    """Of 3, 2 and 2 gradients the last group is the median."""
    grads = [[1.0]] * 3 + [[-1.0]] * 2 + [[1.0]] * 2
    estimator = MedianOfMeans(Truncation(1.0), num_groups=3)
    return _privatized(estimator, grads)


@audited
def privatize_grouped() -> Case:
    """Two groups turn round at once, by bounds of their own."""
    estimator = Grouped(Clipping(jnp.array([1.0, 3.0])), ("0", "1"))
    multiplier, privacy = gaussian_claim()

    def release(key: Key, grads: PyTree) -> PyTree:
        transform = transforms.privatize(
            estimator, noise_multiplier=multiplier, key=key
        )
        return transform.update(grads, transform.init(grads))[0]

    grads = jnp.array([[0.0, 0.0], [1e15, -1e15]]), jnp.array([[0.0], [9.0]])
    return Case(
        release=release,
        data=grads,
        neighbor=jax.tree.map(lambda x: x.at[-1].multiply(-1), grads),
        privacy=privacy,
        is_gaussian=True,
    )


@audited
def privatize_scaled() -> Case:
    """Coordinates turn round that are of other scales."""
    estimator = Scaled(Winsorization(1.0), jnp.array([0.01, 100.0]))
    return _privatized(estimator, [[0.0, 0.0], [9.0, -999.0]])


@audited
def privatize_added_record() -> Case:
    """A row of a padded batch is filled, under add/remove."""
    multiplier, privacy = gaussian_claim(relation=ADD_OR_REMOVE_ONE)

    def release(key: Key, batch: PyTree) -> PyTree:
        grads, is_padding_example = batch
        transform = transforms.privatize(
            Clipping(1.0),
            noise_multiplier=multiplier,
            key=key,
            normalize_by=2.0,
            relation=ADD_OR_REMOVE_ONE,
        )
        state = transform.init(grads[0])
        return transform.update(grads, state, is_padding_example=is_padding_example)[0]

    grads = jnp.array([[0.0, 0.0], [9.0, 9.0], [3e9, 4e9]])
    return Case(
        release=release,
        data=(grads, jnp.array([False, True, True])),
        neighbor=(grads, jnp.array([False, True, False])),
        privacy=privacy,
        is_gaussian=True,
    )


@audited
def add_gaussian_noise() -> Case:
    """Noise for the sensitivity of a mean, which one gradient moves."""
    multiplier, privacy = gaussian_claim()
    estimator = Winsorization(1.0)
    stddev = multiplier * estimator.sensitivity(2, 2).l2
    return _of_update(
        lambda key: optax.chain(
            transforms.aggregate(estimator),
            transforms.add_gaussian_noise(stddev=stddev, key=key),
        ),
        [[0.0, 0.0], [9.0, -9.0]],
        privacy,
        is_gaussian=True,
    )


@audited
def privatize_trimmed_mean() -> Case:
    """Sixteen coordinates cross the clamp, as far as one gradient can move them."""

    def statistic(mean: jax.Array) -> jax.Array:
        return jnp.sum(jnp.abs(mean + 1) - jnp.abs(mean - 1))  # as of Laplace noise

    estimator = TrimmedMean(0.34, lower=-1.0, upper=1.0)
    return _of_update(
        lambda key: transforms.privatize(
            estimator, noise_multiplier=(2 * _RHO) ** -0.5, key=key
        ),
        np.outer([-9.0, 9.0, 9.0], np.ones(16)),
        _zero_concentrated_claim(),
        statistic=statistic,
    )


@audited
def privatize_trimmed_mean_smooth() -> Case:
    """The smooth sensitivity grows by its e^t, and the mean moves by all of it.

    A tenth of the claim shows, which adds up the cost of a new scale and that of a
    shift, whose losses do not peak together. Its noise follows the data.
    """
    num_samples, num_trimmed, num_outliers = 60, 15, 12
    num_kept, num_next = num_samples - 2 * num_trimmed, num_trimmed - num_outliers
    noise = calibrate_smooth_noise(
        _RHO, num_samples=num_samples, trim_count=num_trimmed
    )
    # S = e^(-3t) (upper - lower), by the outliers and by the values next to them.
    grads = np.zeros((num_samples, 1))
    grads[-num_trimmed:] = num_kept * np.exp(-num_next * noise.smoothness)
    grads[-num_outliers:] = 1e9
    neighbor = grads.copy()
    neighbor[0] = 1e9
    estimator = TrimmedMean(num_trimmed / num_samples, lower=0.0, upper=1.0)
    return _of_update(
        lambda key: transforms.privatize(
            estimator, noise_multiplier=(2 * _RHO) ** -0.5, key=key
        ),
        grads,
        _zero_concentrated_claim(),
        neighbor=neighbor,
    )


@audited
def frank_wolfe() -> Case:
    """The rarer of two vertices gets rarer."""
    return _frank_wolfe("exponential", 2.0, num_others=2)


@audited
def frank_wolfe_permute_and_flip() -> Case:
    """One of two vertices that tie falls behind."""
    return _frank_wolfe("permute_and_flip", 1.0, num_others=1)


@audited
def peel() -> Case:
    """The two entries of the parameters change places."""
    privacy = _zero_concentrated_claim()
    return _peeled("gumbel", _RHO, privacy)


@audited
def peel_laplace() -> Case:
    """The two entries of the parameters change places."""
    epsilon = 2.0
    privacy = PrivacyGuarantee.of(epsilon, 0.0, dp_event=UnsupportedDpEvent())
    rho = 5 * epsilon**2 / 18
    return _peeled("laplace", rho, privacy)


def _zero_concentrated_claim() -> PrivacyGuarantee:
    epsilon = accounting.rho_to_epsilon(_RHO, _ZCDP_DELTA)
    return PrivacyGuarantee.of(epsilon, _ZCDP_DELTA, dp_event=ZCDpEvent(_RHO))


def _of_update(
    transform_fn: TransformFn,
    grads: np.ndarray | list,
    privacy: PrivacyGuarantee,
    *,
    start: float = 0.0,
    neighbor: np.ndarray | None = None,
    statistic: Statistic | None = None,
    is_gaussian: bool = False,
) -> Case:
    """Audits one update; by default the neighbour's last gradient turns round."""
    data = jnp.asarray(grads, "float32")
    other = data.at[-1].multiply(-1) if neighbor is None else neighbor
    params = jnp.full(data.shape[1:], start)

    def release(key: Key, grads: jax.Array) -> PyTree:
        transform = transform_fn(key)
        return transform.update(grads, transform.init(params), params)[0]

    return Case(
        release=release,
        data=data,
        neighbor=jnp.asarray(other, "float32"),
        privacy=privacy,
        statistic=statistic,
        is_gaussian=is_gaussian,
    )


def _privatized(estimator: Estimator | Scaled, grads: list) -> Case:
    multiplier, privacy = gaussian_claim()
    return _of_update(
        lambda key: transforms.privatize(
            estimator, noise_multiplier=multiplier, key=key
        ),
        grads,
        privacy,
        is_gaussian=True,
    )


def _frank_wolfe(mechanism: SelectionName, epsilon: float, *, num_others: int) -> Case:
    estimator = Winsorization(1.0)
    grads = [[1.0, -1.0]] * (num_others + 1)
    return _of_update(
        lambda key: optax.chain(
            transforms.aggregate(estimator),
            transforms.frank_wolfe(
                Simplex(1.0),
                epsilon=epsilon,
                sensitivity=estimator.sensitivity(len(grads), 2).linf,
                limit=estimator.limit,
                key=key,
                learning_rate=1.0,
                mechanism=mechanism,
            ),
        ),
        grads,
        PrivacyGuarantee.of(
            epsilon,
            0.0,
            dp_event=accounting.selection_event(epsilon, mechanism=mechanism),
        ),
    )


def _peeled(noise: PeelingNoise, rho: float, privacy: PrivacyGuarantee) -> Case:
    estimator = Winsorization(1.0)
    return _of_update(
        lambda key: optax.chain(
            transforms.aggregate(estimator),
            optax.sgd(1.0),
            transforms.peel(
                1,
                rho=rho,
                sensitivity=estimator.sensitivity(1, 2).linf,
                limit=estimator.limit,
                key=key,
                noise=noise,
            ),
        ),
        [[1.0, -1.0]],
        privacy,
        start=1.0,
    )
