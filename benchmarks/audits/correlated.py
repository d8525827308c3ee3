"""Correlated noise under attack: all updates of a run, moved by one record's steps."""

import jax
import jax.numpy as jnp

from benchmarks.audits.case import Case, audited
from dpjax import accounting, transforms
from dpjax._types import Key, PyTree
from dpjax.accounting import PrivacyGuarantee
from dpjax.batching import Batching, CyclicPoisson, Full
from dpjax.estimators import Clipping
from dpjax.mechanisms import BandedToeplitz, BinaryTree, BufferedToeplitz, Strategy

_NUM_STEPS = 4
_RECORDS = [[0.0, 0.0]] * 3 + [[3e9, 4e9]]


@audited
def privatize_correlated_bands() -> Case:
    """All four steps see the record."""
    strategy = BandedToeplitz.square_root(_NUM_STEPS, 2)
    return _run(strategy, Full())


@audited
def privatize_correlated_buffers() -> Case:
    """All four steps see the record."""
    strategy = BufferedToeplitz(_NUM_STEPS, decays=(0.5,), scales=(0.5,))
    return _run(strategy, Full())


@audited
def privatize_correlated_tree() -> Case:
    """All four steps see the record."""
    return _run(BinaryTree(_NUM_STEPS), Full())


@audited
def privatize_correlated_cyclic() -> Case:
    """Two steps may see the record, with probability 1/2 each."""
    strategy = BandedToeplitz.square_root(_NUM_STEPS, 2)
    batching = CyclicPoisson(1.0, cycle_length=2, capacity=2)
    return _run(strategy, batching, delta=0.01)


def _run(strategy: Strategy, batching: Batching, *, delta: float = 1e-5) -> Case:
    num_samples, epsilon = len(_RECORDS), 4.0
    sampling = batching.sampling(num_samples, _NUM_STEPS, strategy=strategy)
    multiplier = accounting.noise_multiplier(epsilon, delta, sampling)

    def release(key: Key, data: jax.Array) -> PyTree:
        key, noise_key = jax.random.split(key)
        transform = transforms.privatize(
            Clipping(1.0),
            noise_multiplier=multiplier,
            key=noise_key,
            normalize_by=batching.divisor(num_samples, _NUM_STEPS),
            sampled=batching.is_sampled,
            noise=strategy,
        )
        state, updates = transform.init(jnp.zeros(2)), []
        batches = batching.init(
            key, num_samples, _NUM_STEPS, epsilon=epsilon, delta=delta
        )
        for _ in range(_NUM_STEPS):
            batch, mask, batches = batching.draw(batches, data)
            update, state = transform.update(batch, state, is_padding_example=mask)
            updates.append(update)
        return jnp.stack(updates)

    data = jnp.array(_RECORDS)
    return Case(
        release=release,
        data=data,
        neighbor=-data,
        privacy=PrivacyGuarantee.of(
            epsilon,
            delta,
            dp_event=accounting.gaussian_event(multiplier, sampling),
        ),
        is_gaussian=sampling.sampling_prob == 1,
    )
