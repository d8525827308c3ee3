"""The mechanisms' claims, on neighbours that use all of what they are calibrated for.

Where a claim goes through zCDP it is stated at delta = 0.05 and rho about 1/2: there a
hundred thousand releases see most of it, while at 1e-5 they see next to nothing.
"""

import math
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent, LaplaceDpEvent, UnsupportedDpEvent, ZCDpEvent

from benchmarks.audits.case import Case, audited
from dpjax import accounting, mechanisms
from dpjax._types import Key, PeelingNoise, SelectionName
from dpjax.accounting import PrivacyGuarantee
from dpjax.accounting._discrete_gaussian import discrete_gaussian_epsilon
from dpjax.accounting._selection import selection_event
from dpjax.accounting._smooth import smooth_noise_rho
from dpjax.audit._releases import Statistic

_DELTA = 0.05
_SMOOTH_MULTIPLIER = 8.0


@audited
def gaussian() -> Case:
    """Noise for (1, 1e-5) on values at l2 distance 1."""
    epsilon, delta = 1.0, 1e-5
    stddev = accounting.gaussian_stddev(epsilon, delta, sensitivity=1.0)
    event = accounting.gaussian_event(stddev)
    return Case(
        lambda key, value: mechanisms.gaussian(key, value, stddev=stddev),
        *(jnp.zeros(2), jnp.array([0.6, -0.8])),
        PrivacyGuarantee.of(epsilon, delta, dp_event=event),
        is_gaussian=True,
    )


@audited
def laplace() -> Case:
    """Noise for epsilon = 1 on values at l1 distance 1."""
    return Case(
        lambda key, value: mechanisms.laplace(key, value, scale=1.0),
        *(jnp.zeros(2), jnp.array([0.0, 1.0])),
        _pure(1.0, LaplaceDpEvent(1.0)),
    )


@audited
def laplace_l2() -> Case:
    """Noise for epsilon = 1 on values at l2 distance 1, in a plane."""
    return Case(
        lambda key, value: mechanisms.laplace(key, value, scale=1.0, norm="l2"),
        *(jnp.zeros(2), jnp.array([0.6, 0.8])),
        _pure(1.0, LaplaceDpEvent(1.0)),
    )


@audited
def laplace_log_normal() -> Case:
    """A value that moves by its smooth sensitivity, which moves by its e^t."""

    def statistic(value: jax.Array) -> jax.Array:
        return jnp.sum(jnp.abs(value) - jnp.abs(value - 1))  # as if sigma were 0

    return _smooth("laplace_log_normal", statistic, smoothness=0.0002, sigma=0.1)


@audited
def arsinh_normal() -> Case:
    """A value that moves by its smooth sensitivity, which moves by its e^t."""

    def statistic(value: jax.Array) -> jax.Array:
        # The slope of the log density, midway, at sigma = 1.
        w = jnp.arcsinh((value - 0.5) / _SMOOTH_MULTIPLIER)
        return jnp.sum((w + jnp.tanh(w)) / jnp.cosh(w))

    return _smooth("arsinh_normal", statistic, smoothness=0.00002, sigma=1.0)


@audited
def discrete_gaussian() -> Case:
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

    epsilon = discrete_gaussian_epsilon(
        stddev, _DELTA, sensitivity=100.0, num_coordinates=2
    )
    privacy = PrivacyGuarantee.of(epsilon, _DELTA, dp_event=UnsupportedDpEvent())
    data, neighbor = (jnp.array(x, jnp.int32) for x in ([0, 0], [60, -80]))
    return Case(release, data, neighbor, privacy)


@audited
def exponential() -> Case:
    """One score of many rises by the range, and its candidate is rare."""
    scores = jnp.zeros(40)
    return _chosen("exponential", 2.0, scores, scores.at[0].set(1.0))


@audited
def permute_and_flip() -> Case:
    """Of two candidates the worse one's score falls behind by the range."""
    scores = jnp.array([1.0, 1.0])
    return _chosen("permute_and_flip", 1.0, scores, scores.at[0].set(0.0))


@audited
def peeling() -> Case:
    """Of two equal coordinates one rises by the linf sensitivity, one falls."""
    rho = 0.5
    privacy, scale = _zero_concentrated(rho), math.sqrt(1 / rho)
    return _peeled([100.0, 100.0], [101.0, 99.0], privacy, scale, scale)


@audited
def peeling_laplace() -> Case:
    """The coordinate that is behind falls behind further, and rarely comes first."""
    epsilon = 1.5
    privacy, scale = _pure(epsilon, UnsupportedDpEvent()), 3 / epsilon
    settings = privacy, scale, math.sqrt(2) * scale, "laplace", 400_000
    return _peeled([104.0, 100.0], [105.0, 99.0], *settings)


def _peeled(
    data: list[float],
    neighbor: list[float],
    privacy: PrivacyGuarantee,
    scale: float,
    stddev: float,
    noise: PeelingNoise = "gumbel",
    num_releases: int = 100_000,
) -> Case:
    options = {"sparsity": 1, "selection_scale": scale, "release_stddev": stddev}

    def release(key: Key, vector: jax.Array) -> jax.Array:
        return mechanisms.peeling(key, vector, noise=noise, **options)

    pair = jnp.array(data), jnp.array(neighbor)
    return Case(release, *pair, privacy, num_releases=num_releases)


def _chosen(
    name: SelectionName, epsilon: float, scores: jax.Array, other: jax.Array
) -> Case:
    mechanism = getattr(mechanisms, name)
    release = partial(mechanism, epsilon=epsilon, sensitivity_range=1.0)
    event = selection_event(epsilon, mechanism=name)
    return Case(release, scores, other, _pure(epsilon, event))


def _pure(epsilon: float, event: DpEvent) -> PrivacyGuarantee:
    return PrivacyGuarantee.of(epsilon, 0.0, dp_event=event)


def _zero_concentrated(rho: float) -> PrivacyGuarantee:
    epsilon = accounting.rho_to_epsilon(rho, _DELTA)
    return PrivacyGuarantee.of(epsilon, _DELTA, dp_event=ZCDpEvent(rho))


def _smooth(
    name: Literal["arsinh_normal", "laplace_log_normal"],
    statistic: Statistic,
    *,
    smoothness: float,
    sigma: float,
) -> Case:
    """Audits zeros against ones, under noise of 8 times the smooth sensitivity."""
    mechanism = getattr(mechanisms, name)
    rho = smooth_noise_rho(
        _SMOOTH_MULTIPLIER, smoothness=smoothness, sigma=sigma, mechanism=name
    )
    zeros, scale = jnp.zeros(64), jnp.full(64, _SMOOTH_MULTIPLIER)
    return Case(
        lambda key, data: mechanism(key, **data, sigma=sigma),
        {"value": zeros, "scale": scale},
        {"value": zeros + 1, "scale": scale * math.exp(smoothness)},
        _zero_concentrated(zeros.size * rho),
        statistic,
        num_releases=200_000,
    )
