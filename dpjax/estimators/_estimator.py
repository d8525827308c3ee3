"""The base classes of robust means, their worst-case sensitivity, and `Mean`.

By default neighboring data sets are related by replace-one: n is public, and they
differ in one record. Under add/remove, one data set has this row masked as padding, so
all other rows keep their indices. Sensitivities include float32 rounding.
"""

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._rounding import ROUNDOFF
from dpjax._sharding import AxisName, by_device, num_shares, row_axes, varying_with
from dpjax._sums.fold import (
    FEW_ROWS,
    MeanAndAux,
    Summands,
    Unrounded,
    block_length,
    fold_mean,
    proven_divisor,
)
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


class Sensitivity(NamedTuple):
    """The largest change of an estimate between neighbors, in three norms.

    `privatize` adds noise of stddev `noise_multiplier * l2`, where l2 is computed with
    rounded=False. `linf` is the largest change of a single coordinate.

    Example:
        >>> from dpjax.estimators import Winsorization
        >>> sensitivity = Winsorization(1.0).sensitivity(1_000, 4)
        >>> print(f"{sensitivity.linf:.5f} {sensitivity.l2:.5f} {sensitivity.l1:.5f}")
        0.00200 0.00400 0.00800
    """

    l1: Scalar
    l2: Scalar
    linf: Scalar


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
        how = {"normalize_by": normalize_by, "axis_name": axis_name}
        return self.with_aux(samples, is_padding_example, **how)[0]

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
        how = {"normalize_by": normalize_by, "axis_name": axis_name}
        return self.with_aux(samples, is_padding_example, **how, rounded=False)[0]

    def with_aux(
        self,
        stream: SampleStream,
        is_padding_example: jax.Array | None = None,
        *,
        normalize_by: Scalar | None = None,
        axis_name: AxisName | None = None,
        rounded: bool = True,
    ) -> tuple[PyTree, PyTree]:
        """Returns the robust mean of a stream of samples, and the aux of all samples.

        Arguments and errors are the same as in `__call__`; if `rounded` is false, the
        mean is that of `unrounded`. The stream makes an aux, such as a loss, for each
        sample; all aux, with leading axis n, are NOT private.
        """
        stream = SampleStream.of(stream, is_padding_example)
        axes = row_axes(stream.rows, axis_name)
        if normalize_by is not None:
            _validate.positive(normalize_by=normalize_by)
            num_rows = stream.num_rows * num_shares(axes)
            is_known = _validate.is_concrete(normalize_by)
            if is_known and num_rows == float(normalize_by):
                normalize_by = None  # static: as an argument of jit it is traced
            elif self.groups_by_index:
                rule = f"the number of rows, {num_rows}, because {self} needs all rows"
                raise ValueError(f"normalize_by must be {rule}, got {normalize_by}.")
            elif is_known:  # before jit, which traces it
                normalize_by = proven_divisor(num_rows, normalize_by)
        stream = replace(stream, axes=axes)
        return stream.call(_fold_stream, self, normalize_by, Static(rounded))

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
        """Returns the sensitivity of a mean of influences within ±limit by coordinate.

        One record moves a coordinate of the exact mean by at most 2 limit / n, and may
        move all d coordinates: l1 and l2 are d and sqrt(d) times as large.
        """
        if self.limit is None:
            return Sensitivity(math.inf, math.inf, math.inf)
        limit, num_samples = of_one_type(self.limit, num_samples)
        args = limit, num_samples, _moved(relation), sum_error_in_turn
        linf = _rounded_change(*args) if rounded else _unrounded_change(*args)
        return of_coordinates(linf, num_coordinates)

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
        """Returns the public parameters of the noise that `privatize` adds.

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

    def fold(self, stream: SampleStream, *, normalize_by: Scalar) -> MeanAndAux:
        """Returns the robust mean over all devices, and this device's rows' aux."""
        summands = self.summands(stream)
        mean, aux = fold_mean(summands, self.limit, normalize_by=normalize_by)
        return mean.map(unstacked), aux

    def _within_limit(self, mean: PyTree, normalize_by: Scalar) -> PyTree:
        """Clips a mean to ±limit, or ±limit·4096 / normalize_by if that is larger."""
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


def _fold_stream(stream, estimator, normalize_by, is_rounded):
    """Returns the robust mean and aux of a `SampleStream`, as `with_aux` does."""
    # The sum is divided by normalize_by, or for None by the number of rows. The mean is
    # rounded if `is_rounded.value`, which is static under jit.
    axes = stream.axes

    def on_device(replicated, rows):
        """Returns the mean over all devices' rows, and aux of this device's rows."""
        # `varying_with` declares that all rows and the mask vary over the same devices,
        # as the carry of a loop over both requires.
        (estimator, normalize_by, shared), (rows, mask) = replicated, varying_with(rows)
        mine = replace(stream, shared=shared, rows=rows, is_padding_example=mask)
        if normalize_by is None:
            normalize_by = mine.num_rows_in_all
        mean, aux = estimator.fold(mine, normalize_by=normalize_by)
        if is_rounded.value:
            mean = estimator._within_limit(mean.high, normalize_by)
        return mean, aux

    replicated = estimator, normalize_by, stream.shared
    mask = varying_with(stream.is_padding_example, stream.rows)
    return by_device(on_device, axes, replicated, (stream.rows, mask))


def check_divisor(normalize_by: Any, relation: NeighboringRelation) -> None:
    """Checks the divisor of a robust mean, and the relation of neighboring data sets.

    Raises:
        ValueError: If normalize_by is given and not positive, the relation is neither
            REPLACE_ONE nor ADD_OR_REMOVE_ONE, or normalize_by is None under the latter.
    """
    if normalize_by is not None:
        _validate.positive(normalize_by=normalize_by)
    is_fine = relation in (REPLACE_ONE, ADD_OR_REMOVE_ONE)
    _validate.require(is_fine, "relation", relation, "REPLACE_ONE or ADD_OR_REMOVE_ONE")
    rule = (
        "given under ADD_OR_REMOVE_ONE, where the size of a batch is private: n for a "
        "full batch, else the expected size"
    )
    is_fine = normalize_by is not None or relation is REPLACE_ONE
    _validate.require(is_fine, "normalize_by", normalize_by, rule)


def of_coordinates(linf: Scalar, num_coordinates: int) -> Sensitivity:
    """Returns the sensitivity of an estimate if each coordinate moves by up to linf."""
    return Sensitivity(num_coordinates * linf, math.sqrt(num_coordinates) * linf, linf)


def norm_sensitivity(
    limit, num_samples, num_coordinates, relation, *, norm_error, diameter, rounded
):
    """Returns the sensitivity of a mean of influences of l2 norm at most limit."""
    # A norm is computed with a relative error of at most norm_error. Two influences
    # have a distance of at most diameter·limit (1 + norm_error), and a record moves the
    # exact mean by this divided by n = num_samples. The mean has norm at most 9/8 limit
    # (more rows per divisor are rejected); if `rounded`, rounding moves it by 2^-24 of
    # that.
    limit, num_samples = of_one_type(limit, num_samples)
    moved = _moved(relation, diameter)
    longest = limit * (1 + norm_error)
    linf = l2 = _unrounded_change(
        longest, num_samples, moved, sum_error, num_coordinates
    )
    if rounded:
        linf = _rounded_change(limit, num_samples, moved, sum_error, norm_error)
        l2 += 2 * ROUNDOFF * 1.125 * _largest_mean(longest, num_samples)
    if num_coordinates == 1:
        return Sensitivity(linf, linf, linf)
    return Sensitivity(math.sqrt(num_coordinates) * l2, l2, linf)


def largest_ulp(limit: Scalar, num_samples: Scalar) -> Scalar:
    """Returns the spacing of float32 numbers just below the largest possible mean."""
    # It bounds the rounding of a mean of num_samples terms within `limit`.
    limit, num_samples = of_one_type(limit, num_samples)
    xp = _numpy_for(limit, num_samples)
    mantissa, exponent = xp.frexp(_largest_mean(limit, num_samples))
    exponent = xp.where(mantissa == 0.5, exponent - 1, exponent)
    # A limit that is computed on the device may exceed a power of two by rounding.
    exponent = xp.where(mantissa > 1 - 16 * ROUNDOFF, exponent + 1, exponent)
    return xp.ldexp(xp.ones_like(mantissa), exponent - 24)


def _moved(relation, diameter=2.0):
    """Returns the distance of two neighbors' exact sums, in units of limit."""
    moved = {REPLACE_ONE: diameter, ADD_OR_REMOVE_ONE: 1.0}.get(relation, 0.0)
    rule = "REPLACE_ONE or ADD_OR_REMOVE_ONE"
    _validate.require(moved > 0, "relation", relation, rule)
    return moved


