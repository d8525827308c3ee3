"""Keys of 256 bits whose random numbers are a cipher's: ChaCha20, in JAX.

JAX's own keys are Threefry's with 64 bits, which is no cryptographic generator as it is
keyed. A key here is the key of ChaCha20 (RFC 8439): all that follows from it, numbers
and further keys, are blocks of its key stream. No block is used twice, because what it
is for, and its place, are its nonce and its counter.
"""

import math
import os
import sys
from typing import Any

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np

from dpjax._types import Key

_WORDS = 16  # of a block
_KEY = 8  # words of a key
_CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4")
_BITS, _SPLIT, _FOLD, _SEED = range(4)  # what a block is for


def chacha20_blocks(
    key: jax.Array, counter: jax.Array, nonce: tuple[jax.Array | int, ...]
) -> jax.Array:
    """Returns k blocks of the key stream of ChaCha20, of shape (16, k), uint32.

    The key has shape (8,), the counter, which is the places of the blocks, shape (k,),
    and the nonce is three words, each of shape () or (k,): RFC 8439, Section 2.3.
    """
    words = [*jnp.asarray(_CONSTANTS), *key, counter, *nonce]
    shape = counter.shape
    start = jnp.stack([jnp.broadcast_to(jnp.uint32(x), shape) for x in words])
    start = start.reshape(4, 4, *shape)  # of rows a, b, c and d

    def rotated(rows, sign):
        return [jnp.roll(x, sign * i, axis=0) for i, x in enumerate(rows)]

    def twice(_, state):
        columns = _quarter_rounds(*state)
        diagonals = _quarter_rounds(*rotated(columns, -1))
        return jnp.stack(rotated(diagonals, 1))

    return (start + jax.lax.fori_loop(0, 10, twice, start)).reshape(_WORDS, *shape)


def _quarter_rounds(a, b, c, d):
    """Mixes four words, in four places at once: each of shape (4, k)."""
    for left, other in ((16, 12), (8, 7)):
        a = a + b
        d = _rotated(d ^ a, left)
        c = c + d
        b = _rotated(b ^ c, other)
    return a, b, c, d


def _rotated(x, count):
    return (x << count) | (x >> (32 - count))


def _stream(key: jax.Array, count: int, purpose: int, number: jax.Array | int = 0):
    """Returns so many words of the key stream for a purpose."""
    num_blocks = -(-count // _WORDS)
    places = jax.lax.iota(jnp.uint32, num_blocks)
    return chacha20_blocks(key, places, (purpose, number, 0)).T.reshape(-1)[:count]


def _seed(seed: jax.Array) -> jax.Array:
    words = jnp.zeros(_KEY, jnp.uint32).at[0].set(seed.astype(jnp.uint32))
    if seed.dtype.itemsize > 4:
        words = words.at[1].set((seed >> 32).astype(jnp.uint32))
    return _stream(words, _KEY, _SEED)


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return _stream(key, _KEY * math.prod(shape), _SPLIT).reshape(*shape, _KEY)


def _fold_in(key: jax.Array, data: int) -> jax.Array:
    return _stream(key, _KEY, _FOLD, jnp.asarray(data).astype(jnp.uint32))


def _random_bits(key: jax.Array, width: int, shape: tuple[int, ...]) -> jax.Array:
    size = math.prod(shape)
    words = _stream(key, -(-size * width // 32), _BITS)
    dtype = jnp.dtype(f"uint{width}")
    if width == 64:
        high, low = (x.astype(dtype) for x in words.reshape(2, -1))
        words = (high << 32) | low
    elif width < 32:
        words = jax.lax.bitcast_convert_type(words, dtype).reshape(-1)[:size]
    return words.reshape(shape)


def _register() -> None:
    """Makes "chacha20" a name of JAX: what restores a key, as Orbax, asks for that."""
    spec: Any = jax.extend.random.define_prng_impl(
        key_shape=(_KEY,),
        seed=_seed,
        split=_split,
        random_bits=_random_bits,
        fold_in=_fold_in,
        name="chacha20",
        tag="cc",
    )
    # JAX has no public way to its list of names.
    names = sys.modules[type(spec._impl).__module__].prngs
    names.setdefault("chacha20", spec._impl)


_register()


def key_of_words(words: np.ndarray) -> Key:
    """Returns the key whose data these are: of ChaCha20, or with two of Threefry."""
    impl = "chacha20" if words.shape[-1] == _KEY else "threefry2x32"
    return jax.random.wrap_key_data(jnp.asarray(words), impl=impl)


def secret_key() -> Key:
    """Returns a key of 256 bits from the operating system, for a release that matters.

    Its random numbers are those of ChaCha20, a cipher, in place of Threefry's, so that
    noise is as hard to tell from true randomness as the cipher is to break. It goes
    wherever a key of JAX goes, into jit, scan and checkpoints, those of Orbax too; as
    with each key, whoever reads it knows the noise. `jax.export` saves no program that
    takes one.

    Example:
        >>> import jax, dpjax
        >>> key = dpjax.mechanisms.secret_key()
        >>> dpjax.mechanisms.gaussian(key, jax.numpy.zeros(3), stddev=1.0).shape
        (3,)

    Reference:
        Nir, Langley (2018), RFC 8439, "ChaCha20 and Poly1305".
    """
    return key_of_words(np.frombuffer(os.urandom(4 * _KEY), np.uint32))
