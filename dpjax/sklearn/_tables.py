"""Arguments of `fit` and `predict` as arrays; no value of a cell raises an error."""

import contextlib
import secrets
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import sklearn
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d
from sklearn.utils.validation import validate_data as validated

from dpjax import _validate
from dpjax._tree import arrays
from dpjax._types import Key
from dpjax.mechanisms import secret_key
from dpjax.sklearn import _labels
from dpjax.solvers.linear._constant import missing_share
from dpjax.tables import default_delta
from dpjax.tables.io._tables import cells_of, kind_of
from dpjax.tables.io._texts import floats_of

FROM_DTYPE = "from_dtype"
_ENCODER = "OneHotEncoder(categories=[...])"
_ADVICE = {
    "text": "{} of a public list makes numbers of it",
    "times": "subtract a public date and divide by a unit, such as a day",
}
_READS_POLARS = tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 9)


def checked(
    model: Any, X: Any, categories: Mapping[Any, np.ndarray] | None = None
) -> tuple[np.ndarray, float, float, Key]:
    """Checks X and the options; returns features (n, d), epsilon, delta and a key."""
    # Each `fit` begins so. `features_of` converts X; delta defaults to n^-1.1.
    features = features_of(model, X, is_new=True, categories=categories)
    _validate.above_zero(epsilon=model.epsilon)  # inf: no privacy
    delta = default_delta(len(features)) if model.delta is None else model.delta
    _validate.probability(delta=delta)
    _validate.positive(max_weight=largest_weight(model))
    return features, float(model.epsilon), float(delta), key_of(model.random_state)


def features_of(
    model: BaseEstimator,
    X: Any,
    *,
    is_new: bool,
    categories: Mapping[Any, np.ndarray] | None = None,
) -> np.ndarray:
    """Returns X as (n, d) features in float64, with its NaN and infinities.

    X is an array, a list or a data frame. `fit` (`is_new`) stores the number and the
    names of the features in `model`, and later calls compare them. So that a record
    affects no other, each cell is converted by itself, to NaN if it holds no number.
    A column in `categories` becomes indices of its categories, -1 for other cells.
    """
    categories = categories or {}
    if isinstance(X, list | tuple):
        X = np.array(X, object)
    columns = columns_of(X)
    is_frame = columns is not None
    if not is_frame and isinstance(X, np.ndarray) and X.ndim == 2:
        is_plain = X.dtype != object and not np.ma.isMaskedArray(X) and not categories
        columns = None if is_plain else [*X.T]
    options: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": False}
    if columns is None:
        _refuse_kind("an array", X)
        # The shape of an array of objects is wrong here. Zeros of this shape let
        # scikit-learn raise its error without looking at a cell.
        is_objects = getattr(X, "dtype", None) == np.dtype(object)
        X = np.zeros(np.shape(X)) if is_objects else X
        return np.asarray(validated(model, X, reset=is_new, order="C", **options))
    names = names_of(X)
    table: Any = _Named(X) if hasattr(X, "get_columns") and not _READS_POLARS else X
    validated(model, table, reset=is_new, skip_check_array=True)
    features = np.empty((len(X), len(columns)))
    for place, (name, column) in enumerate(zip(names, columns, strict=True)):
        if name in categories:
            features[:, place] = _labels.indices(cells_of(column), categories[name])
            continue
        if is_frame:
            own = f"categorical_features={{{name!r}: [...]}}"
            is_own = is_new and hasattr(model, "categorical_features")
            _refuse_kind(f"column {name!r}", column, own if is_own else _ENCODER)
        features[:, place] = floats_of(cells_of(column))
    check_array(features, input_name="X", estimator=model, **options)
    return features


def columns_of(X: Any) -> list[Any] | None:
    """Returns the columns of a frame or an Arrow table in order, None for arrays."""
    if hasattr(X, "get_columns"):  # polars
        return X.get_columns()
    if hasattr(X, "itercolumns"):  # Arrow
        return [*X.itercolumns()]
    is_pandas = hasattr(X, "iloc") and X.ndim == 2
    return [X.iloc[:, place] for place in range(X.shape[1])] if is_pandas else None


def names_of(X: Any) -> list[Any]:
    """Returns X's column names if all are strings, else the columns' indices."""
    # Options such as `feature_ranges` refer to columns by them.
    if columns_of(X) is None:
        array = np.asarray(X)
        return list(range(array.shape[1] if array.ndim == 2 else 0))
    names = [*getattr(X, "column_names", X.columns)]
    is_fine = len({*names}) == len(names)
    _validate.require(is_fine, "X", names, "a table whose columns have distinct names")
    is_named = all(isinstance(name, str) for name in names)
    return names if is_named else list(range(len(names)))


