"""The base classes of robust means, and `Mean`, the mean without a bound."""

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._sharding import AxisName, by_device, num_shares, row_axes, varying_with
from dpjax._sums.exact import Unrounded
from dpjax._sums.fold import FEW_ROWS, Summands, check_rows_per_divisor, fold_mean
from dpjax._sums.samples import FactoredSamples, unstacked
from dpjax._sums.stream import SampleStream
from dpjax._tree import Static, as_finite, by_row, like, register
from dpjax._types import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    NeighboringRelation,
    NoiseName,
    PyTree,
    Scalar,
)
from dpjax.estimators._sensitivity import (
    Sensitivity,
    coordinate_sensitivity,
    maximum,
)


class Estimator(abc.ABC):
    """The robust mean of samples along axis 0, with a known sensitivity.

    A subclass is a frozen dataclass and a pytree with its hyperparameters as leaves:
    `vmap` and `grad` over a threshold work, and a sweep compiles once. It defines
    `influence` and `limit`; the estimate is the mean of influences.

    Sensitivities hold for every input, with float32 rounding. Special inputs:

    ==================  ==========================================================
    NaN                 counts as zero, entry by entry
    an infinity         counts as its limit for `Winsorization` and
                        `SmoothedTruncation`, as ±1e30 for `TrimmedMean`, as zero
                        for all other estimators
    a norm of 2^63 up   in clip norms, scales or offsets of estimators by norm: the
                        whole sample counts as zero
    a masked row        counts as zero; the divisor stays the same
    half precision      becomes float32, as do integers; float64 is kept
    ==================  ==========================================================
    """

    # True if rows need a fixed public index; sampled batches are then rejected.
    groups_by_index: ClassVar[bool] = False
    # The noise of a private mean is Gaussian, in proportion to `sensitivity`, or
    # Laplace log-normal, in proportion to a smooth sensitivity.
    noise: ClassVar[NoiseName] = "gaussian"

    @abc.abstractmethod
    def influence(self, sample: PyTree) -> PyTree:
        """Maps one sample to a bounded value of the same shape, in float32 at least."""

    def influence_fn(self) -> Callable[[PyTree], PyTree]:
        """Returns `influence`; anything independent of the sample is precomputed."""
        return self.influence

    @property
    @abc.abstractmethod
    def limit(self) -> Scalar | None:
        """Returns the largest |coordinate| of an influence, or None without a bound."""

    def __call__(
        self,
        samples: PyTree,
        is_padding_example: jax.Array | None = None,
        *,
        normalize_by: Scalar | None = None,
        axis_name: AxisName | None = None,
    ) -> PyTree:
        """Returns the robust mean of samples over axis 0.

        Args:
            samples: pytree, leaves of shape (n, ...), or a stream of samples, such as
                `dpjax.streamed_grad` returns.
            is_padding_example: shape (n,), true for rows to leave out. The divisor
                stays the same.
            normalize_by: public divisor of the sum; n by default. For more than 4,608
                rows the bound on rounding needs at least n / 1.125: a smaller concrete
                divisor is rejected, a smaller traced divisor is raised to n / 1.125.
            axis_name: the mesh axes over which rows are sharded, if the arrays do not
                show it; see `dpjax.robust_grad`.

        Returns:
            A pytree of leaves (...), float32 for half-precision samples.

        Raises:
            ValueError: If leaves or mask disagree on n, samples are complex,
                normalize_by is not positive or much smaller than n, or axis_name does
                not fit.
        """
        stream, divisor = self._checked(
            samples, is_padding_example, normalize_by, axis_name
        )
        return stream.call(_fold_stream, self, divisor)[0]

    def unrounded(
        self,
        samples: PyTree,
        is_padding_example: jax.Array | None = None,
        *,
        normalize_by: Scalar | None = None,
        axis_name: AxisName | None = None,
    ) -> Unrounded:
        """Returns the robust mean before it is rounded, so that noise is added first.

        Arguments and errors are the same as in `__call__`. The mean is the exact sum of
        two trees, `high` and `low`, with leaves (...). `plus(noise)` adds noise, and
        rounds once. `sensitivity` bounds its change if called with rounded=False.

        Example:
            >>> import jax.numpy as jnp
            >>> from dpjax.estimators import Winsorization
            >>> mean = Winsorization(1.0).unrounded(jnp.array([0.5, 0.1, -0.1]))
            >>> print(mean.plus(jnp.float32(2.0)))
            2.1666667
        """
        stream, divisor = self._checked(
            samples, is_padding_example, normalize_by, axis_name
        )
        return stream.call(_fold_stream, self, divisor, Static(False))[0]

    def with_aux(
        self,
        stream: SampleStream,
        is_padding_example: jax.Array | None = None,
        *,
        normalize_by: Scalar | None = None,
        axis_name: AxisName | None = None,
    ) -> tuple[PyTree, PyTree]:
        """Returns the robust mean of a stream of samples, and the aux of all samples.

        Arguments and errors are the same as in `__call__`. The stream makes an aux for
        each sample; the aux of all samples, with leading axis n, is NOT private.
        """
        stream, divisor = self._checked(
            stream, is_padding_example, normalize_by, axis_name
        )
        return _fold_stream(stream, self, divisor)

    def _checked(self, stream, is_padding_example, normalize_by, axis_name):
        """Returns the stream with mask and axes, and the divisor, or None for n."""
        stream = SampleStream.of(stream, is_padding_example)
        num_rows = stream.num_rows
        axes = row_axes(stream.rows, axis_name)
        if normalize_by is not None:
            _validate.positive(normalize_by=normalize_by)
            num_rows *= num_shares(axes)
            check_rows_per_divisor(num_rows, normalize_by)
            is_known = _validate.is_concrete(normalize_by)
            rule = f"the number of rows, {num_rows}: {self} takes no sampled batch"
            if is_known and num_rows == float(normalize_by):
                normalize_by = None  # static: as an argument of jit it is traced
            elif self.groups_by_index:
                raise ValueError(f"normalize_by must be {rule}, got {normalize_by}.")
        return replace(stream, axes=axes), normalize_by

    def sensitivity(
        self,
        num_samples: Scalar,
        num_coordinates: int,
        relation: NeighboringRelation = REPLACE_ONE,
        *,
        rounded: bool = True,
    ) -> Sensitivity:
        """Returns a bound on the distance between the estimates of two neighbors.

        Args:
            num_samples: the public divisor: n, or `normalize_by`.
            num_coordinates: number of entries of all leaves of one sample together.
            relation: REPLACE_ONE, if neighbors differ in the values of one row; or
                ADD_OR_REMOVE_ONE, if a row of one neighbor is masked as padding.
            rounded: whether estimates are rounded to floats. False is for the result of
                `unrounded`, to which `privatize` adds noise before rounding.

        Returns:
            The l1, l2 and linf sensitivity, for every input, float32 rounding included.
        """
        _validate.positive(num_samples=num_samples)
        _validate.count(num_coordinates=num_coordinates)
        return self._sensitivity(num_samples, num_coordinates, relation, rounded)

    def _sensitivity(self, num_samples, num_coordinates, relation, rounded):
        """Returns linf = 2 limit / n, with rounding, and l2 = sqrt(d) linf."""
        if self.limit is None:
            return Sensitivity(math.inf, math.inf, math.inf)
        args = self.limit, num_samples, num_coordinates, relation
        return coordinate_sensitivity(*args, rounded=rounded)

    def sampled_sensitivity(
        self,
        num_samples: Scalar,
        num_coordinates: int,
        relation: NeighboringRelation = REPLACE_ONE,
        *,
        rounded: bool = True,
    ) -> Sensitivity:
        """Returns the sensitivity for batches that are drawn at random.

        The accounting of Poisson batches also compares batches with and without one
        record, and assumes that their means differ by at most half the replace-one
        sensitivity. Float32 rounding may exceed this: then the result is twice the
        sensitivity to masking a row. It takes the arguments of `sensitivity`.
        """
        measure = partial(self.sensitivity, num_samples, num_coordinates)
        masked = measure(ADD_OR_REMOVE_ONE, rounded=rounded)
        if relation is ADD_OR_REMOVE_ONE:
            return masked
        replaced = measure(relation, rounded=rounded)
        return jax.tree.map(lambda one, half: maximum(one, 2 * half), replaced, masked)

    def noise_parameters(
        self,
        noise_multiplier: Scalar,
        num_samples: Scalar,
        num_coordinates: int,
        relation: NeighboringRelation = REPLACE_ONE,
        *,
        is_sampled: bool = False,
    ) -> dict[str, Scalar]:
        """Returns the parameters of the noise that do not depend on the data.

        noise_multiplier is stddev / l2 sensitivity. For noise that is not Gaussian, it
        is the noise multiplier of Gaussian noise with the same zCDP. is_sampled tells
        whether batches are drawn at random. `sensitivity` explains the other arguments.

        Returns:
            A dictionary: l2_sensitivity is the l2 sensitivity of the mean before
            rounding, and stddev is its product with the noise multiplier.
        """
        measure = self.sampled_sensitivity if is_sampled else self.sensitivity
        sensitivity = measure(num_samples, num_coordinates, relation, rounded=False).l2
        return {"l2_sensitivity": sensitivity, "stddev": noise_multiplier * sensitivity}

    def summands(self, stream: SampleStream) -> Summands:
        influence = self.influence_fn()

        def prepare(samples: FactoredSamples) -> FactoredSamples:
            influences = by_row(influence, samples.num_rows)
            return FactoredSamples(influences(samples.written_out()))

        return Summands(stream.written_out(), prepare)

    def fold(
        self, stream: SampleStream, *, normalize_by: Scalar
    ) -> tuple[Unrounded, PyTree]:
        """Returns the robust mean of one device's rows, and the aux of these rows."""
        summands = self.summands(stream)
        mean, aux = fold_mean(summands, self.limit, normalize_by=normalize_by)
        return mean.map(unstacked), aux

    def _within_limit(self, mean: PyTree, normalize_by: Scalar) -> PyTree:
        """Clips a mean to ±limit, or beyond it if normalize_by is below `FEW_ROWS`."""
        # sensitivity() needs a bound on the result, and clipping increases no distance.
        limit = self.limit
        if limit is None:
            return mean

        def clip(x):
            largest = FEW_ROWS / like(normalize_by, x)
            largest = like(limit, x) * jnp.maximum(1, largest)
            return jnp.clip(x, -largest, largest)

        return jax.tree.map(clip, mean)


