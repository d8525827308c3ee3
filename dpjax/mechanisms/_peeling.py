"""Private sparse vectors: the largest coordinates under noise, released with noise."""

import math
from functools import partial

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._rounding import ROUNDED_UP
from dpjax._sharding import check_key_varies_as
from dpjax._tree import as_finite as _finite
from dpjax._tree import narrowed_numbers
from dpjax._types import Key, PeelingNoise, Scalar
from dpjax.mechanisms import _samplers


def peeling(
    key: Key,
    vector: jax.Array,
    *,
    sparsity: int,
    selection_scale: Scalar,
    release_stddev: Scalar,
    noise: PeelingNoise = "gumbel",
) -> jax.Array:
    """Releases the s largest coordinates of a vector, with noise.

    With noise="gumbel", noise is drawn once, and S is the set of the s largest
    |v| + selection_scale·Gumbel. The result is v + release_stddev·N(0, 1) on S and zero
    elsewhere.

    With noise="laplace", as in the papers, each of s rounds draws fresh noise, and adds
    the coordinate with the largest |v| + selection_scale·Lap(1) to S. The released
    values get Laplace noise of standard deviation release_stddev. At the same rho it
    needs more than twice the noise, but it is also pure epsilon-DP.

    Args:
        key: a typed key, used once here.
        vector: v, of shape (d,) and floating point. NaN and infinities count as zero.
        sparsity: s, from 1 to d.
        selection_scale: g, scale of the selection noise, in units of v; non-negative,
            may be traced.
        release_stddev: sigma, in units of v; non-negative, may be traced. The single
            Laplace scale b of the papers is g = b and sigma = sqrt(2) b. If infinite,
            only the set S is released: entries are infinite on S, and zero elsewhere.
        noise: "gumbel" or "laplace".

    Returns:
        A vector of shape (d,) with at most s nonzero entries.

    Raises:
        ValueError: If an argument is out of its range, or key is not a typed key.

    Privacy:
        Let lam be the linf sensitivity of v. This is rho-zCDP under the relation of
        lam, with rho = s lam^2 / (2 g^2) + s lam^2 / (2 sigma^2) for Gumbel noise, and
        s (2 lam^2/g^2 + lam^2/sigma^2) for Laplace noise, which is also s (2 lam/g +
        sqrt(2) lam/sigma)-DP: `docs/privacy/proofs/mechanisms.md`, 2.5. With Gumbel
        noise, g = sigma = lam sqrt(s/rho) spends half of rho on each part. For real
        numbers, as for `gaussian`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> v = jnp.array([0.1, -9.0, 0.2, 7.0, 0.0])
        >>> sparse = peeling(jax.random.key(0), v, sparsity=2, selection_scale=0.2,
        ...                  release_stddev=0.1)
        >>> print(jnp.flatnonzero(sparse))
        [1 3]

    Reference:
        Durfee, Rogers (2019), "Practical differentially private top-k selection with
        pay-what-you-get composition". Rounds of Laplace noise: Hu, Ni, Xiao, Wang
        (2022), Algorithm Peeling, after Cai, Wang, Zhang (2021), "The cost of privacy".
    """
    _validate.typed_key(key)
    vector = narrowed_numbers(vector, "vector")
    check_key_varies_as(vector, key)
    shape, dtype = jnp.shape(vector), jnp.result_type(vector)
    is_fine = len(shape) == 1 and jnp.issubdtype(dtype, jnp.floating)
    given = jax.ShapeDtypeStruct(shape, dtype)
    _validate.require(is_fine, "vector", given, "an array of floats with one axis")
    _validate.count(sparsity=sparsity)
    rule = f"at most {shape[0]}, the size of vector"
    _validate.require(sparsity <= shape[0], "sparsity", sparsity, rule)
    _validate.choice(PeelingNoise, noise=noise)
    _validate.non_negative(selection_scale=selection_scale)
    _validate.within(0.0, math.inf, release_stddev=release_stddev)
    peel = _peel_once if noise == "gumbel" else _peel_in_rounds
    return peel(sparsity, key, vector, selection_scale, release_stddev)


@partial(jax.jit, static_argnums=0)
def _peel_once(sparsity, key, vector, selection_scale, release_stddev):
    """Returns the vector that `peeling` releases with noise="gumbel", drawn once."""
    v = _finite(vector)
    choice_key, release_key = jax.random.split(key)
    gumbel = _samplers.gumbel(choice_key, v.shape, v.dtype)
    noisy = jnp.abs(v) + _rounded_up(selection_scale, v) * gumbel
    chosen = jax.lax.top_k(noisy, sparsity)[1]
    noise = _samplers.normal(release_key, (sparsity,), v.dtype)
    return _release(vector, v, chosen, release_stddev, noise)


@partial(jax.jit, static_argnums=0)
def _peel_in_rounds(sparsity, key, vector, selection_scale, release_stddev):
    """Returns the vector that `peeling` releases with noise="laplace"."""
    # It chooses one entry of `vector`, (d,), in each of `sparsity` rounds, with fresh
    # noise; the other arguments are those of `peeling`.
    v = _finite(vector)
    choice_key, release_key = jax.random.split(key)

    # The scan gets raw words of the keys, because under vmap the check for key reuse
    # rejects typed keys as inputs of a scan.
    impl = jax.random.key_impl(choice_key)
    words = jax.random.key_data(jax.random.split(choice_key, sparsity))

    def peel(size: jax.Array, words: jax.Array) -> tuple[jax.Array, jax.Array]:
        round_key = jax.random.wrap_key_data(words, impl=impl)
        noise = _samplers.laplace(round_key, v.shape, v.dtype)
        j = jnp.argmax(size + _rounded_up(selection_scale, v) * noise)
        return size.at[j].set(-jnp.inf), j

    chosen = jax.lax.scan(peel, jnp.abs(v), words)[1]
    noise = _samplers.laplace(release_key, (sparsity,), v.dtype)
    return _release(vector, v, chosen, release_stddev / math.sqrt(2), noise)


def _release(vector, v, chosen, scale, noise) -> jax.Array:
    scale = _rounded_up(scale, v)
    # Infinite noise could be NaN (0 times infinity), and its sign would be random, so
    # set entries to +inf directly.
    released = jnp.where(jnp.isinf(scale), jnp.inf, v[chosen] + scale * noise)
    return jnp.zeros_like(v).at[chosen].set(released).astype(jnp.result_type(vector))


def _rounded_up(scale: Scalar, v: jax.Array) -> jax.Array:
    # Never add less noise than was calibrated, because a scale was rounded down.
    return (jnp.asarray(scale) * ROUNDED_UP).astype(v.dtype)
