"""Random numbers with full tails: each is drawn from a sign and a tail probability.

`jax.random.normal` in float32 uses 23 bits and stays in [-5.42, 5.22], although true
noise of a large model leaves this range in every step. Here a quantile function is
applied to a tail probability of 63 random bits, so a Gaussian reaches beyond 9 standard
deviations with the right mass. A separate bit is the sign, so noise is symmetric; for
asymmetric distributions it chooses the lower or upper half.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from dpjax._sharding import num_other_devices
from dpjax._tree import materialized, split
from dpjax._types import Key, PyTree

TOGETHER = 2**20  # entries; two words of random bits for each take 8 MiB


def like(sampler: Callable[..., jax.Array], key: Key, tree: PyTree) -> PyTree:
    """Draws independent variables of a sampler in the shapes of a pytree of arrays.

    `sampler` takes a key, a shape, a dtype and a sharding, as `normal` below does.
    Consecutive leaves of one dtype, of at most `TOGETHER` entries in all, are drawn as
    one vector, because a draw takes a quarter of a second to compile; every device
    draws all of it, but only its own part of a sharded leaf that shares no vector.
    Sharding does not change which leaves share a vector, nor the noise.
    """
    leaves, structure = jax.tree.flatten(tree)
    groups: list[list[jax.Array]] = []
    for leaf in leaves:
        group = groups[-1] if groups else [leaf]
        fits = sum(x.size for x in [*group, leaf]) <= TOGETHER
        if groups and fits and leaf.dtype == group[0].dtype:
            group.append(leaf)
        else:
            groups.append([leaf])
    keys = [key] if len(groups) == 1 else jax.random.split(key, len(groups))
    draws = map(partial(_together, sampler), keys, groups)
    return jax.tree.unflatten(structure, [x for group in draws for x in group])


def _together(sampler, key: Key, leaves: list[jax.Array]) -> list[jax.Array]:
    """Returns noise in the shapes of `leaves`, cut from one draw of the sampler."""
    # One draw compiles once. `sampler` is as for `like`.
    if len(leaves) == 1:
        (leaf,) = leaves
        return [sampler(key, leaf.shape, leaf.dtype, jax.typeof(leaf).sharding)]
    sizes = [x.size for x in leaves]
    # Without `materialized`, XLA compiles the sampler's quantile again for each leaf.
    vector = materialized(sampler(key, (sum(sizes),), leaves[0].dtype))
    drawn = []
    for leaf, part in zip(leaves, split(vector, sizes), strict=True):
        x, place = part.reshape(leaf.shape), jax.typeof(leaf).sharding
        if num_other_devices(leaf) > 1:  # every device has drawn all of it
            mesh = jax.sharding.get_abstract_mesh()
            mesh = place.mesh if mesh.empty else mesh
            replicated = NamedSharding(mesh, PartitionSpec())
            x = jax.lax.with_sharding_constraint(x, replicated)
        drawn.append(jax.sharding.reshard(x, place) if any(place.spec) else x)
    return drawn


def normal(key: Key, *kind: Any) -> jax.Array:
    """Draws standard normal variables, with tails beyond 9 standard deviations.

    As in all samplers here, `kind` is a shape, a dtype, and a sharding or None.
    """
    return _symmetric(lambda tail: -jax.scipy.special.ndtri(tail), key, *kind)


def laplace(key: Key, *kind: Any) -> jax.Array:
    """Draws standard Laplace variables (scale 1), with tails beyond 40 scales."""

    def quantile(tail: jax.Array) -> jax.Array:
        return -jnp.log(2 * tail)

    return _symmetric(quantile, key, *kind)


def spherical_laplace(key: Key, *kind: Any) -> jax.Array:
    """Draws noise of density exp(-||x||_2), up to a constant, for l2 sensitivities."""
    # `kind` is a shape, a dtype, and a sharding or None. The array's l2 norm is
    # distributed as a sum of d exponentials; its direction is uniform.
    length_key, direction_key = jax.random.split(key)
    length = jnp.sum(jnp.abs(laplace(length_key, *kind)))
    direction = normal(direction_key, *kind)
    # One of 2^25 float32 draws is zero. Its sign is still a fair bit.
    is_zero = jnp.all(direction == 0)
    direction = jnp.where(is_zero, jnp.copysign(1, direction), direction)
    return direction * (length / jnp.sqrt(jnp.sum(direction**2)))


def exponential(key: Key, *kind: Any) -> jax.Array:
    """Draws standard exponential variables, from 2^-65 to 45, with both tails full."""
    return _from_tail(_exponential_quantile, key, *kind)


def gumbel(key: Key, *kind: Any) -> jax.Array:
    """Draws standard Gumbel variables, from -3.8 to 45, with both tails full."""

    def quantile(tail: jax.Array, is_lower: jax.Array) -> jax.Array:
        # A Gumbel variable is -log of an exponential one, so their tails change places.
        return -jnp.log(_exponential_quantile(tail, is_lower))

    return _from_tail(quantile, key, *kind)


def _exponential_quantile(tail: jax.Array, is_lower: jax.Array) -> jax.Array:
    return jnp.where(is_lower, -jnp.log1p(-tail), -jnp.log(tail))


def _symmetric(upper_quantile: Callable, key: Key, *kind: Any) -> jax.Array:
    """Draws ±upper_quantile(p) with a fair sign and p uniform on (0, 1/2]."""

    def quantile(tail: jax.Array, is_lower: jax.Array) -> jax.Array:
        size = upper_quantile(tail)
        return jnp.where(is_lower, -size, size)

    return _from_tail(quantile, key, *kind)


def _from_tail(quantile, key: Key, shape, dtype, out_sharding=None) -> jax.Array:
    """Draws quantile(p, is_lower), where a fair bit chooses the lower or upper half."""
    # p, uniform on (0, 1/2], is the mass beyond the value: below it in the lower half,
    # above it in the upper half. It is (k + v) / 2^32, k uniform on 31 bits and v on
    # 32, for full tails. A bit depends on the key and its index: sharding changes no
    # draw.
    word, more = _words(key, shape, out_sharding)
    v = more.astype(dtype) * 2.0**-32 + 2.0**-33
    return quantile(((word >> 1).astype(dtype) + v) * 2.0**-32, (word & 1) == 1)


def _words(key: Key, shape, out_sharding) -> tuple[jax.Array, jax.Array]:
    """Draws two independent words of 32 random bits for every entry."""
    # Threefry computes two words at once. `jax.random.bits` returns only their
    # exclusive or, but `jax.random.split` returns both, so one draw is enough.

    def draw(key: Key) -> tuple[jax.Array, jax.Array]:
        if jax.random.key_impl(key) == "threefry2x32":
            words = jax.random.key_data(jax.random.split(key, shape))
            return words[..., 0], words[..., 1]
        words = jax.random.bits(key, (2, *shape), "uint32")
        return words[0], words[1]

    if isinstance(out_sharding, NamedSharding) and any(out_sharding.spec):
        both = out_sharding, out_sharding
        sharded: Any = jax.sharding.auto_axes(draw, out_sharding=both)
        return sharded(key)
    return draw(key)
