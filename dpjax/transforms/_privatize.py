"""Robust aggregation of per-sample gradients, and its private version."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._keys import secret_repr
from dpjax._sharding import AxisName, check_key_of_rows, num_shares, row_axes
from dpjax._sums.stream import SampleStream
from dpjax._types import REPLACE_ONE, Key, NeighboringRelation, Scalar, check_divisor
from dpjax.accounting._smooth import calibrate_smooth_noise
from dpjax.estimators import AdaptiveThreshold, Estimator, Scaled
from dpjax.mechanisms import Strategy, gaussian, laplace_log_normal
from dpjax.transforms._chain import (
    BoundedMean,
    KeyState,
    PrivateMean,
    refuse_wrappers,
    require_samples,
)
from dpjax.transforms._correlated_noise import add_correlated_noise, correlated_state
from dpjax.transforms._pieces import of_batch


class ThresholdState(NamedTuple):
    """State of `privatize` with `AdaptiveThreshold`.

    Attributes:
        key: of the next draws.
        thresholds: shape (groups,); they are released values.
    """

    key: Key
    thresholds: jax.Array
    __repr__ = secret_repr


def aggregate(
    estimator: Estimator,
    *,
    normalize_by: Scalar | None = None,
    relation: NeighboringRelation = REPLACE_ONE,
    axis_name: AxisName | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation from per-sample gradients to their robust mean.

    Put it first in a chain. It is not private: add noise that is calibrated to
    `estimator.sensitivity`, or use `privatize`.

    Args:
        estimator: the robust mean.
        normalize_by: public divisor; the leading size of the gradients by default.
        relation: REPLACE_ONE, or ADD_OR_REMOVE_ONE, which needs normalize_by.
        axis_name: the mesh axes over which gradients are sharded, if they do not show
            it; see `dpjax.robust_grad`.

    Returns:
        A transformation whose update takes gradients with leaves (n, ...) and, as the
        keyword is_padding_example, a mask of shape (n,); it returns leaves (...).

    Raises:
        ValueError: If estimator is not one, normalize_by is not positive or not given
            under ADD_OR_REMOVE_ONE, or update gets params, and gradients without a
            sample axis.

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

    def update(updates, state, params=None, *, is_padding_example=None, **extra_args):
        del extra_args
        refuse_wrappers(updates)
        require_samples(updates, params)
        mean = estimator(
            updates, is_padding_example, normalize_by=normalize_by, axis_name=axis_name
        )
        return mean, state

    return optax.GradientTransformationExtraArgs(_init_empty, update)


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
    """Returns a transformation from per-sample gradients to their private mean.

    The robust mean plus Gaussian noise of standard deviation noise_multiplier times the
    estimator's l2 sensitivity, rounded once, to float32; with `TrimmedMean`, Laplace
    log-normal noise of the same zCDP cost, proportional to its smooth sensitivity. Put
    it first in a chain, which `dpjax.chain` checks: later transformations, such as
    momentum, adam or schedules, are post-processing and have no privacy cost.

    Args:
        estimator: the robust mean; its sensitivity must be finite. With
            `AdaptiveThreshold` thresholds follow a private quantile of the norms, and
            are part of the state. With `Scaled` every coordinate has a public scale,
            and noise proportional to it.
        noise_multiplier: stddev / l2 sensitivity under `relation`, non-negative, from
            `dpjax.accounting.noise_multiplier` with the estimator's `noise`.
        key: a typed key. It is part of the state; each update draws from a fresh one.
        normalize_by: public divisor; under REPLACE_ONE the leading size of the
            gradients by default. For Poisson batches use the expected batch size.
        relation: REPLACE_ONE, or ADD_OR_REMOVE_ONE, which needs normalize_by, because
            the number of records of a batch is private: n for a full batch.
        sampled: whether batches are drawn at random; by default this is assumed if
            normalize_by or a mask is given.
        axis_name: the mesh axes over which gradients are sharded, if they do not show
            it; see `dpjax.robust_grad`.
        noise: None for independent noise in every step; or a strategy C, such as
            `dpjax.mechanisms.BandedToeplitz`, for noise C^-1 z that is correlated over
            steps, so that sums of updates have less noise. Then noise_multiplier is
            that of the independent z, from `accounting.noise_multiplier`.

    Returns:
        A transformation whose update takes gradients with leaves (n, ...), or a stream
        of them from `dpjax.gradients.streamed_grad`, and, as the keyword
        is_padding_example, a mask of shape (n,), which a stream may hold itself; it
        returns leaves (...), in float32 for half-precision gradients. Its state is a
        pytree of arrays.

    Raises:
        ValueError: If an argument is out of its range, normalize_by is not given under
            ADD_OR_REMOVE_ONE, the estimator has no finite sensitivity, or update gets
            gradients without a sample axis; inside `optax.masked` or
            `optax.apply_if_finite`; or if the key varies over devices of axis_name, or
            gradients over devices of another axis than the key.

    Privacy:
        One update is a Gaussian mechanism with stddev / sensitivity = noise_multiplier
        under `relation`, for every input, including NaN and infinities; T updates on
        the same data compose to `gaussian_epsilon(noise_multiplier, delta,
        sensitivity=1, num_releases=T)`. This also holds on several devices: the noise
        is that of the mean over all rows, and every device draws the same noise from
        the same key. If rows are users (`streamed_grad` of data from
        `dpjax.gradients.by_user`), the guarantee is for users: n is their number, and
        neighbors differ in all records of one user.

        With a strategy `noise_multiplier_to_epsilon` is the cost of all updates of a
        run together: a single update may have less noise. Later transformations,
        including momentum and averages of iterates, are post-processing.

        With `AdaptiveThreshold` the Gaussian mechanism releases mean and counts
        together, with the sensitivity of both: the guarantee is the same, and covers
        the thresholds, which are functions of earlier releases. With `Scaled` it
        releases the mean of the ratios of samples and scales; to multiply it by the
        scales is post-processing.

        With `TrimmedMean` one update is (1 / (2 noise_multiplier^2))-zCDP under
        replace-one: each of d coordinates gets a share 1/d of that. The epsilon of T
        updates is `rho_to_epsilon(T * rho, delta)`. Paper 001 prints another
        sensitivity, which is not smooth: no privacy follows from it.

    Pitfalls:
        * No transformation before it in a chain may mix samples. `optax
          .clip_by_global_norm` and `optax.clip_by_block_rms` do: they scale all rows by
          a norm of all of them, so one record moves every row, and the noise is many
          times too small (31 times, in one trial). `dpjax.chain` rejects them;
          `optax.chain` does not. Transform single samples in the loss or in the
          estimator.
        * With `TrimmedMean` the noise has heavy tails and depends on the samples: use
          it for few coordinates and many samples. It needs all n gradients at once, of
          batches that are fixed by index, such as all records or disjoint subsets.
        * Use one optimizer for one run: `init` starts with the same key each time, and
          two runs on the same data with the same noise are not private together.
        * A saved state holds the key of the next noise. If it is restored after later
          updates were made, it repeats their noise on other gradients, and a difference
          of two updates has no noise. Fold fresh randomness into its key at every
          restore, and count the repeated updates: see the guide to your own loop. With
          a strategy no update can be repeated.
        * `optax.masked` around it would pass raw per-sample gradients of the masked
          leaves through; `optax.apply_if_finite` would skip updates by the values of
          samples. Both are rejected: put them after it. A leaf that is frozen after it
          still has its share of the clip norm: leave it out of params.
        * With half-precision parameters `optax.chain` starts the state of momentum and
          adam in half precision, and float32 updates change its dtypes, which
          `lax.scan` rejects. `dpjax.chain` keeps it in float32.
        * `optax.MultiSteps` around it would average over samples before it, and is
          rejected. A batch of any size is one update, and `accumulate` takes it in
          pieces. `optax.apply_every` after it adds noisy means of several batches:
          account for each of them.
        * `optax.inject_hyperparams(make)(noise_multiplier=schedule)` goes around the
          whole chain, which make(noise_multiplier) returns. `dpjax.chain` cannot see
          what it holds around `privatize` alone, and rejects it. Account for the noise
          multiplier of every step.
        * With a strategy, make at most as many updates as it has steps, all with the
          same noise_multiplier and divisor: another schedule needs another analysis.
        * Inside `jax.shard_map` the key must be replicated; with check_vma=False, and
          in `jax.pmap`, that cannot be checked, and axis_name must be given: `()` where
          every device has all rows.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from dpjax.estimators import Truncation
        >>> optimizer = optax.chain(
        ...     privatize(Truncation(1.0), noise_multiplier=1.0, key=jax.random.key(0)),
        ...     optax.sgd(0.1, momentum=0.9))
        >>> params = jnp.zeros(3)
        >>> state = optimizer.init(params)
        >>> updates, state = optimizer.update(jnp.ones((8, 3)), state, params)
        >>> print(updates.shape)
        (3,)

    Reference:
        Balle, Wang (2018), "Improving the Gaussian mechanism"; Dong, Roth, Su (2022),
        "Gaussian differential privacy", Corollary 3.3, for T updates. Strategies:
        Denisov et al. (2022), Theorem 2.1; Choquette-Choo et al. (2023). `TrimmedMean`:
        Wang, Xiao, Devadas, Xu (2020), Algorithms 2 and 3, with the smooth sensitivity
        in place of the printed bound, and the noise of Bun, Steinke (2019), Section 3.
    """
    if isinstance(estimator, Scaled):
        measured = privatize(
            estimator.measured,
            noise_multiplier=noise_multiplier,
            key=key,
            normalize_by=normalize_by,
            relation=relation,
            sampled=sampled,
            axis_name=axis_name,
            noise=noise,
        )
        return _restored(measured, estimator)
    if isinstance(estimator, AdaptiveThreshold):
        adaptive, first = estimator, estimator.counting
    else:
        adaptive, first = None, estimator
    _validate.estimator(first)
    _validate.non_negative(noise_multiplier=noise_multiplier)
    _validate.typed_key(key)
    _validate.bounded_estimator(first)
    _validate.require(
        noise is None
        or (isinstance(noise, Strategy) and not adaptive and first.noise == "gaussian"),
        "noise",
        noise,
        f"a strategy of dpjax.mechanisms, and None with {estimator} unless its noise "
        "is Gaussian, of one stddev in every step",
    )
    # Rejects arguments for which the estimator has no noise, before any data.
    first.noise_parameters(
        noise_multiplier, 2**20, 1, relation, is_sampled=sampled is True
    )
    check_divisor(normalize_by, relation)

    def init(params):
        refuse_wrappers(params)
        if noise is not None:
            return correlated_state(noise, key, params)
        start = KeyState.of(key)
        if adaptive is None:
            return start
        return ThresholdState(start.key, jnp.copy(adaptive.thresholds))

    def measure(
        updates, state, params=None, *, is_padding_example=None, num_pieces=None, **_
    ):
        refuse_wrappers(updates)
        if updates is None:
            return BoundedMean(first.influence(params), {}, None)
        require_samples(updates, params)
        current = adaptive.at(state.thresholds).counting if adaptive else first
        stream = SampleStream.of(updates, is_padding_example)
        if axis_name is None:
            check_key_of_rows(state.key, stream.rows)
        num_rows = stream.num_rows * num_shares(row_axes(stream.rows, axis_name))
        varies = normalize_by is not None or stream.is_padding_example is not None
        parameters = current.noise_parameters(
            noise_multiplier,
            num_rows if normalize_by is None else normalize_by,
            stream.num_coordinates(),
            relation,
            is_sampled=varies if sampled is None else sampled,
        )
        divisor, limit = normalize_by, None
        if num_pieces is not None:
            divisor, limit, more = of_batch(current, normalize_by, num_rows, num_pieces)
            parameters["stddev"] = parameters["stddev"] * more
        how = {"normalize_by": divisor, "axis_name": axis_name}
        if current.noise == "gaussian":
            mean = current.unrounded(stream, **how)
            drawn = {"stddev": parameters["stddev"]}
        else:
            mean, drawn = _smooth_mean(current, parameters["rho"], stream, **how)
        return BoundedMean(mean, drawn, limit)

    def release(updates, state, params=None, **extra_args):
        is_measured = isinstance(updates, BoundedMean)
        mean, drawn, _ = (
            updates if is_measured else measure(updates, state, params, **extra_args)
        )
        if noise is not None:
            return *add_correlated_noise(noise, state, mean, **drawn), None
        next_key, noise_key = jax.random.split(state.key)
        draw = gaussian if first.noise == "gaussian" else laplace_log_normal
        released = draw(noise_key, mean, **drawn)
        # Noise by smooth sensitivity has no public standard deviation: None.
        noise_stddev = drawn.get("stddev")
        if adaptive is None:
            return released, KeyState(next_key), noise_stddev
        mean, following = adaptive.at(state.thresholds).follow(released)
        return mean, ThresholdState(next_key, following.thresholds), noise_stddev

    return PrivateMean.of(init, release, measure)


def _restored(measured: PrivateMean, scaled: Scaled) -> PrivateMean:
    """Returns the transformation with private means, and their noise, times scales."""

    def release(updates, state, params=None, **extra_args):
        mean, state, stddev = measured.release(updates, state, params, **extra_args)
        if stddev is not None:
            stddev = jax.tree.map(lambda scale: stddev * scale, scaled.scales)
        return scaled.restored(mean), state, stddev

    return PrivateMean.of(measured.init, release, measured.measure)


def _smooth_mean(estimator, rho, stream, *, normalize_by, axis_name):
    """Returns the mean, and the noise for its smooth sensitivity."""
    rule = "a concrete number, not a traced one: the shape of the noise depends on it"
    _validate.require(_validate.is_concrete(rho), "noise_multiplier", rho, rule)
    num_samples = stream.num_rows * num_shares(row_axes(stream.rows, axis_name))
    _validate.require(
        stream.is_padding_example is None and normalize_by in (None, num_samples),
        "is_padding_example",
        stream.is_padding_example,
        f"None, and normalize_by the number of rows, with {estimator}: every row has "
        "its place in the order",
    )
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


def _init_empty(params):
    refuse_wrappers(params)
    return optax.EmptyState()
