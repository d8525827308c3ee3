"""Keys split with one compiled program, and a `repr` of states that hides numbers."""

import dataclasses
from typing import Any

import jax
import numpy as np

from dpjax._types import Key

_MOST = 5


def split(key: Key, num: int = 2) -> tuple[Key, ...]:
    """Returns up to five independent keys, the same as `jax.random.split(key, num)`.

    Outside jit, `jax.random.split` takes a tenth of a second to compile for each `num`.
    """
    return _most_keys(key)[:num]


def secret_repr(self: Any) -> str:
    """Returns a named tuple or dataclass as text, with types in place of arrays."""
    # States use it as `__repr__`, because a key, or a sum without noise, is secret.

    def shown(x: Any) -> Any:
        return jax.typeof(x) if isinstance(x, jax.Array | np.ndarray) else x

    names = getattr(self, "_fields", None)
    names = names or [field.name for field in dataclasses.fields(self)]
    values = {name: jax.tree.map(shown, getattr(self, name)) for name in names}
    fields = ", ".join(f"{name}={value!r}" for name, value in values.items())
    return f"{type(self).__name__}({fields})"


@jax.jit
def _most_keys(key: Key) -> tuple[Key, ...]:
    return tuple(jax.random.split(key, _MOST))
