"""The mechanisms' claims, on neighbours that use all of what they are calibrated for.

Claims by zCDP are at delta = 0.05 and rho about 1/2, where most of them shows.
"""

import math
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    UnsupportedDpEvent,
    ZCDpEvent,
)

from benchmarks.audits.case import Build, Case
from dpjax import accounting, mechanisms
from dpjax._types import Key
from dpjax.accounting import PrivacyGuarantee
from dpjax.accounting._discrete_gaussian import discrete_gaussian_epsilon
from dpjax.accounting._selection import selection_event

_DELTA = 0.05
_SMOOTH_MULTIPLIER = 8.0


def _gaussian() -> Case:
    """Noise for (1, 1e-5) on values at l2 distance 1."""
    epsilon, delta = 1.0, 1e-5
    stddev = accounting.gaussian_stddev(epsilon, delta, sensitivity=1.0)
    event = GaussianDpEvent(stddev)
    return Case(
        lambda key, value: mechanisms.gaussian(key, value, stddev=stddev),
        *(jnp.zeros(2), jnp.array([0.6, -0.8])),
        PrivacyGuarantee.of(epsilon, delta, dp_event=event),
        is_gaussian=True,
    )


def _arsinh_normal() -> Case:
    """A value that moves by its smooth sensitivity, which moves by its e^t."""

    def statistic(value: jax.Array) -> jax.Array:
        # The slope of the log density, midway, at sigma = 1.
        w = jnp.arcsinh((value - 0.5) / _SMOOTH_MULTIPLIER)
        return jnp.sum((w + jnp.tanh(w)) / jnp.cosh(w))

    cost = 7 / 6 / _SMOOTH_MULTIPLIER + math.sqrt(0.00002 * (0.00002 + 1 + 2))
    return _smooth("arsinh_normal", statistic, cost, smoothness=0.00002, sigma=1.0)


def _discrete_gaussian() -> Case:
    """Integers at l2 distance 100 under noise of the same stddev."""
    stddev = 100

    def draw(words: np.ndarray) -> np.ndarray:
        # One stream for the whole chunk, seeded by all of its keys.
        words = np.asarray(words)
        source = np.random.default_rng(words.ravel()).bytes
        shape = (*words.shape[:-1], 2)
        noise = mechanisms.discrete_gaussian(shape, stddev=stddev, random_bytes=source)
        return noise.astype(np.int32)

    def release(key: Key, value: jax.Array) -> jax.Array:
        words, shape = jax.random.key_data(key), jax.ShapeDtypeStruct((2,), jnp.int32)
        noise = jax.pure_callback(draw, shape, words, vmap_method="expand_dims")
        return value + noise.astype(jnp.int32)

    sizes = {"sensitivity": 100.0, "num_coordinates": 2}
    epsilon = discrete_gaussian_epsilon(stddev, _DELTA, **sizes)
    privacy = PrivacyGuarantee.of(epsilon, _DELTA, dp_event=UnsupportedDpEvent())
    data, neighbor = (jnp.array(x, jnp.int32) for x in ([0, 0], [60, -80]))
    return Case(release, data, neighbor, privacy)


def _laplace(neighbor: list[float], norm: Literal["l1", "l2"]) -> Case:
    """Noise for epsilon = 1 on values at distance 1."""
    return Case(
        lambda key, value: mechanisms.laplace(key, value, scale=1.0, norm=norm),
        *(jnp.zeros(2), jnp.array(neighbor), _pure(1.0, LaplaceDpEvent(1.0))),
    )


def _peeled(data, neighbor, privacy, scale, noise="gumbel", num_releases=100_000):
    stddev = scale if noise == "gumbel" else math.sqrt(2) * scale
    options = {"sparsity": 1, "selection_scale": scale, "release_stddev": stddev}

    def release(key: Key, vector: jax.Array) -> jax.Array:
        return mechanisms.peeling(key, vector, noise=noise, **options)

    pair = jnp.array(data), jnp.array(neighbor)
    return Case(release, *pair, privacy, num_releases=num_releases)


def _chosen(name, epsilon, scores, first) -> Case:
    """The first candidate has another score in the neighbour."""
    mechanism = getattr(mechanisms, name)
    release = partial(mechanism, epsilon=epsilon, sensitivity_range=1.0)
    event = selection_event(epsilon, mechanism=name)
    data = jnp.array(scores)
    return Case(release, data, data.at[0].set(first), _pure(epsilon, event))


def _pure(epsilon: float, event: DpEvent) -> PrivacyGuarantee:
    return PrivacyGuarantee.of(epsilon, 0.0, dp_event=event)


def _zero_concentrated(rho: float) -> PrivacyGuarantee:
    epsilon = accounting.rho_to_epsilon(rho, _DELTA)
    return PrivacyGuarantee.of(epsilon, _DELTA, dp_event=ZCDpEvent(rho))


def _smooth(name, statistic, cost, *, smoothness, sigma) -> Case:
    """Audits zeros against ones, under noise of 8 times the smooth sensitivity."""
    mechanism = getattr(mechanisms, name)
    zeros, scale = jnp.zeros(64), jnp.full(64, _SMOOTH_MULTIPLIER)
    return Case(
        lambda key, data: mechanism(key, **data, sigma=sigma),
        {"value": zeros, "scale": scale},
        {"value": zeros + 1, "scale": scale * math.exp(smoothness)},
        _zero_concentrated(zeros.size * cost**2 / 2),
        statistic,
        num_releases=200_000,
    )


CASES: dict[str, Build] = {
    "gaussian": _gaussian,
    "laplace": lambda: _laplace([0.0, 1.0], "l1"),
    "laplace_l2": lambda: _laplace([0.6, 0.8], "l2"),
    # A value that moves by its smooth sensitivity, which moves by its e^t. The
    # statistic is as if sigma were 0.
    "laplace_log_normal": lambda: _smooth(
        *("laplace_log_normal", lambda x: jnp.sum(jnp.abs(x) - jnp.abs(x - 1))),
        math.exp(0.015) / _SMOOTH_MULTIPLIER + 0.0002 / 0.1,
        smoothness=0.0002,
        sigma=0.1,
    ),
    "arsinh_normal": _arsinh_normal,
    "discrete_gaussian": _discrete_gaussian,
    # One score of many rises by the range, and its candidate is rare.
    "exponential": lambda: _chosen("exponential", 2.0, [0.0] * 40, 1.0),
    # Of two candidates the worse one's score falls behind by the range.
    "permute_and_flip": lambda: _chosen("permute_and_flip", 1.0, [1.0, 1.0], 0.0),
    # Of two equal coordinates one rises by the linf sensitivity, one falls. rho = 1/2.
    "peeling": lambda: _peeled(
        [100.0, 100.0], [101.0, 99.0], _zero_concentrated(0.5), math.sqrt(1 / 0.5)
    ),
    # The coordinate that is behind falls behind further, and rarely comes first.
    "peeling_laplace": lambda: _peeled(
        *([104.0, 100.0], [105.0, 99.0], _pure(1.5, UnsupportedDpEvent()), 3 / 1.5),
        noise="laplace",
        num_releases=400_000,
    ),
}
