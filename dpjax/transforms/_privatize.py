"""Robust and private means of per-example gradients, and noise for other updates."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from dpjax import _sharding, _validate
from dpjax._keys import secret_repr
from dpjax._rounding import ROUNDOFF
from dpjax._sharding import AxisName, num_shares, row_axes
from dpjax._sums.fold import FEW_ROWS, Unrounded, proven_divisor
from dpjax._sums.stream import SampleStream
from dpjax._tree import like
from dpjax._types import REPLACE_ONE, Key, NeighboringRelation, PyTree, Scalar
from dpjax.accounting._smooth import calibrate_smooth_noise
from dpjax.estimators import AdaptiveThreshold, Estimator, Scaled
from dpjax.estimators._estimator import check_divisor, maximum
from dpjax.mechanisms import gaussian, laplace_log_normal
from dpjax.mechanisms._strategy import Strategy


class Piece(NamedTuple):
    """Asks update for the `BoundedMean` of a piece of a batch, in place of samples.

    Without samples, it asks for shapes. `num_pieces` are the pieces of the batch.
    """

    samples: PyTree
    num_pieces: int


class BoundedMean(NamedTuple):
    """Holds the mean of bounded samples before its noise is added.

    Attributes:
        value: the mean, which is NOT private. It is rounded only if its noise is
            calibrated to the smooth sensitivity.
        noise: the arguments of its noise, such as stddev.
        limit: the bound of a sum of pieces; None for a whole batch.
    """

    value: Unrounded | PyTree
    noise: dict[str, PyTree]
    limit: Scalar | None
    __repr__ = secret_repr


class KeyState(NamedTuple):
    """Holds the key of a transformation's next draws.

    After restoring a checkpoint replace the key, or the next update repeats its noise.
    """

    key: Key
    __repr__ = secret_repr

    @classmethod
    def of(cls, key: Key) -> Self:
        """Returns the state with a copy of a key, so that the state may be donated.

        A copy would hide from `jax.debug_key_reuse` that another run uses the same key.
        So under that setting the state has the key itself.
        """
        return cls(key if jax.debug_key_reuse.value else jnp.copy(key))


class PrivateMean(optax.GradientTransformationExtraArgs):
    """Maps per-example gradients to a private mean, as an optax transformation.

    Attributes:
        release: like update, but also returns the standard deviation of the noise in
            the mean: a number, or a pytree prefix of the mean. It is None if it is not
            public, or the noise depends on earlier noise. `release` also accepts a
            `BoundedMean` from `measure` in place of samples.
        measure: returns a `BoundedMean`, without noise. If the samples are None, it
            shows only shapes. `update` with a `Piece` calls it, and keeps the state.
    """

    release: Callable[..., tuple[PyTree, PyTree, PyTree | None]]
    measure: Callable[..., BoundedMean]

    @classmethod
    def of(cls, init: Callable, release: Callable, measure: Callable) -> Self:
        """Returns a `PrivateMean`: update calls release, or measure for a `Piece`."""

        def update(updates, state, params=None, **extra_args) -> tuple[Any, PyTree]:
            if isinstance(updates, Piece):
                samples, extra_args["num_pieces"] = updates
                return measure(samples, state, params, **extra_args), state
            return release(updates, state, params, **extra_args)[:2]

        made = cls(init, update)
        made.release, made.measure = release, measure
        return made


def aggregate(
    estimator: Estimator,
    *,
    normalize_by: Scalar | None = None,
    relation: NeighboringRelation = REPLACE_ONE,
    axis_name: AxisName | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation from per-example gradients to their robust mean.

    Put it first in a chain. It is not private: add noise that is calibrated to
    `estimator.sensitivity`, or use `privatize`, which explains these arguments.

    Returns:
        A transformation whose update takes gradients with leaves (n, ...) and, as the
        keyword is_padding_example, a mask of shape (n,); it returns leaves (...).

    Raises:
        ValueError: If estimator is no estimator, normalize_by is not positive or not
            given under ADD_OR_REMOVE_ONE, or update gets params together with gradients
            that have no sample axis.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import Winsorization
        >>> transform = aggregate(Winsorization(1.0))
        >>> state = transform.init(jnp.zeros(2))
        >>> update, _ = transform.update(jnp.array([[1.0, 0.5], [9.0, -0.5]]), state)
        >>> print(update)
        [1. 0.]
    """
    _validate.estimator(estimator)
    check_divisor(normalize_by, relation)

    def init(params):
        refuse_wrappers(params)
        return optax.EmptyState()

    how = {"normalize_by": normalize_by, "axis_name": axis_name}

    def update(updates, state, params=None, *, is_padding_example=None, **extra_args):
        refuse_wrappers(updates)
        require_samples(updates, params)
        return estimator(updates, is_padding_example, **how), state

    return optax.GradientTransformationExtraArgs(init, update)


