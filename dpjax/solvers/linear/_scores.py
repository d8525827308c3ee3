"""The noisy mean of scores of a linear model, and an estimate of its clipping bias."""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _keys
from dpjax._sharding import gathered
from dpjax._tree import like
from dpjax._types import Key
from dpjax.estimators._clipping import clip_to_norm
from dpjax.solvers.linear._fit import row_norms
from dpjax.solvers.linear._kind import ModelKind
from dpjax.solvers.linear._steps import BlockClipping
from dpjax.solvers.statistics._moments import noisy_second_moments
from dpjax.solvers.statistics._noisy_mean import noisy_mean
from dpjax.solvers.statistics._noisy_quantile import Excess, noisy_bound, noisy_excess

_LEVEL_SHARE = 0.15  # of the scores' budget, for the score of the intercept
# Bounds of scores, in a number that few records exceed. That of the intercept is
# larger, because its tail may be on one side only.
_BEYOND = {"weights": 1.2, "intercept": 2.0}
# Records beyond that of the weights, if noise would let fewer: a share, or so many for
# each unit of the noise and root of their number. Clipping more makes less noise, and
# its bias is estimated, but not as well as the root of many records asks.
_MOST_SHARE, _PER_ROOT = 0.011, 0.8
# Of a block's budget, for the part of scores beyond half of their bound.
_OUTER_SHARE = 0.6
_OUTER = "_beyond"  # ends the name of that part
# The error of the estimated bias over the estimate, besides the noise of counts.
_MODEL_ERROR = 0.25

Params = dict[str, jax.Array]


class Scores(NamedTuple):
    """Released scores of the directions of `Curvatures`, in units of their bounds.

    Attributes:
        mean: shape (k,), corrected by an estimate of the bias of clipping.
        stddev: of its noise, shape (k,).
        moments: noisy second moments, shape (k, k).
        bias: the stddev of that estimate, of each block, shape (k, blocks).
        units: shape (k,).
        is_heavy: whether their tail is too heavy for that estimate.
    """

    mean: jax.Array
    stddev: jax.Array
    moments: jax.Array
    bias: jax.Array
    units: jax.Array
    is_heavy: jax.Array


def released_scores(
    kind: ModelKind,
    samples: Params,
    size_key: Key,
    key: Key,
    multipliers: dict[str, float],
) -> Scores:
    """Releases the mean of scores, corrected for clipping, and their second moments.

    Each block is clipped to a noisy bound C, and is released in two parts: clipped to
    the norm C / 2, and the remainder. With a Pareto tail from C / 2 on, clipping to C
    cuts rho times the second part. A factor rho from two noisy counts thus corrects the
    mean, and makes the interval wider.
    """
    shares = {"weights": 1.0}
    if kind.has_intercept:
        shares = {"weights": 1 - _LEVEL_SHARE, "intercept": _LEVEL_SHARE}
    num_samples = len(samples["weights"])
    per_root = _PER_ROOT * multipliers["scores"]
    clipped = min(_MOST_SHARE * num_samples, per_root * math.sqrt(num_samples))
    halves, excess = {}, {}
    each = math.sqrt(len(shares))
    for name, sub_key in zip(shares, _keys.split(size_key), strict=False):
        bound_key, tail_key = _keys.split(sub_key)
        norms = gathered(row_norms(samples[name]))
        bound = _BEYOND[name] * noisy_bound(
            bound_key,
            norms,
            noise_multiplier=each * multipliers["score_lengths"],
            least=clipped if name == "weights" else 0.0,
        )
        halves[name] = bound / 2
        excess[name] = noisy_excess(
            tail_key, norms, bound, noise_multiplier=each * multipliers["score_tails"]
        )
    mean_key, moments_key = _keys.split(key)
    parts = {x: (1 - _OUTER_SHARE) * share for x, share in shares.items()}
    parts |= {x + _OUTER: _OUTER_SHARE * share for x, share in shares.items()}
    estimator = BlockClipping(
        {x: halves[x.removesuffix(_OUTER)] for x in parts}, tuple(parts.items())
    )
    samples = _in_parts(samples, halves)
    args = multipliers["scores"], mean_key, kind.axis_name
    mean = noisy_mean(estimator, samples, *args)
    size = sum(x.size for x in mean.values())
    noise = estimator.noise_parameters(multipliers["scores"], num_samples, size)
    rows, scores = _corrected(tuple(shares.items()), samples, mean, excess, halves)
    moments, _ = noisy_second_moments(
        moments_key,
        rows,
        radius=1.0,
        noise_multiplier=multipliers["score_moments"],
        axis_name=kind.axis_name,
    )
    stddev = scores.stddev * like(noise["stddev"], scores.stddev)
    return scores._replace(stddev=stddev, moments=moments)


@jax.jit
def _in_parts(samples: Params, halves: Params) -> Params:
    """Returns scores clipped to half of their bound, and the remainders."""
    inner = {name: _clipped(x, halves[name]) for name, x in samples.items()}
    return inner | {name + _OUTER: x - inner[name] for name, x in samples.items()}


def _clipped(rows: jax.Array, norm: jax.Array) -> jax.Array:
    return jax.vmap(clip_to_norm, (0, None))(rows, norm)


@partial(jax.jit, static_argnums=0)
def _corrected(
    shares: tuple[tuple[str, float], ...],
    samples: Params,
    mean: Params,
    excess: dict[str, Excess],
    halves: Params,
) -> tuple[jax.Array, Scores]:
    """Returns rows of norm 1 of which the scores are means, and the scores.

    Their noise is in units of that of the parts, and their moments are zeros.
    """
    means, noises, biases, units, rows = [], [], [], [], []
    is_heavy = jnp.zeros((), bool)
    for block, (name, share) in enumerate(shares):
        ratio, error, heavy = excess[name]
        is_heavy = is_heavy | heavy
        largest = 2 + ratio  # of inner + (1 + ratio) outer, in units of the half
        to_unit = math.sqrt(share) / largest
        inner = 1 / math.sqrt((1 - _OUTER_SHARE) * share)
        outer = 1 / math.sqrt(_OUTER_SHARE * share)
        remainder = outer * mean[name + _OUTER]
        means.append(to_unit * (inner * mean[name] + (1 + ratio) * remainder))
        noise = to_unit * jnp.hypot(inner, (1 + ratio) * outer)
        noises.append(jnp.full_like(remainder, noise))
        off = jnp.hypot(error, _MODEL_ERROR * ratio) * to_unit * remainder
        biases.append(jnp.outer(off, jnp.eye(len(shares), dtype=off.dtype)[block]))
        units.append(jnp.full_like(remainder, halves[name] / to_unit))
        row = (1 + ratio) * _clipped(samples[name + _OUTER], halves[name])
        row = samples[name] + row
        rows.append(to_unit / halves[name] * row)
    joined = jnp.concatenate(rows, axis=-1)
    scores = Scores(
        jnp.concatenate(means),
        jnp.concatenate(noises),
        jnp.zeros((joined.shape[1], joined.shape[1]), joined.dtype),
        jnp.concatenate(biases),
        jnp.concatenate(units),
        is_heavy,
    )
    return joined, scores
