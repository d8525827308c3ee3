"""Checks of static arguments: each error names the argument, its value, the rule.

Traced values are not checked, so estimators and transforms may be built inside `jit`,
`vmap` and `grad`. Values of private data are never checked, because an exception would
be a release without accounting.

JAX is imported only to check arrays: the command checks its options without it.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np


def require(condition: bool, name: str, value: Any, rule: str) -> None:
    """Raises `ValueError` that names the argument, the rule and the value."""
    if not condition:
        raise ValueError(f"{name} must be {rule}, got {_shown(value)}.")


def _shown(value: Any) -> str:
    """Returns a value as text, or the type of words of a key and of a batch's mask."""
    is_type = isinstance(value, type)  # which has the properties of its arrays
    is_array = isinstance(value, np.ndarray) or (hasattr(value, "aval") and not is_type)
    if is_array and getattr(value.dtype, "kind", "key") in ("key", "u", "b"):
        return f"an array of {value.dtype}{list(value.shape)}"
    return repr(value)


def positive(**arguments: Any) -> None:
    """Requires every argument to be a finite number above zero."""
    _all_numbers(arguments, lambda x: (x > 0) & np.isfinite(x), "positive and finite")


def above_zero(**arguments: Any) -> None:
    """Requires every argument to be a number above zero, or infinite."""
    _all_numbers(arguments, lambda x: x > 0, "positive")


def non_negative(**arguments: Any) -> None:
    """Requires every argument to be a finite number, zero or above."""
    rule = "non-negative and finite"
    _all_numbers(arguments, lambda x: (x >= 0) & np.isfinite(x), rule)


def within(low: float, high: float, **arguments: Any) -> None:
    """Requires low <= argument <= high, for every argument."""
    rule = f"between {low:g} and {high:g}"
    _all_numbers(arguments, lambda x: (x >= low) & (x <= high), rule)


def probability(**arguments: Any) -> None:
    """Requires 0 < argument < 1, for every argument."""
    rule = "strictly between 0 and 1"
    _all_numbers(arguments, lambda x: (x > 0) & (x < 1), rule)


def delta(delta: Any) -> None:
    """Requires a privacy parameter delta in [0, 1)."""
    values = _as_numbers("delta", delta)
    require(bool(np.all((values >= 0) & (values < 1))), "delta", delta, "in [0, 1)")


def choice(literal: Any, **arguments: Any) -> None:
    """Requires every argument to be one of the words of a `Literal`."""
    words = get_args(literal)
    for name, value in arguments.items():
        require(value in words, name, value, " or ".join(words))


def count(**arguments: Any) -> None:
    """Requires every argument to be an integer of at least one."""
    for name, value in arguments.items():
        is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
        require(
            bool(is_integer and value >= 1), name, value, "an integer of at least 1"
        )


def typed_key(key: Any) -> None:
    """Requires one new-style JAX key, as `jax.random.key(seed)` makes."""
    import jax
    import jax.numpy as jnp

    is_key = isinstance(key, jax.Array) and jnp.issubdtype(
        key.dtype, jax.dtypes.prng_key
    )
    require(
        is_key and key.ndim == 0,
        "key",
        key if hasattr(key, "aval") else type(key),  # an int may be a seed
        "a single typed JAX key, such as jax.random.key(0)",
    )


def estimator(value: Any) -> None:
    """Requires something with an influence and a sensitivity."""
    require(
        hasattr(value, "influence")
        and hasattr(value, "sensitivity")
        and not isinstance(value, type),
        "estimator",
        value,
        "an estimator, such as dpjax.estimators.Truncation(1.0)",
    )


def bounded_estimator(value: Any) -> None:
    """Requires an estimator whose influence has a bound."""
    estimator(value)
    require(
        value.limit is not None, "estimator", value, "one with a finite sensitivity"
    )