def privatize(
    estimator: Estimator | AdaptiveThreshold | Scaled,
    *,
    noise_multiplier: Scalar,
    key: Key,
    normalize_by: Scalar | None = None,
    relation: NeighboringRelation = REPLACE_ONE,
    sampled: bool | None = None,
    axis_name: AxisName | None = None,
    noise: Strategy | None = None,
) -> PrivateMean:
    """Returns a transformation from per-example gradients to their private mean.

    It adds Gaussian noise of stddev noise_multiplier·l2 sensitivity to the robust mean.
    Put it first in `dpjax.chain`: to mix samples before it breaks the guarantee.

    Args:
        estimator: the robust mean, of finite sensitivity. With `TrimmedMean` the noise
            is Laplace log-normal, in proportion to the smooth sensitivity of all rows.
        noise_multiplier: stddev / l2 sensitivity, from `accounting.noise_multiplier`.
        key: a typed key, for one run: `init` puts it into the state.
        normalize_by: public divisor; under REPLACE_ONE the leading size of the
            gradients by default. For Poisson batches use the expected batch size.
        relation: REPLACE_ONE, or ADD_OR_REMOVE_ONE, which needs normalize_by.
        sampled: whether batches are random; by default if there is a divisor or mask.
        axis_name: see `robust_grad`.
        noise: a strategy C, such as `dpjax.mechanisms.BandedToeplitz`, for correlated
            noise C^-1 z. All steps then need one divisor and one noise multiplier.

    Returns:
        A transformation from gradients with leaves (n, ...) or a `streamed_grad`, and
        the keyword is_padding_example, shape (n,), to leaves (...), at least float32.

    Raises:
        ValueError: If an argument is out of its range; from update, also without sample
            axis, on other devices than the key, or inside wrappers that see samples.

    Privacy:
        One update is a Gaussian mechanism with stddev / sensitivity = noise_multiplier
        under `relation`, for every input, including NaN and infinities. T updates on
        the same data compose to `gaussian_epsilon(noise_multiplier, delta,
        sensitivity=1, num_releases=T)`; with a strategy all of them together compose to
        `noise_multiplier_to_epsilon`, and one alone has less noise. This includes
        adaptive thresholds, holds on several devices, and is for users if rows are
        users. With `TrimmedMean` an update is (1 / (2 noise_multiplier^2))-zCDP under
        replace-one, T updates T times that; d coordinates have equal shares.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax.estimators import Truncation
        >>> key, estimator = jax.random.key(0), Truncation(1.0)
        >>> private = privatize(estimator, noise_multiplier=1.0, key=key)
        >>> state = private.init(jnp.zeros(3))
        >>> print(private.update(jnp.ones((8, 3)), state)[0].shape)
        (3,)

    Reference:
        Balle, Wang (2018); Dong, Roth, Su (2022), Corollary 3.3. Strategies: Denisov et
        al. (2022), Theorem 2.1. `TrimmedMean`: Wang, Xiao, Devadas, Xu (2020), whose
        printed sensitivity is not smooth; noise of Bun, Steinke (2019), Section 3.
    """
    inner = estimator.measured if isinstance(estimator, Scaled) else estimator
    adaptive = inner if isinstance(inner, AdaptiveThreshold) else None
    bounded = inner.counting if isinstance(inner, AdaptiveThreshold) else inner
    _validate.bounded_estimator(bounded)
    _validate.non_negative(noise_multiplier=noise_multiplier)
    _validate.typed_key(key)
    is_steady = adaptive is None and bounded.noise == "gaussian"
    only_none = f"None with {inner}, whose noise has no fixed stddev"
    rule = "a strategy of dpjax.mechanisms, or None" if is_steady else only_none
    is_fine = noise is None or (isinstance(noise, Strategy) and is_steady)
    _validate.require(is_fine, "noise", noise, rule)
    # Rejects arguments for which the estimator has no noise, before any data.
    args, is_sampled = (noise_multiplier, 2**20, 1, relation), sampled is True
    bounded.noise_parameters(*args, is_sampled=is_sampled)
    check_divisor(normalize_by, relation)
    options = (noise_multiplier, normalize_by, relation, sampled, axis_name)
    mean = _NoisyMean(bounded, adaptive, noise, key, *options)
    private = PrivateMean.of(mean.init, mean.release, mean.measure)
    return _restored(private, estimator) if isinstance(estimator, Scaled) else private


