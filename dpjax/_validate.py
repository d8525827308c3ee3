"""Checks of static arguments: each error names the argument, its value and the rule.

Traced values are not checked, so estimators and transforms may be built inside `jit`,
`vmap` and `grad`. Values of private data are never checked, because an exception would
be a release without accounting.

JAX is imported only to check arrays, so that the command checks its options without it.
"""

import inspect
from collections.abc import Callable
from typing import Any, get_args

import numpy as np


def require(condition: bool, name: str, value: Any, rule: str) -> None:
    """Raises `ValueError` that names the argument, the rule and the value."""
    if not condition:
        raise ValueError(f"{name} must be {rule}, got {_shown(value)}.")


def _shown(value: Any) -> str:
    """Returns a value as text, but only the type of a key, its words, or a mask."""
    is_type = isinstance(value, type)  # a class may have `aval` as a property
    is_array = isinstance(value, np.ndarray) or (hasattr(value, "aval") and not is_type)
    if is_array and getattr(value.dtype, "kind", "key") in ("key", "u", "b"):
        return f"an array of {value.dtype}{list(value.shape)}"
    return repr(value)


def is_concrete(value: Any) -> bool:
    """Returns whether a value is concrete, neither traced nor a placeholder."""
    if isinstance(value, int | float | complex | str | np.generic | np.ndarray):
        return True
    import jax
    from jax.core import Tracer

    return isinstance(value, jax.Array) and not isinstance(value, Tracer)


def _number(rule: str, holds: Callable[[np.ndarray], Any]) -> Callable[..., None]:
    """Returns a function that checks numbers or arrays, given as keyword arguments."""
    # It raises `ValueError`, with `rule`, if `holds` is false for any entry of one of
    # them, an array of float64. It skips traced values.

    def check(**arguments: Any) -> None:
        for name, value in arguments.items():
            if value is None or is_concrete(value):
                is_fine = np.all(holds(_as_numbers(name, value)))
                require(bool(is_fine), name, value, rule)

    return check


def _as_numbers(name: str, value: Any) -> np.ndarray:
    try:
        if isinstance(value, str):
            raise TypeError
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, got {_shown(value)}.") from None


# These checks take keyword arguments: `positive(epsilon=epsilon, scale=scale)`.
positive = _number("positive and finite", lambda x: (x > 0) & np.isfinite(x))
above_zero = _number("positive", lambda x: x > 0)  # or infinite
non_negative = _number("non-negative and finite", lambda x: (x >= 0) & np.isfinite(x))
probability = _number("strictly between 0 and 1", lambda x: (x > 0) & (x < 1))


def within(low: float, high: float, **arguments: Any) -> None:
    """Requires low <= argument <= high, for every argument."""
    rule = f"between {low:g} and {high:g}"
    _number(rule, lambda x: (x >= low) & (x <= high))(**arguments)


def delta(delta: Any) -> None:
    """Requires a concrete privacy parameter delta in [0, 1)."""
    values = _as_numbers("delta", delta)
    require(bool(np.all((values >= 0) & (values < 1))), "delta", delta, "in [0, 1)")


def choice(literal: Any, **arguments: Any) -> None:
    """Requires every argument to be a value of the `Literal`."""
    words = get_args(literal)
    for name, value in arguments.items():
        require(value in words, name, value, " or ".join(words))


def count(**arguments: Any) -> None:
    """Requires every argument to be an integer of at least one."""
    for name, value in arguments.items():
        is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
        is_fine = bool(is_integer and value >= 1)
        require(is_fine, name, value, "an integer of at least 1")


def typed_key(key: Any) -> None:
    """Requires one new-style JAX key, as `jax.random.key(seed)` makes."""
    import jax

    is_array = isinstance(key, jax.Array) and key.ndim == 0
    is_fine = is_array and jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key)
    shown = key if hasattr(key, "aval") else type(key)  # an int may be a seed
    require(is_fine, "key", shown, "a single typed JAX key, such as jax.random.key(0)")


def loss_fn(value: Any) -> None:
    """Requires a function of two arguments: params and an example."""
    rule = "a function of params and one example, which may be a tuple such as (x, y)"
    try:
        inspect.signature(value).bind(None, None)
    except TypeError:
        require(False, "loss_fn", value, rule)
    except ValueError:  # a function of C has no signature
        pass


def estimator(value: Any) -> None:
    """Requires an object with an influence and a sensitivity."""
    has_both = hasattr(value, "influence") and hasattr(value, "sensitivity")
    rule = "an estimator, such as dpjax.estimators.Truncation(1.0)"
    require(has_both and not isinstance(value, type), "estimator", value, rule)


def bounded_estimator(value: Any) -> None:
    """Requires an estimator whose influence has a bound."""
    estimator(value)
    rule = "one with a finite sensitivity, such as dpjax.estimators.Clipping(1.0)"
    require(value.limit is not None, "estimator", value, rule)


def real(**trees: Any) -> None:
    """Requires leaves of real numbers, because no bound holds for complex numbers."""
    import jax

    rule = "real: split a complex array into its real and imaginary parts"
    for name, tree in trees.items():
        for path, x in jax.tree_util.tree_leaves_with_path(tree):
            place, dtype = name + jax.tree_util.keystr(path), jax.numpy.result_type(x)
            require(not jax.numpy.iscomplexobj(x), place, dtype, rule)


def numbers(tree: Any, name: str, rule: str = "numbers") -> Any:
    """Returns a tree with all leaves but JAX arrays and numbers as NumPy arrays.

    Raises `ValueError` for a leaf such as text: `name` must be `rule`. It shows the
    type and shape of the leaf, never values, because they may be private.
    """
    import jax

    def array(x: Any) -> Any:
        if isinstance(x, jax.Array | jax.ShapeDtypeStruct | int | float | complex):
            return x
        advice = "dense: call toarray() of a sparse matrix"
        require(not hasattr(x, "toarray"), name, type(x).__name__, advice)
        x = np.asanyarray(x)
        if x.dtype == np.bool_ or jax.numpy.issubdtype(x.dtype, jax.numpy.number):
            return x
        kind = x.dtype.type.__name__.rstrip("_")  # "str" for texts of any length
        raise ValueError(f"{name} must be {rule}, got {kind}{list(x.shape)}.")

    return jax.tree.map(array, tree)


def leading_size(tree: Any, name: str) -> int:
    """Returns n, which all leaves (n, ...) must share; errors call the tree `name`."""
    import jax

    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(tree)]
    require(bool(shapes), name, type(tree), "a pytree with at least one array")
    is_shared = all(shapes) and len({shape[:1] for shape in shapes}) == 1
    require(is_shared, name, shapes, "arrays that share one leading sample axis")
    require(shapes[0][0] >= 1, name, shapes, "arrays with at least one sample")
    return shapes[0][0]


def mask(is_padding_example: Any, num_rows: int) -> None:
    """Requires a mask of padding rows: booleans of shape (num_rows,), or None."""
    import jax

    x = is_padding_example
    if x is not None:
        is_mask = isinstance(x, jax.Array | np.ndarray) and x.dtype == np.bool_
        rule = f"a boolean array of shape ({num_rows},), one entry for each row"
        shown = f"{getattr(x, 'dtype', type(x).__name__)}{list(np.shape(x))}"
        require(is_mask and x.shape == (num_rows,), "is_padding_example", shown, rule)