def real(**trees: Any) -> None:
    """Requires leaves of real numbers: no bound is stated for complex ones."""
    import jax
    import jax.numpy as jnp

    for name, tree in trees.items():
        for path, x in jax.tree_util.tree_leaves_with_path(tree):
            is_real, path = not jnp.iscomplexobj(x), jax.tree_util.keystr(path)
            rule = "real: split it into two arrays, its real and imaginary parts"
            require(is_real, name + path, jnp.result_type(x), rule)


def trainable(params: Any) -> None:
    """Requires leaves with gradients: real floats, and no functions, keys or counts."""
    import jax
    import jax.numpy as jnp

    no_running_statistics(params)
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        is_array = hasattr(x, "dtype") or isinstance(x, int | float | complex)
        dtype = jnp.result_type(x) if is_array else type(x)
        require(
            is_array and jnp.issubdtype(dtype, jnp.inexact),
            "params" + jax.tree_util.keystr(path),
            dtype,
            "a float array: split what is trained from the rest, as "
            "equinox.partition(model, equinox.is_inexact_array) and "
            "nnx.split(model, nnx.Param, ...) do",
        )
    real(params=params)


def optax_params(params: Any) -> None:
    """Requires the parameters, which are optional in an update of optax."""
    require(params is not None, "params", params, "given to update, as optax asks")


def per_sample(updates: Any, params: Any) -> None:
    """Requires leaves (n, ...) for leaves (...) of params, where those are given."""
    import jax

    are_arrays = all(hasattr(x, "shape") for x in jax.tree.leaves(updates))
    if are_arrays and jax.tree.structure(updates) == jax.tree.structure(params):
        shapes, wanted = (
            [np.shape(leaf) for leaf in jax.tree.leaves(tree)]
            for tree in (updates, params)
        )
        require(
            [shape[1:] for shape in shapes] == wanted,
            "updates",
            shapes,
            f"per-sample gradients, of shapes (n, ...) for params of shapes {wanted}; "
            "no mean or sum of them, as jax.grad of a batch and optax.MultiSteps make",
        )


def leading_size(tree: Any, name: str) -> int:
    """Returns the common leading axis of all leaves, or raises `ValueError`."""
    import jax

    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(tree)]
    require(bool(shapes), name, shapes, "a pytree with at least one array")
    require(
        all(shapes) and len({shape[0] for shape in shapes if shape}) == 1,
        name,
        shapes,
        "arrays that share one leading sample axis",
    )
    require(shapes[0][0] >= 1, name, shapes, "arrays with at least one sample")
    return shapes[0][0]