class ThresholdState(NamedTuple):
    """Holds the next draws' key, and released thresholds of `AdaptiveThreshold`."""

    key: Key
    thresholds: jax.Array
    __repr__ = secret_repr


class _NoisyMean(NamedTuple):
    """Holds the checked arguments of `privatize`, with its functions as methods."""

    bounded: Estimator  # with adaptive thresholds it also counts samples within them
    adaptive: AdaptiveThreshold | None
    strategy: Strategy | None
    key: Key
    noise_multiplier: Scalar
    normalize_by: Scalar | None
    relation: NeighboringRelation
    sampled: bool | None
    axis_name: AxisName | None
    __repr__ = secret_repr

    def init(self, params):
        """Returns a key, with buffers of correlated noise or thresholds if needed."""
        refuse_wrappers(params)
        start = KeyState.of(self.key)
        if self.strategy is not None:
            num_buffers = self.strategy.num_buffers
            buffers = tuple(wide_zeros(params) for _ in range(num_buffers))
            return CorrelatedState(start.key, jnp.zeros((), jnp.int32), buffers)
        if self.adaptive is None:
            return start
        return ThresholdState(start.key, jnp.copy(self.adaptive.thresholds))

    def measure(self, updates, state, params=None, *, num_pieces=None, **extra_args):
        """Returns a `BoundedMean`: the mean without noise, and parameters of its noise.

        `updates` are gradients (n, ...) or a stream; None asks for shapes only.
        num_pieces is given if they are one piece of a batch, by `accumulate`.
        """
        refuse_wrappers(updates)
        if updates is None:
            return BoundedMean(self.bounded.influence(params), {}, None)
        require_samples(updates, params)
        estimator, divisor, limit = self.bounded, self.normalize_by, None
        if self.adaptive is not None:
            estimator = self.adaptive.at(state.thresholds).counting
        stream = SampleStream.of(updates, extra_args.get("is_padding_example"))
        if self.axis_name is None:
            _sharding.check_key_of_rows(state.key, stream.rows)
        num_rows = stream.num_rows * num_shares(row_axes(stream.rows, self.axis_name))
        varies = divisor is not None or stream.is_padding_example is not None
        parameters = estimator.noise_parameters(
            self.noise_multiplier,
            num_rows if divisor is None else divisor,
            stream.num_coordinates(),
            self.relation,
            is_sampled=varies if self.sampled is None else self.sampled,
        )
        if num_pieces is not None:
            divisor, limit, more = _of_batch(estimator, divisor, num_rows, num_pieces)
            parameters["stddev"] = parameters["stddev"] * more
        how = {"normalize_by": divisor, "axis_name": self.axis_name}
        if estimator.noise != "gaussian":
            drawn = _smooth_mean(estimator, parameters["rho"], stream, num_rows, **how)
            return BoundedMean(*drawn, limit)
        mean = estimator.unrounded(stream, **how)
        return BoundedMean(mean, {"stddev": parameters["stddev"]}, limit)

    def release(self, updates, state, params=None, **extra_args):
        """Returns the noisy mean, the next state, and the noise's stddev if public."""
        if not isinstance(updates, BoundedMean):
            updates = self.measure(updates, state, params, **extra_args)
        mean, drawn, _ = updates
        if self.strategy is not None:
            return *add_correlated_noise(self.strategy, state, mean, **drawn), None
        next_key, noise_key = jax.random.split(state.key)
        draw = gaussian if self.bounded.noise == "gaussian" else laplace_log_normal
        released = draw(noise_key, mean, **drawn)
        # Noise for smooth sensitivity depends on the samples: its stddev is not public.
        noise_stddev = drawn.get("stddev")
        if self.adaptive is None:
            return released, KeyState(next_key), noise_stddev
        mean, following = self.adaptive.at(state.thresholds).follow(released)
        return mean, ThresholdState(next_key, following.thresholds), noise_stddev


def _restored(measured: PrivateMean, scaled: Scaled) -> PrivateMean:
    """Returns a private mean in units of the samples, from one in units of scales."""

    def release(updates, state, params=None, **extra_args):
        mean, state, stddev = measured.release(updates, state, params, **extra_args)
        if stddev is not None:
            stddev = jax.tree.map(lambda scale: stddev * scale, scaled.scales)
        return scaled.restored(mean), state, stddev

    return PrivateMean.of(measured.init, release, measured.measure)