def _rounded_change(limit, num_samples, moved, error, excess=0.0):
    """Returns the largest change of a coordinate of the float32 mean by one record."""
    # Sensitivities need it. `_unrounded_change` bounds the change before rounding, and
    # explains the arguments; here terms are within limit (1 + excess). In the top
    # binade, with spacing ulp, rounded means differ by a multiple of ulp, at most
    # change + ulp. If one is k binades lower, they differ by a multiple of ulp/2^k that
    # is at most change + (1/2 + 1/2^(k+1)) ulp.
    xp = _numpy_for(limit, num_samples)
    change = _unrounded_change(limit * (1 + excess), num_samples, moved, error)
    ulp = largest_ulp(limit, num_samples)
    steps = change / ulp
    same_binade = xp.floor(steps) + 1
    next_binade = xp.floor(2 * steps + 1.5) / 2
    lower_binades = xp.maximum(xp.floor(4 * steps + 2.5) / 4, steps + 0.5625)
    rounded = ulp * xp.maximum(xp.maximum(same_binade, next_binade), lower_binades)
    if xp is np:
        return float(rounded)
    # Only the change is differentiated; the rounding counts as a constant.
    return change + jax.lax.stop_gradient(rounded - change)


def sum_error_in_turn(num_terms: int) -> float:
    """Returns the largest error of a float sum of K terms, in units of u limit."""
    # One after the other, results are largest: 2, 3, ..., K times the limit. 1.01 is
    # for the second order: Higham 2002, eq. 4.3; `docs/privacy/proofs/sums.md`, 1.2.
    return 1.01 * (num_terms * (num_terms + 1) / 2 - 1)