def arrays(tree: Any) -> Any:
    """Returns a tree with NumPy arrays as JAX arrays, which are copies."""
    import jax

    def array(x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        # A copy, which its owner cannot change; jnp.asarray would compile a program.
        return jax.device_put(narrowed(x, copy=True))

    return jax.tree.map(array, tree)


def narrowed(array: np.ndarray, *, copy: bool | None = None) -> np.ndarray:
    """Returns an array in the type that JAX has for its type.

    Numbers beyond float32 become infinite, without NumPy's warning, which would reveal
    a record, and is an exception under `python -W error`. Integers beyond int32 or
    uint32 become the nearest one; JAX would wrap them.

    Example:
        >>> narrowed(np.array([2**53 + 1, -5])).tolist()
        [2147483647, -5]
    """
    import jax

    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.dtype.kind in "iu" and dtype != array.dtype:
        ends = np.iinfo(dtype)
        array = np.clip(array, ends.min, ends.max)
    with np.errstate(over="ignore"):
        return np.asanyarray(array, dtype, copy=copy)  # a masked one stays one


def linear_data(features: Any, targets: Any) -> tuple[Any, Any]:
    """Requires (n, d) features and (n,) targets, real; returns them as float arrays."""
    import jax
    import jax.numpy as jnp

    x, y = (
        arrays(x.astype(np.float32) if x.dtype.kind in "iu" else x)
        if isinstance(x, np.ndarray)
        else jnp.asarray(x)
        for x in (features, targets)
    )
    for name, array, ndim in (("features", x, 2), ("targets", y, 1)):
        require(
            array.ndim == ndim and array.size > 0 and not jnp.iscomplexobj(array),
            name,
            jax.ShapeDtypeStruct(array.shape, array.dtype),
            f"a real array with {ndim} axes and at least one entry",
        )
    require(
        len(x) == len(y), "targets", y.shape, f"one number for each of {len(x)} rows"
    )
    dtype = jnp.float64 if jnp.float64 in (x.dtype, y.dtype) else jnp.float32
    return x.astype(dtype), y.astype(dtype)


def mask(is_padding_example: Any, num_rows: int) -> None:
    """Requires a boolean mask of shape (num_rows,), or None."""
    import jax

    if is_padding_example is not None:
        require(
            isinstance(is_padding_example, jax.Array | np.ndarray)
            and is_padding_example.shape == (num_rows,)
            and is_padding_example.dtype == np.bool_,
            "is_padding_example",
            getattr(is_padding_example, "aval", is_padding_example),
            f"a boolean array of shape ({num_rows},), one entry a row",
        )


def can_be_folder(path: Path) -> bool:
    """Returns whether a path is a writable folder, or can be made one.

    It cannot if it, or a parent, is a file or a link to nothing.
    """
    places = (path.absolute(), *path.absolute().parents)
    try:
        there = next(place for place in places if os.path.lexists(place))
        return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    except OSError:  # not even to be looked at
        return False


def is_concrete(value: Any) -> bool:
    """Returns whether a value is concrete, neither traced nor a placeholder."""
    if isinstance(value, int | float | complex | str | np.generic | np.ndarray):
        return True
    import jax
    from jax.core import Tracer

    return isinstance(value, jax.Array) and not isinstance(value, Tracer)


def _all_numbers(
    arguments: Mapping[str, Any], holds: Callable[[np.ndarray], Any], rule: str
) -> None:
    """Requires `holds` of every number; traced ones are not checked."""
    for name, value in arguments.items():
        if value is None or is_concrete(value):
            require(bool(np.all(holds(_as_numbers(name, value)))), name, value, rule)


def _as_numbers(name: str, value: Any) -> np.ndarray:
    try:
        if isinstance(value, str):
            raise TypeError
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, got {_shown(value)}.") from None


_RECIPE = (
    "BatchNorm normalizes an example by the others of its batch, so its gradient "
    "depends on all of them, and per-sample gradients would normalize each by itself. "
    "Use GroupNorm or LayerNorm; or keep the statistics fixed and public: "
    "let loss_fn close over them (nnx.split(model, nnx.Param, ...), "
    "variables['params'], eqx.partition) and evaluate BatchNorm with them "
    "(use_running_average=True, inference=True)"
)


def no_running_statistics(params: Any) -> None:
    """Raises `ValueError` where params hold the state of BatchNorm."""
    statistics = running_statistics(params)
    if statistics is not None:
        raise ValueError(
            f"params must hold no running statistics, got {statistics} of BatchNorm. "
            f"{_RECIPE}."
        )


def running_statistics(tree: Any) -> str | None:
    """Returns what a pytree holds of the state of BatchNorm, if anything.

    That is `nnx.BatchStat`, Linen's collection "batch_stats" or `equinox.nn.State`.
    Nodes of the pytree are recognized by name, without importing these packages.
    """
    import jax

    nodes: list[Any] = []
    jax.tree.flatten(tree, is_leaf=lambda node: nodes.append(node) is not None)
    return next(filter(None, map(_statistics_of, nodes)), None)


def _statistics_of(node: Any) -> str | None:
    if isinstance(node, Mapping) and "batch_stats" in node:
        return "Linen's collection 'batch_stats'"
    for kind in type(node).__mro__:
        package = kind.__module__.partition(".")[0]
        if (package, kind.__name__) == ("flax", "BatchStat"):
            return "nnx.BatchStat"
        if (package, kind.__name__) == ("equinox", "State"):
            return "equinox.nn.State"
    return None
