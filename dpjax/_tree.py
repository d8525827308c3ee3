"""Dataclasses as pytrees, and numbers in the dtype of an array."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from dpjax._types import Scalar


def register(*, data_fields: list[str], meta_fields: list[str]) -> Callable:
    """Registers a frozen dataclass as a pytree.

    Unlike `jax.tree_util.register_dataclass` it rebuilds without the checks of the
    constructor: the gradient of an estimator or a set is one too, with any sign.
    """

    def unflatten(cls, meta, data):
        self = object.__new__(cls)
        for name, value in zip(meta_fields + data_fields, (*meta, *data), strict=True):
            object.__setattr__(self, name, value)
        return self

    def flatten_with_keys(self):
        data = [(jax.tree_util.GetAttrKey(x), getattr(self, x)) for x in data_fields]
        return data, tuple(getattr(self, x) for x in meta_fields)

    def decorate(cls):
        jax.tree_util.register_pytree_with_keys(
            cls, flatten_with_keys, partial(unflatten, cls)
        )
        return cls

    return decorate


def like(value: Scalar, x: jax.Array) -> jax.Array:
    """Returns a number in the dtype of an array."""
    return jnp.asarray(value).astype(x.dtype)
