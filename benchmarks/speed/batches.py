"""Batches drawn anew every step, beside a permutation of all records."""

from functools import partial

import jax
import jax.numpy as jnp

from benchmarks.speed.case import Case, Method, Target
from dpjax.batching import Batching, Poisson, WithoutReplacement

BATCH = 1_000
RECORDS = (10_000, 100_000, 1_000_000)
PEER = "jax.random.choice"


def _chosen(key, rows):
    return jax.random.choice(key, rows, (BATCH,), replace=False)


def _drawn(batching: Batching, key, rows):
    state = batching.init(key, len(rows), 1, epsilon=1.0, delta=1e-5)
    return batching.draw(state, rows)[:2]


DRAWS = {
    PEER: ("jax", _chosen),
    "WithoutReplacement": ("dpjax", partial(_drawn, WithoutReplacement(BATCH))),
    "Poisson": ("dpjax", partial(_drawn, Poisson(BATCH, capacity=1_300))),
}


def _of(name, num_samples):
    return f"{name}, of {num_samples:,}"


def _batches(quick):
    methods = []
    for num_samples in RECORDS[:1] if quick else RECORDS:
        for name, (package, function) in DRAWS.items():

            def make(function=function, num_samples=num_samples):
                return jax.jit(function), (jax.random.key(0), jnp.arange(num_samples))

            methods.append(Method(_of(name, num_samples), make, package))
    return methods


BATCHES = Case(
    name="batches",
    title="Batches drawn anew",
    build=_batches,
    has_peak=False,
    targets=[
        Target(_of(name, num_samples), [_of(PEER, num_samples)], times_faster=10)
        for name in DRAWS
        if name != PEER
        for num_samples in RECORDS[1:]
    ],
)
