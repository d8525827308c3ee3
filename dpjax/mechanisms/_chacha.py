"""Keys of 256 bits for JAX, with random numbers from the cipher ChaCha20.

JAX's default keys have 64 bits, and its Threefry is no cryptographic generator. Here a
key of JAX is a key of ChaCha20 (RFC 8439), and all random numbers and further keys are
blocks of its key stream. No block is used twice, because the nonce tells what a block
is for, and the counter its place.
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

_WORDS = 16  # words of a block
_KEY = 8  # words of a key
_CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4")
_BITS, _SPLIT, _FOLD, _SEED = range(4)  # what a block is for


def chacha20_blocks(
    key: jax.Array, counter: jax.Array, nonce: tuple[jax.Array | int, ...]
) -> jax.Array:
    """Returns k blocks of the key stream of ChaCha20, of shape (16, k), uint32."""
    # `key` has shape (8,), `counter` has the numbers of the blocks, shape (k,), and
    # `nonce` three words, each of shape () or (k,): see RFC 8439, Section 2.3.
    words = [*jnp.asarray(_CONSTANTS), *key, counter, *nonce]
    shape = counter.shape
    start = jnp.stack([jnp.broadcast_to(jnp.uint32(x), shape) for x in words])
    start = start.reshape(4, 4, *shape)  # the rows are a, b, c and d of RFC 8439

    def rotated(rows, sign):
        return [jnp.roll(x, sign * i, axis=0) for i, x in enumerate(rows)]

    def twice(_, state):
        columns = _quarter_rounds(*state)
        diagonals = _quarter_rounds(*rotated(columns, -1))
        return jnp.stack(rotated(diagonals, 1))

    return (start + jax.lax.fori_loop(0, 10, twice, start)).reshape(_WORDS, *shape)


def _quarter_rounds(a, b, c, d):
    """Applies four quarter rounds at once, to words of shape (4, k)."""
    for left, other in ((16, 12), (8, 7)):
        a = a + b
        d = _rotated(d ^ a, left)
        c = c + d
        b = _rotated(b ^ c, other)
    return a, b, c, d


def _rotated(x, count):
    return (x << count) | (x >> (32 - count))


def _stream(key: jax.Array, count: int, purpose: int, number: jax.Array | int = 0):
    """Returns `count` words of the key stream for a purpose."""
    places = jax.lax.iota(jnp.uint32, -(-count // _WORDS))
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
    """Returns random unsigned integers of `width` bits, which `jax.random` needs."""
    size = math.prod(shape)
    words = _stream(key, -(-size * width // 32), _BITS)
    dtype = jnp.dtype(f"uint{width}")
    if width == 64:
        high, low = (x.astype(dtype) for x in words.reshape(2, -1))
        words = (high << 32) | low
    elif width < 32:
        words = jax.lax.bitcast_convert_type(words, dtype).reshape(-1)[:size]
    return words.reshape(shape)


_SPEC: Any = jax.extend.random.define_prng_impl(
    key_shape=(_KEY,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="chacha20",
    tag="cc",
)
# Orbax restores keys by their name. JAX has no public function that registers one.
sys.modules[type(_SPEC._impl).__module__].prngs.setdefault("chacha20", _SPEC._impl)


def key_of_words(words: np.ndarray) -> Key:
    """Returns the key with this data: of ChaCha20, or of Threefry if two words."""
    impl = "chacha20" if words.shape[-1] == _KEY else "threefry2x32"
    return jax.random.wrap_key_data(jnp.asarray(words), impl=impl)


def secret_key() -> Key:
    """Returns a key of 256 bits from the operating system, for a release that matters.

    Its random numbers come from the cipher ChaCha20 instead of Threefry, so noise is as
    hard to tell from true randomness as the cipher is to break. The key works wherever
    a key of JAX does: in jit, scan and checkpoints, also of Orbax. `jax.export` cannot
    save a program that takes it. As with every key, whoever reads it knows the noise.

    Example:
        >>> import jax, dpjax
        >>> key = dpjax.mechanisms.secret_key()
        >>> dpjax.mechanisms.gaussian(key, jax.numpy.zeros(3), stddev=1.0).shape
        (3,)

    Reference:
        Nir, Langley (2018), RFC 8439, "ChaCha20 and Poly1305".
    """
    return key_of_words(np.frombuffer(os.urandom(4 * _KEY), np.uint32))
