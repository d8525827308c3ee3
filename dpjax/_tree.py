"""Helpers for pytrees and arrays: registration, conversion, stacking, flattening."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata
from jax.flatten_util import ravel_pytree

from dpjax import _validate
from dpjax._sharding import num_other_devices
from dpjax._types import PyTree, Scalar


def register(*data_fields: str) -> Callable:
    """Makes a frozen dataclass a pytree: data_fields are its leaves, the rest static.

    Unlike `jax.tree_util.register_dataclass` it rebuilds without the constructor's
    checks: a gradient by an estimator is an estimator, but its fields may be negative.
    """

    def decorate(cls):
        """Returns the class, now a pytree that is rebuilt without its constructor."""
        fields = [field.name for field in dataclasses.fields(cls)]
        meta_fields = [name for name in fields if name not in data_fields]

        def flatten_with_keys(self):
            keys = map(jax.tree_util.GetAttrKey, data_fields)
            data = [getattr(self, name) for name in data_fields]
            meta = tuple(getattr(self, name) for name in meta_fields)
            return [*zip(keys, data, strict=True)], meta

        def unflatten(meta, data):
            self, names = object.__new__(cls), (*meta_fields, *data_fields)
            for name, value in zip(names, (*meta, *data), strict=True):
                object.__setattr__(self, name, value)
            return self

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten)
        return cls

    return decorate


def num_coordinates(tree: PyTree) -> int:
    """Returns the number of entries of all leaves."""
    return sum(math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(tree))


@register()
@dataclass(frozen=True)
class Static:
    """A pytree without leaves, which keeps a number static under jit."""

    value: Any

    @staticmethod
    def value_of(x: Any) -> Any:
        """Returns x, or its value if it is `Static`."""
        return x.value if isinstance(x, Static) else x


def arrays(tree: PyTree, name: str = "data", rule: str = "numbers") -> PyTree:
    """Returns a tree with NumPy arrays copied to JAX, so that no owner changes them."""

    def array(x: Any) -> Any:  # jnp.asarray would compile
        is_numpy = isinstance(x, np.ndarray)
        return jax.device_put(narrowed(x, copy=True)) if is_numpy else x

    return jax.tree.map(array, _validate.numbers(tree, name, rule))


def narrowed_numbers(tree: PyTree, name: str) -> PyTree:
    """Returns a tree of numbers, checked, with NumPy arrays in the dtypes of JAX.

    No number shows by a warning of its conversion: see `narrowed`.
    """
    tree = _validate.numbers(tree, name)
    return jax.tree.map(lambda x: narrowed(x) if isinstance(x, np.ndarray) else x, tree)


def narrowed(array: np.ndarray, *, copy: bool | None = None) -> np.ndarray:
    """Returns an array in the dtype to which JAX converts it.

    Numbers beyond float32 become infinite, without NumPy's warning, which would reveal
    a record, and is an exception under `python -W error`. Integers beyond int32 or
    uint32 become the nearest integer in range; JAX would wrap them.
    """
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.dtype.kind in "iu" and dtype != array.dtype:
        ends = np.iinfo(dtype)
        array = np.clip(array, ends.min, ends.max)
    with np.errstate(over="ignore"):
        return np.array(array, dtype, copy=copy, subok=True)  # a masked array stays so


def real_pair(features: Any, targets: Any, name: str) -> tuple[Any, Any]:
    """Returns features (n, d) and targets (n,) as arrays, checked for a linear model.

    Raises `ValueError` for an array that is complex, empty or of another shape; it
    calls the targets `name`, the name of the caller's argument.
    """
    pair = _validate.numbers(features, "features"), _validate.numbers(targets, name)
    for of, x, ndim in zip(("features", name), pair, (2, 1), strict=True):
        is_array = hasattr(x, "dtype")
        kind = jax.ShapeDtypeStruct(x.shape, x.dtype) if is_array else type(x).__name__
        is_fine = is_array and x.ndim == ndim and x.size > 0
        rule = f"a real array of ndim {ndim} with at least one entry"
        _validate.require(is_fine and not jnp.iscomplexobj(x), of, kind, rule)
    x, y = pair
    rule = f"of shape ({len(x)},), one number for each row of features"
    _validate.require(len(x) == len(y), name, y.shape, rule)
    return x, y


def linear_data(features: Any, targets: Any) -> tuple[jax.Array, jax.Array]:
    """Returns features (n, d) and targets (n,), checked, as JAX arrays of one dtype."""
    # It is float64 if one of them has it, else float32. Integers become floats.

    def array(values: Any, name: str) -> jax.Array:
        x = _validate.numbers(values, name)
        if not isinstance(x, np.ndarray):
            return jnp.asarray(x)
        return arrays(x.astype(np.float32) if x.dtype.kind in "iu" else x)

    pair = array(features, "features"), array(targets, "targets")
    x, y = real_pair(*pair, "targets")
    dtype = jnp.float64 if jnp.float64 in (x.dtype, y.dtype) else jnp.float32
    return x.astype(dtype), y.astype(dtype)


def like(value: Scalar, x: jax.Array) -> jax.Array:
    """Returns a number in the dtype of an array."""
    return jnp.asarray(value).astype(x.dtype)


def as_float(x: jax.Array) -> jax.Array:
    """Returns float64 as it is, and every other real dtype as float32."""
    x = jnp.asarray(x)
    _validate.real(sample=x)
    return x if x.dtype == jnp.float64 else x.astype(jnp.float32)


def as_finite(x: jax.Array) -> jax.Array:
    """Returns floats, with zero in place of NaN and infinities."""
    x = as_float(x)
    return jnp.where(jnp.isfinite(x), x, 0)


def within(x: jax.Array, limit: jax.Array) -> jax.Array:
    """Returns floats clipped to ±limit, NaN as the limit, faster than `jnp.clip`."""
    x = jnp.where(x < limit, x, limit)
    return jnp.where(x > -limit, x, -limit)


def materialized(tree: PyTree) -> PyTree:
    """Returns the same arrays, computed once, so that all readers get the same numbers.

    A compiler may compute a number again for each reader, with other rounding: a fused
    a*b - c differs entirely if c is close to a*b. Then the norm of a sample would not
    be the norm of the sample that is summed.

    A barrier prevents this, except on CPU, where barriers are removed before fusion:
    there the barrier is in a function that is not inlined. Integers pass through.
    """
    return jax.lax.platform_dependent(tree, cpu=_called, default=_barrier)


@jax.jit
def _barrier(tree):
    return jax.lax.optimization_barrier(tree)


def _called(tree):
    """Returns `tree` by calls that XLA must not inline, so that all uses are equal."""
    # Otherwise XLA could compute a float anew, and round it otherwise, where it is
    # used.
    leaves, structure = jax.tree.flatten(tree)
    at = [i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.floating)]
    # With few arrays each gets a call of its own, so that not all are in memory at
    # once. Many share one call, because calls take time to compile.
    size = 1 if len(at) <= 64 else len(at)
    with set_xla_metadata(inlineable="false"):
        for some in (at[i : i + size] for i in range(0, len(at), size)):
            for i, x in zip(some, _barrier([leaves[i] for i in some]), strict=True):
                leaves[i] = x
    return structure.unflatten(leaves)


def stack(arrays: list[jax.Array], axis: int) -> jax.Array:
    """Returns arrays of one shape, stacked along a new axis."""
    # XLA compiles equal operations once, so arrays are stacked in groups of equal size.
    size = math.isqrt(len(arrays))
    some = [jnp.stack(arrays[i : i + size], axis) for i in range(0, len(arrays), size)]
    return jnp.concatenate(materialized(some), axis)


def split(x: jax.Array, sizes: list[int]) -> list[jax.Array]:
    """Returns x in parts of `sizes` rows, like `jnp.split`, but quick to compile."""
    size = math.isqrt(len(sizes)) if len(sizes) > 64 else len(sizes)
    some = [sizes[i : i + size] for i in range(0, len(sizes), size)]
    parts = jnp.split(x, np.cumsum([sum(of) for of in some])[:-1])
    parts = materialized(parts) if len(parts) > 1 else parts
    return [
        row
        for part, of in zip(parts, some, strict=True)
        for row in jnp.split(part, np.cumsum(of)[:-1])
    ]


def by_row(function: Callable[..., PyTree], size: int) -> Callable[..., PyTree]:
    """Returns the function mapped over axis 0, of length `size`."""
    # It is `jax.vmap` of the function, except for one row, because under the slower
    # `jax.vmap` conditions become selections, and convolutions become grouped.
    if size > 1:
        return jax.vmap(function)

    def of_row(rows: PyTree) -> PyTree:
        result = function(jax.tree.map(lambda x: x[0], rows))
        return jax.tree.map(lambda x: jnp.asarray(x)[None], result)

    return of_row


def by_column(function: Callable[[jax.Array], PyTree], x: jax.Array) -> PyTree:
    """Returns `function` of the columns of x (n, ...), with leaves of shape (...)."""
    # `function`, such as a median, maps a matrix (n, d) to leaves (d,). So x is
    # reshaped to a matrix, except for axes that may be sharded, which are not merged.
    if x.ndim > 2 and num_other_devices(x) > 1:
        return jax.vmap(partial(by_column, function), in_axes=1)(x)
    results = function(x.reshape(len(x), math.prod(x.shape[1:])))
    return jax.tree.map(lambda y: y.reshape(x.shape[1:]), results)


def broadcast(prefix: PyTree, tree: PyTree, name: str) -> PyTree:
    """Returns a pytree like `tree`: each leaf of prefix, such as a scale, is repeated.

    Raises:
        ValueError: If prefix, called `name` there, is no pytree prefix of tree.
    """
    try:
        return jax.tree.broadcast(prefix, tree)
    except ValueError:
        given, wanted = jax.tree.structure(prefix), jax.tree.structure(tree)
    rule = f"one leaf, or a pytree prefix of {wanted}"
    raise ValueError(f"{name} must be {rule}, got {given}.")


def clip(tree: PyTree, limit: Scalar) -> PyTree:
    """Returns a tree with all entries clipped to ±limit."""
    return jax.tree.map(lambda x: jnp.clip(x, -like(limit, x), like(limit, x)), tree)


def flatten(tree: PyTree, name: str) -> tuple[jax.Array, Callable[[jax.Array], PyTree]]:
    """Returns all leaves as one vector, and a function from such a vector to a tree."""
    # The vector is float64 if a leaf is, else float32; errors call the tree `name`.
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    kinds = [f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves]
    is_real = not any(jnp.iscomplexobj(leaf) for leaf in leaves)
    rule = "a pytree of real arrays with at least one entry"
    is_fine = is_real and sum(leaf.size for leaf in leaves) > 0
    _validate.require(is_fine, name, kinds, rule)
    dtypes = [leaf.dtype for leaf in leaves]
    dtype = jnp.float64 if jnp.float64 in dtypes else jnp.float32
    wide = jax.tree.map(lambda x: jnp.asarray(x).astype(dtype), tree)
    vector, unravel = ravel_pytree(wide)

    def restored(x, leaf):
        dtype = jnp.asarray(leaf).dtype
        return x.astype(dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.float32)

    return vector, lambda vector: jax.tree.map(restored, unravel(vector), tree)