class CoordinateEstimator(Estimator):
    """An estimator with an influence on each coordinate that maps zero to zero."""

    def summands(self, stream: SampleStream) -> Summands:
        # The influence acts on each product of factors as it is added to the sum.
        if not stream.has_small_factors():
            stream = stream.written_out()
        return Summands(stream, lambda samples: samples, self.influence_fn())


@register()
@dataclass(frozen=True)
class Mean(Estimator):
    """The mean of samples over axis 0; NaN and infinities count as zero.

    Sensitivity: infinite in every norm, so `privatize` refuses it.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import Mean
        >>> print(Mean()(jnp.array([1.0, 2.0, 6.0])))
        3.0
    """

    def influence(self, sample: PyTree) -> PyTree:
        """Returns the sample with non-finite entries set to zero."""
        return jax.tree.map(as_finite, sample)

    @property
    def limit(self) -> None:
        """Returns None, because the influence of a sample is unbounded."""
        return None


def _fold_stream(stream, estimator, normalize_by, is_rounded=None):
    """Returns the estimator's mean over a stream of microbatches, and the losses' aux.

    The divisor is `normalize_by`, or the number of rows for None. The mean is a float,
    unless `is_rounded` is false: then it is unrounded, for noise to be added first.
    """
    axes = stream.axes

    def on_device(replicated, rows):
        # `varying_with` declares that all rows and the mask vary over the same devices,
        # as the carry of a loop over both requires.
        (estimator, normalize_by, shared), (rows, mask) = replicated, varying_with(rows)
        mine = replace(stream, shared=shared, rows=rows, is_padding_example=mask)
        if normalize_by is None:
            normalize_by = mine.num_rows_in_all
        mean, aux = estimator.fold(mine, normalize_by=normalize_by)
        if is_rounded is None or is_rounded.value:
            mean = estimator._within_limit(mean.high, normalize_by)
        return mean, aux

    replicated = estimator, normalize_by, stream.shared
    mask = varying_with(stream.is_padding_example, stream.rows)
    return by_device(on_device, axes, replicated, (stream.rows, mask))