def _smooth_mean(estimator, rho, stream, num_samples, *, normalize_by, axis_name):
    """Returns a `TrimmedMean` of a stream, and {"scale": ..., "sigma": ...} of noise.

    The scale, a pytree like the mean, is in proportion to the smooth sensitivity. `rho`
    is the zCDP cost of one release of all coordinates, which have equal shares; the
    stream has num_samples rows on all devices together, and needs each of them.
    """
    rule = "a concrete number, not a traced one: the shape of the noise depends on it"
    _validate.require(_validate.is_concrete(rho), "noise_multiplier", rho, rule)
    mask = stream.is_padding_example
    is_fine = mask is None and normalize_by in (None, num_samples)
    rule = (
        f"None, and normalize_by the number of rows, with {estimator}, which needs "
        f"every row (here normalize_by = {normalize_by})"
    )
    _validate.require(is_fine, "is_padding_example", mask, rule)
    noise = calibrate_smooth_noise(
        float(rho) / stream.num_coordinates(),
        num_samples=num_samples,
        trim_count=estimator.trim_count(num_samples),
        relative_spread=estimator.relative_spread,
    )
    mean, sensitivity = estimator.with_smooth_sensitivity(
        stream, noise.smoothness, axis_name=axis_name
    )
    scale = jax.tree.map(lambda s: noise.multiplier * s, sensitivity)
    return mean, {"scale": scale, "sigma": noise.sigma}


class CorrelatedState(NamedTuple):
    """Holds the state of correlated noise.

    Attributes:
        key: key of the next draws.
        step: number of steps so far.
        buffers: buffers of the strategy, trees like the parameters, in units of the
            noise. Keep them as secret as the key.
    """

    key: Key
    step: jax.Array
    buffers: tuple[PyTree, ...]
    __repr__ = secret_repr


def add_correlated_noise(
    strategy: Strategy, state: CorrelatedState, value: Unrounded, *, stddev: Scalar
) -> tuple[PyTree, CorrelatedState]:
    """Returns the value plus the next row of stddev·C^-1 z, and the next state.

    C is the strategy's matrix over steps, and z is standard normal. `stddev`, in units
    of value, must be the same in all steps.
    """
    next_key, noise_key = jax.random.split(state.key)
    _sharding.check_key_varies_as(value, noise_key)
    # `gaussian` rounds its scale up, and has full tails.
    independent = gaussian(noise_key, wide_zeros(value.high), stddev=1.0)
    noise, buffers = strategy.next_noise(independent, state.buffers, state.step)
    noise = jax.tree.map(lambda z: like(stddev, z) * z, noise)
    return value.plus(noise), CorrelatedState(next_key, state.step + 1, buffers)


def wide_zeros(tree: PyTree) -> PyTree:
    """Returns zeros like a tree, with its sharding, in float32 or float64."""

    def zeros(x: Any) -> jax.Array:
        dtype = jnp.float64 if jnp.result_type(x) == jnp.float64 else jnp.float32
        return jnp.zeros_like(jnp.asarray(x), dtype=dtype)

    return jax.tree.map(zeros, tree)


def _of_batch(
    estimator: Estimator, normalize_by: Scalar | None, num_rows: int, num_pieces: int
) -> tuple[Scalar, Scalar, Scalar]:
    """Returns a batch's divisor, the bound of its sum, and the factor of its noise."""
    # `accumulate` adds num_pieces pieces of num_rows rows. The factor, just above one,
    # covers the rounding of that addition: `_chain.py` derives it.
    rule = "given to privatize inside accumulate: the public size of the whole batch"
    _validate.require(normalize_by is not None, "normalize_by", normalize_by, rule)
    rule = "no MedianOfMeans and no TrimmedMean in accumulate, which adds up pieces"
    _validate.require(not estimator.groups_by_index, "estimator", estimator, rule)
    assert normalize_by is not None
    assert estimator.limit is not None
    divisor = proven_divisor(num_rows * num_pieces, normalize_by)
    most = maximum(normalize_by, FEW_ROWS)
    limit = estimator.limit * (most / normalize_by)
    return divisor, limit, 1 + 2.0**-20 + 9 * most * (num_pieces * ROUNDOFF) ** 2


