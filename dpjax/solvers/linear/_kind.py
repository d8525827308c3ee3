"""The kind of a linear model, its records, and the shares of its budget."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._sharding import AxisName, by_device, row_axes, zeros
from dpjax._types import PyTree
from dpjax.losses import LinearLoss, MarginLoss, squared
from dpjax.losses._residual_losses import Huber
from dpjax.solvers.training._curves import bounded, hats

# Makes features (n, d) of columns (n, c), each record by itself.
Basis = Callable[[jax.Array], jax.Array]
_MOST_NUMBERS = 2**20  # numbers of a block of records in memory


def themselves(columns: jax.Array) -> jax.Array:
    """Returns `columns`, the features of a linear model."""
    return columns


def by_block(
    function: Callable[[PyTree, PyTree], jax.Array],
    replicated: PyTree,  # the same on all devices
    rows: PyTree,  # leaves (n, ...)
    *,
    width: int,  # numbers for each row
    axis_name: AxisName | None,  # mesh axes of the rows
) -> jax.Array:
    """Returns `function(replicated, rows)`, computed for a block of rows at a time.

    A row may have many features inside of `function`, so they are never in memory for
    all rows: only the result is, which has the leading axis n.
    """
    most = max(_MOST_NUMBERS // max(width, 1), 1)

    def of_device(replicated: PyTree, rows: PyTree) -> tuple[PyTree, jax.Array]:
        """Returns (), and the function's result for a device's rows, block by block."""
        num_rows = _validate.leading_size(rows, "rows")
        if num_rows <= most:
            return (), function(replicated, rows)

        def some(i) -> tuple[jax.Array, PyTree]:
            # The last block is shifted back: its first rows are made twice.
            start = jnp.minimum(i * most, num_rows - most)
            part = jax.tree.map(
                lambda x: jax.lax.dynamic_slice_in_dim(x, start, most), rows
            )
            return start, function(replicated, part)

        def fill(i, result: jax.Array) -> jax.Array:
            start, new = some(i)
            return jax.lax.dynamic_update_slice_in_dim(result, new, start, axis=0)

        new = jax.eval_shape(some, 0)[1]
        result = zeros(new, (num_rows, *new.shape[1:]))
        return (), jax.lax.fori_loop(0, math.ceil(num_rows / most), fill, result)

    return by_device(of_device, row_axes(rows, axis_name), replicated, rows)[1]


_INTERCEPT_SHARE = 0.1  # of the steps' budget


@dataclass(frozen=True)
class Bends:
    """Makes hat functions of some columns, each record by itself.

    Together with a column's line they can be any curve that is linear between the
    knots and constant beyond them, and zero at zero.
    """

    places: tuple[int, ...]  # indices of the k columns
    knots: tuple[float, ...]  # m + 1 positions, with zero, which has no hat function

    @property
    def num_functions(self) -> int:
        """Counts the hat functions of all columns."""
        return len(self.places) * (len(self.knots) - 1)

    def __call__(self, columns: jax.Array) -> jax.Array:
        """Returns the values, in [0, 1], of hat functions of columns (n, c): (n, k m).

        Those of one column add up to at most 1, and at most two neighbors are not zero.
        """
        values = hats(bounded(columns[:, jnp.asarray(self.places)]), self.knots)
        values = jnp.delete(values, self.knots.index(0.0), axis=-1)
        return values.reshape(len(columns), -1)


class ModelKind(NamedTuple):
    """Holds the static description of a linear model: loss, intercept and features."""

    loss: LinearLoss  # of a prediction and a target
    has_intercept: bool  # whether an intercept is fitted
    has_exposures: bool  # whether offsets are logarithms of exposures
    axis_name: AxisName | None  # the mesh axes over which records are sharded
    basis: Basis = themselves  # makes features of the columns of a record
    bends: Bends | None = None  # makes hat functions of the columns, more features
    user_size: int = 1  # consecutive rows of one user, which depend on each other

    def shape(self, columns: jax.Array) -> tuple[int, int]:
        """Returns the shape (n, d) of the features, with hat functions."""
        num_functions = self.bends.num_functions if self.bends else 0
        num_features = jax.eval_shape(self.basis, columns).shape[1]
        return len(columns), num_features + num_functions

    @property
    def has_labels(self) -> bool:
        """Tells whether targets are classes, whose shares need no clipping."""
        return self.loss.num_outputs > 1 or self.loss.target_range == (-1.0, 1.0)

    @property
    def has_two_classes(self) -> bool:
        """Tells whether targets are -1 or 1, for a loss of margins."""
        return isinstance(self.loss, MarginLoss)

    @property
    def is_robust(self) -> bool:
        """Tells whether targets are centered at their median and scaled first."""
        return isinstance(self.loss, Huber)

    @property
    def starts_at_mean(self) -> bool:
        """Tells whether the best constant is a mean, which steps do not change."""
        return self.has_intercept and self.loss == squared

    @property
    def block_shares(self) -> dict[str, float]:
        """Returns each leaf's share of the steps' budget."""
        if not self.has_intercept or self.starts_at_mean:
            return {"weights": 1.0}
        return {"weights": 1 - _INTERCEPT_SHARE, "intercept": _INTERCEPT_SHARE}


class Examples(NamedTuple):
    """Holds finite columns (n, c), and targets, offsets and weights in [0, 1], (n,).

    Features are the columns, or the functions of them that `ModelKind.basis` makes.
    """

    features: jax.Array
    targets: jax.Array
    offsets: jax.Array
    weights: jax.Array


class CheckedData(NamedTuple):
    """Holds a loss, data of right shapes, and the index of the intercept's column."""

    loss: LinearLoss
    features: jax.Array
    targets: jax.Array
    column: int | None

    @property
    def num_features(self) -> int:
        """Counts the columns beside the intercept."""
        return self.features.shape[1] - (self.column is not None)