def sum_error(num_terms: int) -> float:
    """Returns a bound on the l2 error of a sum of K terms, in units of 2^-24 limit."""
    # `norm_sensitivity` needs it. A term is a rounded product of l2 norm at most limit;
    # the order of additions may differ by coordinate, as in a product of matrices.
    depths = [num_terms - 1, *range(num_terms - 1, 0, -1)]
    squares = num_terms * sum((1 + depth) ** 2 for depth in depths)
    return math.sqrt(squares) * (1 + num_terms * ROUNDOFF)


def _unrounded_change(limit, num_samples, moved, error, num_coordinates=1):
    """Returns a bound on the l2 change of the mean between neighbors, before rounding.

    Terms are within limit, num_samples divides their sum, and a record moves the exact
    sum by moved·limit. `error` maps a number of terms to the error of their float sum,
    in units of 2^-24 limit. num_coordinates is 1 for a bound on a coordinate.
    """
    # A block's sum has a rounding error in each of the two neighbors.
    length = block_length(num_samples)
    block = 2 * error(length) * ROUNDOFF
    # The block sum of each neighbor is divided by n, and the remainders below the
    # exact digits of all blocks are added as floats (`digit_layout`).
    rests = 2.0**-34
    digits = 2 * length * (rests * math.sqrt(num_coordinates) + ROUNDOFF)
    # Two floats hold the digits to 2^-41 of the mean.
    unit = limit / num_samples
    pairs = 2.25 * 2.0**-41 * _largest_mean(limit, num_samples)
    # 16 u covers rounding the limit to float32, and the rounding of this formula.
    return (unit * (moved + block + digits) + pairs) * (1 + 16 * ROUNDOFF)


def _largest_mean(limit, num_samples):
    """Returns the bound to which the mean is clipped, for any divisor."""
    xp = _numpy_for(limit, num_samples)
    return limit * xp.maximum(1.0, FEW_ROWS / num_samples)


def precise(x: Scalar) -> Scalar:
    """Returns x in 32 bits or more, because half precision may lose 0.7 percent."""
    if _validate.is_concrete(x):
        return float(x)
    x = jnp.asarray(x)
    return x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x


def of_one_type(*values: Scalar) -> list[Scalar]:
    """Returns `precise` values, and converts arrays to their widest type."""
    exact = [precise(x) for x in values]
    types = [x.dtype for x in exact if isinstance(x, jax.Array)]
    widest = jnp.float64 if jnp.float64 in types else jnp.float32
    return [x.astype(widest) if isinstance(x, jax.Array) else x for x in exact]


def maximum(a: Scalar, b: Scalar) -> Scalar:
    """Returns the larger number: a Python float if both are concrete."""
    xp = _numpy_for(a, b)
    return float(xp.maximum(a, b)) if xp is np else xp.maximum(a, b)


def _numpy_for(*values: Any) -> Any:
    """Returns NumPy, which has float64, if all values are concrete, else jax.numpy."""
    return np if all(map(_validate.is_concrete, values)) else jnp
