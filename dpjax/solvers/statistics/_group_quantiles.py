"""Private quantiles of groups, by bisection, and how wide their intervals are."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpjax import _keys
from dpjax._rounding import ROUNDED_UP
from dpjax._types import Key, Scalar
from dpjax.mechanisms import gaussian
from dpjax.solvers.statistics._grouped_samples import Groups, Ordered
from dpjax.solvers.statistics._noisy_quantile import noisy_quantile
from dpjax.solvers.statistics._quantile import APART

_BOUND = 0.02  # of the budget, for a bound of all samples
_NUM_HALVINGS = 20


def noisy_quantiles_of_groups(
    static: tuple[int, tuple[float, ...]],
    key: Key,
    groups: Groups,
    counts: jax.Array,
    least_count: jax.Array,
    multiplier: float,
    reach: float | None,
) -> tuple[jax.Array, jax.Array]:
    """Releases quantiles of each group (G, Q), and returns their standard errors.

    About each a width is found that reaches two standard errors of its rank both ways.

    Args:
        static: the number of groups G, and Q quantiles in (0, 1).
        key: a typed key.
        groups: the samples.
        counts: of groups, noisy, shape (G,).
        least_count: groups of no more have infinite errors.
        multiplier: of the noise of all of it, as one Gaussian mechanism.
        reach: a public bound of all samples, or None: one is released.

    Privacy:
        Under replace-one Gaussian mechanisms that compose to one of that multiplier:
        `noisy_quantile`, and the counts of each step. A record is in one of them, so
        that they move by sqrt(2) in the l2 norm.
    """
    bound_key, key = _keys.split(key)
    if reach is None:
        bound = 2 * noisy_quantile(
            bound_key,
            jnp.abs(groups.values),
            num_above=0.0,
            noise_multiplier=multiplier / math.sqrt(_BOUND),
        )
        multiplier /= math.sqrt(1 - _BOUND)
    else:
        bound = jnp.asarray(reach, groups.values.dtype)
    return _halved(
        static,
        key,
        groups,
        counts,
        least_count,
        bound,
        multiplier,
    )


@partial(jax.jit, static_argnums=0)
def _halved(
    static: tuple[int, tuple[float, ...]],
    key: Key,
    groups: Groups,
    counts: jax.Array,
    least_count: jax.Array,
    bound: jax.Array,
    multiplier: Scalar,
) -> tuple[jax.Array, jax.Array]:
    num_groups, quantiles = static
    num_steps = 2 * len(quantiles) * _NUM_HALVINGS
    stddev = math.sqrt(2 * num_steps) * ROUNDED_UP * multiplier
    stddev = jnp.asarray(stddev, "float32")
    sizes = jnp.maximum(counts, 1).astype("float32")
    wanted = jnp.asarray(quantiles, "float32")[:, None]
    variances = wanted * (1 - wanted) * sizes[None] + stddev**2
    apart = APART * jnp.sqrt(variances) / sizes[None]  # of shares, (Q, G)
    ordered = Ordered.of(num_groups, groups)

    def halved(
        key: Key, start: jax.Array, ends_of: Callable[..., Any], is_less: Any
    ) -> tuple[jax.Array, jax.Array]:
        """Returns what is found within the bound of the start, and how far off it is.

        A step asks how many samples are below, between and above two ends.
        """

        def halve(step: Any, state: tuple[jax.Array, jax.Array]) -> Any:
            middle, half = state  # (Q, G)
            inside = ordered.beside(*ends_of(middle)).astype("float32")
            noisy = gaussian(jax.random.fold_in(key, step), inside, stddev=stddev)
            is_more = is_less(*jnp.moveaxis(noisy, 1, 0))
            half = half / 2
            return middle + jnp.where(is_more, half, -half), half

        state = start, jnp.asarray(bound, start.dtype)
        return jax.lax.fori_loop(0, _NUM_HALVINGS, halve, state)

    center_key, width_key = _keys.split(key)
    zeros = jnp.zeros((len(quantiles), num_groups), groups.values.dtype)
    center, off = halved(
        center_key,
        zeros,
        lambda middle: (middle, middle),
        lambda below, _, above: wanted * above > (1 - wanted) * below,
    )

    def is_short(below: jax.Array, between: jax.Array, above: jax.Array) -> jax.Array:
        # On either side: where samples repeat numbers, the quantile of the law may be
        # the next number on one side alone.
        total = below + between + above
        least = wanted - apart, 1 - wanted - apart
        return (below > least[0] * total) | (above > least[1] * total)

    width, _ = halved(
        width_key,
        zeros + jnp.asarray(bound, zeros.dtype),
        lambda width: (center - width, center + width),
        is_short,
    )
    is_inside = apart < jnp.minimum(wanted, 1 - wanted)
    is_seen = is_inside & (sizes > least_count)[None]
    errors = (width + off) / APART + off
    return center.T, jnp.where(is_seen, errors, jnp.inf).T