class Records(NamedTuple):
    """Holds the numbers that releases need of each record by itself."""

    examples: Examples  # targets are less offsets where these are a shift
    target_sizes: jax.Array  # shape (n,): absolute values, 0 at weight 0
    row_norms: jax.Array  # shape (n,): see `norms_of_rows`


class Shares(NamedTuple):
    """Holds the share of the budget of each release; all add up to 1."""

    target_size: float  # a bound of the targets
    mean: float  # the mean of the targets
    radius: float  # the clip norm of rows
    moments: float  # the second moments of features
    gradient_size: float  # the clip norm of gradients
    steps: float  # all steps together
    score_sizes: float  # bounds of scores and slopes at the end
    recalibration: float  # scale and level of the scores

    @classmethod
    def of(
        cls, kind: ModelKind, shape: tuple[int, ...], noise_multiplier: float
    ) -> "Shares":
        """Returns each release's budget share for a linear model of (n, d) features.

        Gradient steps get what no other release needs. Without features, the constant
        prediction has all of it. With features its share grows with the noise, so that
        the model is no worse than one without features.
        """
        num_samples, num_features = shape
        size = 0.0 if kind.has_labels else 0.4
        if num_features == 0:
            return cls(size, 1 - size, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        if not kind.has_intercept or kind.is_robust:
            start = 0.0
        elif kind.has_labels:
            start = 0.03
        else:
            start = min(0.1 + 400 * noise_multiplier / num_samples, 0.5)
        before = size * start, (1 - size) * start, 0.03, 0.12, 0.04
        after = (0.03, 0.05) if kind.loss.num_outputs == 1 else (0.0, 0.0)
        return cls(*before, 1 - math.fsum(before + after), *after)

    def multipliers(self, noise_multiplier: float) -> "Shares":
        """Returns the noise multiplier of each release, from their total."""
        # Inverse squares of multipliers add up.
        return Shares(*(noise_multiplier / math.sqrt(x) if x else 0.0 for x in self))
