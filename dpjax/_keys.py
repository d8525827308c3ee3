"""Independent keys, by one program for any number of them."""

import jax

from dpjax._types import Key

_MOST = 5


def split(key: Key, num: int = 2) -> tuple[Key, ...]:
    """Returns up to five independent keys, those of `jax.random.split(key, num)`.

    Outside of jit, each count would have a program of its own, and others would take
    the keys apart: a tenth of a second of compilation for each count.

    Example:
        >>> import jax
        >>> first, second = split(jax.random.key(0))
        >>> bool(first == jax.random.split(jax.random.key(0))[0])
        True
    """
    return _all(key)[:num]


@jax.jit
def _all(key: Key) -> tuple[Key, ...]:
    return tuple(jax.random.split(key, _MOST))