def names_in(model: Any) -> list[Any]:
    """Returns the names of the columns that `model` was fitted on, or their indices."""
    return list(getattr(model, "feature_names_in_", range(model.n_features_in_)))


def types_of(X: Any) -> list[tuple[Any, Any]]:
    """Returns the names and the types of a frame's columns."""
    types = [getattr(x, "dtype", getattr(x, "type", None)) for x in columns_of(X) or []]
    return list(zip(names_of(X), types, strict=False))


def categories_of(given: Any, X: Any) -> dict[Any, np.ndarray]:
    """Returns the public categories of columns that a model one-hot encodes."""
    # `given`, the estimator's option, has lists by column, or is "from_dtype", for
    # columns of X whose type lists categories, or None, for no column.
    if isinstance(given, Mapping):
        names = names_of(X)
        for name in given:
            rule = f"a mapping from columns of X, {names}"
            _validate.require(name in names, "categorical_features", name, rule)
        return {
            name: _labels.declared(given[name], f"categorical_features[{name!r}]")
            for name in names
            if name in given
        }
    is_fine = given is None or (isinstance(given, str) and given == FROM_DTYPE)
    rule = f"{FROM_DTYPE!r}, a mapping from columns to lists of categories, or None"
    _validate.require(is_fine, "categorical_features", given, rule)
    kinds = {
        name: cells_of(kind.categories).astype(object)
        for name, kind in types_of(X)
        if type(kind).__name__ in ("CategoricalDtype", "Enum")  # pandas, polars
        and kind.categories is not None
        and len(kind.categories)
    }
    return {} if given is None else kinds


def _refuse_kind(where: str, column: Any, encoder: str = _ENCODER) -> None:
    """Raises `ValueError` if a column's type holds complex numbers, text or times."""
    # The error has advice and `where`, the column's name. It tells nothing of a cell.
    # `encoder` makes numbers of text.
    kind = kind_of(column)
    dtype = getattr(column, "dtype", getattr(column, "type", ""))
    if str(dtype).startswith("complex"):
        raise ValueError(f"Complex data not supported: X has {where} of {dtype}.")
    if kind in _ADVICE:
        raise ValueError(
            f"X must be of numbers, got {where} of {dtype}, which holds {kind}: "
            f"{_ADVICE[kind].format(encoder)}."
        )
    if encoder != _ENCODER and str(dtype) == "object":
        text = f"X has {where} of objects, of which numbers are read and nothing else: "
        warnings.warn(f"{text}{encoder} declares categories.", stacklevel=2)


class _Named:
    """Tells scikit-learn before 1.9 the column names of a polars frame."""

    def __init__(self, frame: Any):
        self.shape = frame.shape
        self.column_names = lambda: names_of(frame)

    def __dataframe__(self) -> "_Named":
        return self


def column_of(model: BaseEstimator, y: Any, X: np.ndarray) -> np.ndarray:
    """Returns a fit's targets or labels y unchanged, (n,); raises for another shape."""
    name = type(model).__name__
    if y is None:
        raise ValueError(f"{name} requires y to be passed, but the target y is None.")
    shape = getattr(y, "shape", ())  # the cells of a list are private
    if len(shape) == 2 and shape[1] > 1:
        raise ValueError(
            f"y must be of shape (n,), one target, got {shape}. sklearn.multioutput "
            f"fits {shape[1]} models, each with a budget of its own: together they "
            f"cost {shape[1]} times epsilon and {shape[1]} times delta."
        )
    column = as_column(y)
    check_consistent_length(X, column)
    return column


def as_column(y: Any) -> np.ndarray:
    """Returns targets or labels as an array of shape (n,), each converted by itself."""
    columns = columns_of(y)
    cells = cells_of(columns[0] if columns is not None and len(columns) == 1 else y)
    rule = "of a real type: Complex data not supported"
    _validate.require(cells.dtype.kind != "c", "y", cells.dtype, rule)
    return column_or_1d(cells, warn=True)


def as_numbers(name: str, given: Any, cells: np.ndarray | None = None) -> np.ndarray:
    """Returns (n,) cells in float64, NaN for odd cells; refuses text and times."""
    cells = as_column(given) if cells is None else cells
    if kind_of(given) in _ADVICE or cells.dtype.kind not in "biufO":
        dtype = getattr(given, "dtype", cells.dtype)
        raise ValueError(f"{name} must be of numbers, got cells of {dtype}.")
    return floats_of(cells)


def largest_weight(model: Any) -> Any:
    """Returns the public bound of sample weights, 1 without weights."""
    return 1.0 if model.max_weight is None else model.max_weight


