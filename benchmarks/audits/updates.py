"""Gaussian claims of successive updates, and of what an update keeps in its state."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from benchmarks.audits.case import Case, audited
from dpjax import accounting, transforms
from dpjax._types import REPLACE_ONE, Key, NeighboringRelation, PyTree
from dpjax.accounting import PrivacyGuarantee
from dpjax.estimators import AdaptiveThreshold, Clipping

_EPSILON, _DELTA = 4.0, 1e-5


def gaussian_claim(
    num_releases: int = 1, relation: NeighboringRelation = REPLACE_ONE
) -> tuple[float, PrivacyGuarantee]:
    """Returns stddev / l2 sensitivity of each release, and the guarantee of all."""
    multiplier = accounting.gaussian_stddev(
        _EPSILON, _DELTA, sensitivity=1.0, num_releases=num_releases
    )
    event = accounting.gaussian_event(
        multiplier, accounting.Sampling(num_steps=num_releases)
    )
    return multiplier, PrivacyGuarantee.of(
        _EPSILON, _DELTA, dp_event=event, relation=relation
    )


@audited
def dp_sgd() -> Case:
    """Both updates of a run, each moved by one gradient."""

    def make(key: Key, multiplier: float) -> optax.GradientTransformationExtraArgs:
        return transforms.dp_sgd(
            0.1, Clipping(1.0), noise_multiplier=multiplier, key=key
        )

    return _two_updates(make)


@audited
def chain() -> Case:
    """Both updates of a run with momentum, moved by one gradient."""

    def make(key: Key, multiplier: float) -> optax.GradientTransformationExtraArgs:
        mean = transforms.privatize(Clipping(1.0), noise_multiplier=multiplier, key=key)
        return transforms.chain(mean, optax.trace(0.5))

    return _two_updates(make)


@audited
def accumulate() -> Case:
    """A gradient turns round that is the second of two pieces."""
    multiplier, privacy = gaussian_claim()

    def release(key: Key, pieces: PyTree) -> PyTree:
        mean = transforms.privatize(
            Clipping(1.0), noise_multiplier=multiplier, key=key, normalize_by=2.0
        )
        optimizer = transforms.accumulate(mean, num_pieces=2)
        state = optimizer.init(pieces[0, 0])
        _, state = optimizer.update(pieces[0], state)
        return optimizer.update(pieces[1], state)[0]

    pieces = jnp.array([[[0.0, 0.0]], [[3.0, -9.0]]])
    return Case(
        release=release,
        data=pieces,
        neighbor=pieces.at[1].multiply(-1),
        privacy=privacy,
        is_gaussian=True,
    )


@audited
def privatize_adaptive_threshold() -> Case:
    """A gradient turns round, and is longer than the threshold.

    At half of the budget each, neither the mean nor the threshold alone shows 2.8.
    """
    multiplier, privacy = gaussian_claim()
    estimator = AdaptiveThreshold(
        Clipping(1.0), lower=1e-12, upper=1e30, learning_rate=0.1, share=0.5
    )

    def release(key: Key, grads: jax.Array) -> PyTree:
        transform = transforms.privatize(
            estimator, noise_multiplier=multiplier, key=key
        )
        mean, state = transform.update(grads, transform.init(grads[0]))
        return mean, jnp.log(optax.tree.get(state, "thresholds"))

    grads = jnp.array([[0.0, 0.0], [0.6, 0.8]])
    return Case(
        release=release,
        data=grads * 0.9999,
        neighbor=grads * -1e15,
        privacy=privacy,
        is_gaussian=True,
    )


def _two_updates(
    make: Callable[[Key, float], optax.GradientTransformationExtraArgs],
) -> Case:
    multiplier, privacy = gaussian_claim(num_releases=2)

    def release(key: Key, grads: jax.Array) -> PyTree:
        optimizer = make(key, multiplier)
        params = jnp.zeros(2)
        first, state = optimizer.update(grads, optimizer.init(params), params)
        second, _ = optimizer.update(grads, state, params)
        return first, second

    grads = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    return Case(
        release=release,
        data=grads,
        neighbor=grads.at[-1].multiply(-1),
        privacy=privacy,
        is_gaussian=True,
    )