def add_gaussian_noise(*, stddev: Scalar, key: Key) -> optax.GradientTransformation:
    """Returns a transformation that adds N(0, stddev^2) to every entry of an update.

    Put it after `robust_grad` or `aggregate`, with noise for their sensitivity.

    Args:
        stddev: standard deviation in units of the update, non-negative.
        key: a typed key. It is part of the state; each update draws from a fresh one.

    Raises:
        ValueError: If stddev is negative or key is no typed key.

    Privacy:
        One update of l2 sensitivity D is a Gaussian mechanism with noise multiplier
        stddev / D, under the relation of D.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> noise = add_gaussian_noise(stddev=0.1, key=jax.random.key(0))
        >>> print(noise.update(jnp.ones(3), noise.init(jnp.zeros(3)))[0].shape)
        (3,)

    Reference:
        Balle, Wang (2018), "Improving the Gaussian mechanism".
    """
    _validate.non_negative(stddev=stddev)
    _validate.typed_key(key)

    def update(updates, state, params=None):
        next_key, noise_key = jax.random.split(state.key)
        return gaussian(noise_key, updates, stddev=stddev), KeyState(next_key)

    return optax.GradientTransformation(lambda params: KeyState.of(key), update)


_REFUSED = {
    "MultiSteps": "it would average over samples before they are bounded. Give one "
    "update the whole batch, as a stream of dpjax.gradients.streamed_grad, or wrap the "
    "optimizer in dpjax.transforms.accumulate, which takes a batch in pieces.",
    "apply_if_finite": "it would skip updates by the values of private samples. It is "
    "not needed: releases are finite, whatever the samples.",
}
# Wrappers of optax that pass samples on unchanged.
_PASS_PIECES = ("inject_hyperparams", "with_extra_args_support")


def refuse_wrappers(tree: PyTree) -> None:
    """Raises `ValueError` if an optax wrapper would break a private mean's guarantee.

    `optax.MultiSteps`, for example, would average samples. `tree`, the parameters of
    `init` or updates of `update`, shows `optax.masked`; the call stack shows others.
    """

    def is_masked(node: Any) -> bool:
        return isinstance(node, optax.MaskedNode)

    if any(map(is_masked, jax.tree.leaves(tree, is_leaf=is_masked))):
        raise ValueError(
            "optax.masked must not stand around privatize, aggregate or dp_sgd: leaves "
            "that are masked out would pass raw per-sample gradients through. Put it "
            "after privatize, but leave frozen parameters out of params: after it they "
            "still share the clip norm. For separate bounds of groups of leaves use "
            "dpjax.estimators.Grouped."
        )
    # apply_if_finite leaves no trace in the values: only the call stack shows it.
    frame, is_in_pieces, part = sys._getframe(1), False, None
    while frame is not None:
        module = str(frame.f_globals.get("__name__")).split(".")[0]
        if module not in ("optax", "dpjax"):
            return
        wrapper = frame.f_code.co_qualname.split(".")[0]
        if wrapper in _REFUSED:
            raise ValueError(
                f"optax.{wrapper} must not stand around privatize, aggregate or "
                f"dp_sgd: {_REFUSED[wrapper]}"
            )
        if module == "optax" and is_in_pieces and wrapper != "with_extra_args_support":
            raise ValueError(
                f"optax.{wrapper} must not stand around accumulate: it would step, and "
                "count a step in its schedules, with every piece. Put it inside, as "
                "accumulate(dpjax.chain(private, ...), ...), or "
                "accumulate(optax.inject_hyperparams(make)(...), ...) of a function "
                "make that returns dpjax.chain."
            )
        if wrapper == "accumulate" and part is not None:
            raise ValueError(
                f"optax.{part} must not stand inside accumulate: only dpjax.chain "
                "knows the pieces of a batch. Use it instead, also in make of "
                "accumulate(optax.inject_hyperparams(make)(...), ...)."
            )
        is_in_pieces |= wrapper == "accumulate"
        if module == "optax" and wrapper not in _PASS_PIECES:
            part = wrapper
        frame = frame.f_back


def require_params(params: Any) -> None:
    """Requires that params were given, which are optional in an optax update."""
    rule = "given to update, as in update(updates, state, params)"
    _validate.require(params is not None, "params", params, rule)


def require_samples(updates: PyTree, params: PyTree) -> None:
    """Requires updates (n, ...) for params (...), not a mean; params may be None."""
    are_arrays = all(hasattr(x, "shape") for x in jax.tree.leaves(updates))
    if are_arrays and jax.tree.structure(updates) == jax.tree.structure(params):
        shapes = [x.shape for x in jax.tree.leaves(updates)]
        wanted = [jnp.shape(x) for x in jax.tree.leaves(params)]
        rule = (
            f"per-sample gradients, of shapes (n, ...) for params of shapes {wanted}, "
            "not their mean or sum, as from jax.grad of a batch, or optax.MultiSteps"
        )
        is_fine = [shape[1:] for shape in shapes] == wanted
        _validate.require(is_fine, "updates", shapes, rule)