def shares_of(exposure: Any, largest: float | None, X: np.ndarray) -> np.ndarray:
    """Returns exposures (n,) divided by the public largest, in [0, 1], NaN as zero."""
    # Predicted means are proportional to them. It raises without a largest exposure.
    if largest is None:
        rule = "the largest exposure, a public number, where exposure is given"
        raise ValueError(f"max_exposure must be {rule}, got None.")
    array, shape = as_numbers("exposure", exposure), X.shape[:1]
    is_fine, rule = array.shape == shape, f"of shape {shape}"
    _validate.require(is_fine, "exposure", array.shape, rule)
    # Clipping comes first, because an overflow in the division would warn of a record.
    return np.clip(np.nan_to_num(array), 0.0, largest) / largest


def weights_of(model: Any, sample_weight: Any, X: np.ndarray) -> np.ndarray:
    """Returns weights (n,) clipped to [0, max_weight], NaN as 0; None: all largest."""
    if sample_weight is None:
        return np.full(len(X), float(largest_weight(model)))
    rule = "the largest weight, a public number, where sample_weight is given"
    _validate.require(model.max_weight is not None, "max_weight", None, rule)
    weights = as_numbers("sample_weight", sample_weight)
    rule = f"of shape {X.shape[:1]}, a number for each record"
    is_fine = weights.shape == X.shape[:1]
    _validate.require(is_fine, "sample_weight", weights.shape, rule)
    return np.clip(np.nan_to_num(weights), 0.0, model.max_weight)


def set_mean_weight(model: Any, stats: Mapping[str, Any], num_samples: int) -> None:
    """Sets `mean_weight_` from a solver's private stats; warns of missing targets."""
    weight = stats.get("mean_weight")
    model.mean_weight_ = None if weight is None else float(weight)
    missing = missing_share(stats, num_samples)
    if missing and model.max_weight is None:  # with weights, low weights may explain it
        rule = "no label of `classes_`" if is_classifier(model) else "no target"
        warnings.warn(
            f"About {missing:.0%} of the records have {rule}, by a private count of "
            "this fit. They have no weight in the model.",
            stacklevel=2,
        )


def key_of(random_state: Any) -> Key:
    """Returns a JAX key for the noise: fixed for an integer, else random and secret."""
    if isinstance(random_state, str) and random_state == "chacha20":
        return secret_key()
    if random_state is None:
        words = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).size
        data = np.frombuffer(secrets.token_bytes(4 * words), np.uint32)
        return jax.random.wrap_key_data(arrays(data))
    is_integer = isinstance(random_state, int | np.integer)
    is_fine = is_integer and type(random_state) is not bool and int(random_state) >= 0
    rule = "None, for a key from the operating system, 'chacha20', for one of 256 bits,"
    rule += " or an integer from zero on"
    _validate.require(is_fine, "random_state", random_state, rule)
    return jax.random.key(int(random_state) % 2**32)


def interval(name: str, value: Any) -> tuple[float, float]:
    """Returns the public range in option `name` as floats (low, high), or raises."""
    rule = "a pair (low, high) of finite numbers, low below high"
    low = high = np.nan
    if isinstance(value, tuple | list | np.ndarray) and len(value) == 2:
        with contextlib.suppress(TypeError, ValueError):
            low, high = map(float, value)
    _validate.require(-np.inf < low < high < np.inf, name, value, rule)
    return low, high


def ranges_of(model: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns low and high ends of `feature_ranges`, (d,) each, NaN without a range."""
    given, names = model.feature_ranges, names_in(model)
    low, high = np.full((2, len(names)), np.nan)
    if isinstance(given, Mapping):
        for name, ends in given.items():
            rule = f"a mapping from columns of X, {names}"
            _validate.require(name in names, "feature_ranges", name, rule)
            index = names.index(name)
            low[index], high[index] = interval(f"feature_ranges[{name!r}]", ends)
    elif given is not None:
        rule = (
            "a pair (low, high) of finite numbers or arrays, low below high, a mapping "
            f"or an array of shape ({len(names)}, 2), with NaN for what is not public"
        )
        ends = np.full((1, 2), np.inf)
        with contextlib.suppress(TypeError, ValueError):
            is_pair = isinstance(given, tuple)
            rows = np.column_stack(np.broadcast_arrays(*given)) if is_pair else given
            ends = np.broadcast_to(np.asarray(rows, np.float64), (len(names), 2))
        low, high = np.array(ends.T)
        is_fine = (-np.inf < low) & (low < high) & (high < np.inf)
        is_fine |= np.isnan(low) & np.isnan(high)
        _validate.require(bool(is_fine.all()), "feature_ranges", given, rule)
    return low, high
