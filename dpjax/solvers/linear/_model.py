"""A generalized linear model from data and a budget, without hyperparameters."""

import math
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import ZCDpEvent

from dpjax import _keys, _validate
from dpjax._rounding import ROUNDED_UP
from dpjax._sharding import check_key_of_rows, gathered, with_auto_axes
from dpjax._tree import linear_data
from dpjax._types import ArrayLike, Key, Scalar
from dpjax.accounting import (
    PrivacyGuarantee,
    epsilon_to_rho,
    gaussian_epsilon,
    rho_to_epsilon,
)
from dpjax.accounting._subsampling import gaussian_event
from dpjax.estimators import Winsorization
from dpjax.gradients import streamed_grad
from dpjax.gradients._users import UserRecords
from dpjax.losses import LinearLoss, logistic, squared
from dpjax.losses._log_link import LogLink
from dpjax.losses._residual_losses import Huber, named
from dpjax.mechanisms import peeling
from dpjax.solvers.linear._columns import fit_columns, on_sample, problem, rows_of
from dpjax.solvers.linear._fit import fit, slope_norms
from dpjax.solvers.linear._kind import CheckedData, Examples, ModelKind
from dpjax.solvers.statistics._noisy_mean import one_gaussian
from dpjax.solvers.statistics._noisy_quantile import noisy_quantile
from dpjax.solvers.training._calibration import check_noise, unit_of
from dpjax.solvers.training._loop import Execution, check_execution
from dpjax.solvers.training._solution import Solution
from dpjax.transforms import aggregate

_MODEL_SHARE = 0.55  # of the budget; the rest pays for choosing features
# Shares of the rest, in each of two rounds: the bound of products, and the choices. The
# model between the two rounds has what they leave.
_SIZE, _CHOICES = 0.04, 0.26
_CLIPPED, _BEYOND_SIZE = 0.1, 3.0  # share of records above a norm, and bound / norm


def dp_linear_model(
    loss: str | LinearLoss,
    data: tuple[ArrayLike, ArrayLike] | UserRecords,
    *,
    key: Key,
    epsilon: float | None = None,
    delta: float,
    noise_multiplier: float | None = None,
    intercept: int | None = None,
    max_features: int | None = None,
    offsets: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    max_weight: float = 1.0,
    max_records: int | None = None,
    intervals: bool = False,
    execution: Execution = Execution(),
) -> Solution:
    """Fits a generalized linear model to data and a budget, without hyperparameters.

    Minimizes the mean of weight·loss(<w, x> + offset, y). All numbers that other
    solvers need as hyperparameters are released with shares of the budget: the best
    constant prediction, second moments that give coordinates z = A^T (x - center) of
    equal spread, clip norms, 50 to 150 noisy gradient steps, and one Newton step on the
    scale and level of the predictions. With a log link the constant is the mean per
    unit of exposure. The Huber loss is robust to targets of any size, because no
    release is a mean of them. With `max_features`, features are chosen first by their
    correlations with derivatives of the loss. With `intervals`, the params have
    standard errors: `docs/guides/intervals.md` says when they are valid, or infinite.

    Args:
        loss: "squared", "logistic", "huber", or a convex loss of bounded curvature in
            the prediction, such as `losses.poisson(10.0)` or `losses.softmax(3)`.
            "huber" becomes linear at 1.345 scales of the residuals, `losses.huber(t)`
            at t or 10,000 scales of the targets, whichever is less.
        data: (features, targets), shapes (n, d) and (n,); n is public. Features should
            be of comparable size, such as standardized ones; NaN counts as zero.
            Targets outside the loss's range are mapped by `loss.targets_of`. For two
            classes, y > 0 is the positive class. A record whose target is NaN has no
            weight. Or `gradients.by_user` of such a pair: then privacy is for users,
            offsets and weights have the shape (num_users, k), and standard errors count
            that the k records of a user depend on each other.
        key: a typed key.
        epsilon: privacy of all that is released, positive; inf: no privacy.
        delta: privacy of all that is released, in (0, 1).
        noise_multiplier: in place of epsilon, positive: stddev / l2 sensitivity of the
            one Gaussian mechanism to which all releases compose. If models share a
            budget, the inverse squares of their multipliers add up. `Solution.privacy`
            then states the epsilon of this model alone.
        intercept: the public index of a column of ones, whose values are not read;
            None: no intercept. If it is the only column, the constant gets the whole
            budget.
        max_features: how many features, without the intercept, may have a weight. None:
            all.
        offsets: shape (n,), added to predictions, such as the logarithm of the exposure
            with a log link. None: zeros.
        weights: shape (n,), of records, clipped to [0, max_weight]; NaN is zero. A
            record of weight zero changes no release. None: ones.
        max_weight: the largest weight, public, positive.
        max_records: m, public. If there are more records, m of them are drawn by the
            key without replacement, and the fit spends `accounting.Sample.budget`;
            delta n / m must be below 1. None: all.
        intervals: whether to release standard errors. They need the squared, logistic,
            Huber, Poisson or gamma loss, a feature beside the intercept, and no
            `max_features`.
        execution: microbatches, callback, checkpoint. The callback sees the weights in
            z; with the Huber loss it sees the second of two fits.

    Returns:
        A `Solution` with params of shape (d,), or (d, K) where the loss has K outputs.
        Its stats are public or released: num_steps, noise_multiplier of all releases
        together, shares of the budget, radius (the clip norm of rows), share_kept of
        the correlations, l2_clip_norms of weights and intercept in z, and scale, the
        factor of the Newton step. With an intercept there are also constant,
        mean_weight (over the largest; without exposures), and target_size unless
        targets are labels. With the Huber loss these are from the second fit, constant
        is the median, and residual_scale is the unit of the residuals of "huber".
        `max_features` adds selected, the indices of the chosen columns, ascending;
        `intervals` adds num_hidden, the number of directions in which noise hides the
        second derivative, and noise_errors (d,): the part of the standard errors that
        noise and clipping make, so that sampling has the difference of squares, with
        noise_correlations (d, d). A census has no other errors. is_asymptotic says
        whether intervals rest on asymptotics or are conservative, as follows from n,
        curvature_error, tail_share and clipping: `docs/guides/intervals.md`.

    Raises:
        ValueError: if an argument is out of its range, or shapes do not fit; before any
            computation, and never because of the values of the data.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input, stats and all iterates
        included: adaptive Gaussian mechanisms that cost as much as one
        (`accounting.noise_multiplier`). With `max_features` there are also choices by
        the exponential mechanism, so that all are composed as zCDP. The loss, the
        intercept's index and max_features must not depend on the data. With
        `max_records` it is amplified by sampling without replacement. With
        users of up to k records, neighbors differ in those of one user, which move a
        release up to k times as far as one record: mechanisms have k times the noise.

    Example:
        >>> import jax, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> features = np.c_[rng.standard_t(3, (10_000, 2)), np.ones(10_000)]
        >>> targets = features @ np.array([1.0, -2.0, 5.0]) + rng.standard_t(3, 10_000)
        >>> solution = dp_linear_model(
        ...     "squared", (features, targets), key=jax.random.key(0), epsilon=2.0,
        ...     delta=1e-5, intercept=2)
        >>> print(np.abs(solution.params - np.array([1.0, -2.0, 5.0])).max() < 0.3)
        True

    Reference:
        Andrew et al. (2021): clip norms from quantiles. Wang (2018); Ganesh et al.
        (2023); Kamath, Li, Singhal, Ullman (2019): second moments as preconditioner.
        Ivgi, Hinder, Carmon (2023): steps. Durfee, Rogers (2019): choices. Dong, Roth,
        Su (2022): composition. Balle, Barthe, Gaboardi (2018), Theorem 9: sampling. van
        der Vaart (1998), chapter 5.7; White (1980); Avella-Medina, Bradshaw, Loh
        (2023); Lin, Slavkovic, Bhoomireddy (2026): intervals.
    """
    check_noise(epsilon, delta, noise_multiplier)
    check_key_of_rows(key, data)
    _validate.positive(max_weight=max_weight)
    check_execution(execution)
    unit, given = unit_of(data), (offsets, weights, max_records)
    pair, offsets, weights, user_size = rows_of(data, *given)
    table = checked(loss, pair, intercept, intervals, max_features)
    options: dict[str, Any] = {"intercept": intercept, "max_features": max_features}
    options |= {"max_weight": max_weight, "intervals": intervals}
    fit = partial(dp_linear_model, loss, execution=execution, **options)
    pair, call = table[1:3], {"key": key, "epsilon": epsilon, "delta": delta}
    call |= {"offsets": offsets, "weights": weights}
    if solution := on_sample(fit, pair, max_records, **call):
        return solution
    num_samples, num_columns = table.features.shape
    column, num_features = table.column, table.num_features
    kind, examples = problem(table, offsets, weights, max_weight, user_size)
    del data, pair, table  # frees what no caller has
    key, choice_key = _keys.split(key)
    selected, stats = None, {}
    num_chosen = num_features if max_features is None else max_features
    is_choosing = num_chosen < num_features
    sizes = num_samples, user_size, unit
    total, privacy = noise_of(epsilon, delta, noise_multiplier, sizes, is_choosing)
    if is_choosing:
        multiplier = total / math.sqrt(1 - _MODEL_SHARE)
        selected = _chosen_features(
            kind, examples, choice_key, num_chosen, multiplier, execution
        )
        examples = examples._replace(features=examples.features[:, selected])
        if column is not None:
            selected = selected + (selected >= column).astype(selected.dtype)
        total, stats = total / math.sqrt(_MODEL_SHARE), {"selected": selected}
    release = {"key": key, "noise_multiplier": total, "execution": execution}
    params, fit_stats, *errors = fit_columns(
        kind, examples, num_columns, column, selected, intervals=intervals, **release
    )
    return Solution(params, privacy, stats | fit_stats, *errors)


def checked(
    loss: str | LinearLoss,  # or its name
    data: tuple[ArrayLike, ArrayLike],  # features (n, d), targets (n,)
    intercept: int | None,  # index of its column
    intervals: bool,
    max_features: int | None = None,  # to choose; None: all
) -> CheckedData:
    """Returns the loss, features and targets as floats, and the intercept's column.

    Raises an error for losses that are not convex, for shapes that do not fit, and for
    options that exclude each other, before anything is released.
    """
    model = named(loss)
    is_fine = model.is_convex and math.isfinite(model.curvature_bound)
    rule = "a convex loss of bounded curvature, such as 'squared' or 'huber'"
    _validate.require(is_fine, "loss", loss, rule)
    is_fine = isinstance(data, tuple | list) and len(data) == 2
    _validate.require(is_fine, "data", type(data), "a pair (features, targets)")
    features, targets = with_auto_axes(linear_data(*data))
    column = None
    if intercept is not None:
        column = column_index("intercept", intercept, features.shape[1])
    if max_features is not None:
        _validate.count(max_features=max_features)
    table = CheckedData(model, features, targets, column)
    if intervals:
        has_intervals = (
            model in (squared, logistic)
            or isinstance(model, Huber)
            or (isinstance(model, LogLink) and model.power in (1, 2))
        )
        rule = "squared, logistic, Huber, Poisson or gamma if intervals is True"
        _validate.require(has_intervals, "loss", loss, rule)
        rule = "None if intervals is True: intervals would not count the choice"
        _validate.require(max_features is None, "max_features", max_features, rule)
        rule = "one or more beside the intercept if intervals is True"
        shown = f"{table.num_features} beside the intercept"
        _validate.require(table.num_features > 0, "features", shown, rule)
    return table


def noise_of(
    epsilon: float | None,  # None: the multiplier is given
    delta: float,
    multiplier: float | None,  # None: epsilon is given
    sizes: tuple[int, int, str],  # rows, rows of a user, and the unit of privacy
    is_choosing: bool = False,  # features, by the exponential mechanism
) -> tuple[float, PrivacyGuarantee]:  # multiplier, guarantee
    """Returns the noise multiplier of all releases of a model, and their guarantee.

    The multiplier is for a replaced row, and the guarantee for a replaced user of k
    rows, for whom the multiplier is a k-th of it.
    """
    # With a choice of features they are composed as zCDP, else as one Gaussian.
    num_samples, user_size, unit = sizes
    num_users = num_samples // user_size
    if epsilon is not None and (epsilon == math.inf or not is_choosing):
        multiplier, privacy = one_gaussian(epsilon, delta, num_users, unit)
        return user_size * multiplier, privacy
    if is_choosing:  # by the exponential mechanism: zCDP
        rho = 0.5 / (multiplier or 1) ** 2
        if epsilon is None:
            epsilon = rho_to_epsilon(rho, delta)
        else:
            rho = epsilon_to_rho(epsilon, delta)
            multiplier = math.sqrt(0.5 / rho)
        event = ZCDpEvent(rho)
    else:
        assert multiplier is not None
        epsilon = gaussian_epsilon(multiplier, delta, sensitivity=1.0)
        event = gaussian_event(multiplier)
    assert multiplier is not None
    return user_size * multiplier, PrivacyGuarantee.of(
        epsilon, delta, dp_event=event, num_samples=num_users, unit=unit
    )


def column_index(name: str, index: int, num_columns: int) -> int:
    """Returns the index of a column, counted from zero."""
    is_index = isinstance(index, int | np.integer) and not isinstance(index, bool)
    rule = f"the index of one of {num_columns} columns"
    is_fine = is_index and -num_columns <= index < num_columns
    _validate.require(is_fine, name, index, rule)
    return int(index) % num_columns


def _chosen_features(
    kind: ModelKind,  # the static description of the model
    examples: Examples,  # features, targets, offsets, weights
    key: Key,
    num_chosen: int,
    noise_multiplier: float,  # of all releases together
    execution: Execution,  # microbatches, callback, checkpoint
) -> jax.Array:  # (num_chosen,)
    """Releases the ascending indices of `num_chosen` features to fit a model to.

    Their products with the loss's derivatives have the largest means.

    Privacy:
        1 / (2 noise_multiplier^2)-zCDP under replace-one.
    """
    first_key, model_key, second_key = _keys.split(key, 3)
    first = -(-num_chosen // 2)
    choose = partial(
        _choose,
        kind,
        size_multiplier=noise_multiplier / math.sqrt(_SIZE),
        rho=_CHOICES / (2 * noise_multiplier**2),
    )
    # The first half is chosen at zero weights, the rest at a model of the first half,
    # because some features matter only together with others.
    zeros = jnp.zeros_like(examples.targets)
    outputs = (kind.loss.num_outputs,) if kind.loss.num_outputs > 1 else ()
    predictions = jnp.zeros((len(zeros), *outputs), zeros.dtype)
    chosen = choose(first, examples, predictions, None, first_key)
    if num_chosen == 1:
        return chosen
    part = examples._replace(features=examples.features[:, chosen])
    share = 1 - 2 * (_SIZE + _CHOICES)
    params, _ = fit(
        kind,
        part,
        key=model_key,
        noise_multiplier=noise_multiplier / math.sqrt(share),
        execution=Execution(microbatch_size=execution.microbatch_size),
    )
    predictions = part.features @ params["weights"] + params.get("intercept", 0.0)
    second = choose(num_chosen - first, examples, predictions, chosen, second_key)
    # The set is released. The order within it would cost more privacy.
    return jnp.sort(jnp.concatenate([chosen, second]))


@partial(jax.jit, static_argnums=(0, 1))
def _choose(
    kind: ModelKind,  # the static description of the model
    num_chosen: int,
    examples: Examples,  # features, targets, offsets, weights
    predictions: jax.Array,  # at which slopes, derivatives of the loss, are computed
    chosen: jax.Array | None,  # features of the first round, not to choose again
    key: Key,
    *,
    size_multiplier: Scalar,  # noise multiplier of the bound of products
    rho: Scalar,  # zCDP of the choices
) -> jax.Array:
    """Releases the ascending indices of the features with the largest mean products.

    A product is a feature times the loss's slope: the gradient of the feature's weight.
    A record moves the mean by at most D; for k choices Gumbel noise has the scale
    D sqrt(k / (2 rho)): `docs/privacy/proofs/linear.md`, 8.6.
    """
    loss = kind.loss
    features, targets, offsets, weights = examples
    num_samples, num_features = features.shape
    size_key, choice_key = _keys.split(key)
    if loss.num_outputs > 1:
        shape = predictions.shape
        offsets = jnp.broadcast_to(offsets[:, None], shape)
        weights = jnp.broadcast_to(weights[:, None], shape)
    slopes = weights * loss.derivative(predictions + offsets, targets)
    # The products of a record are bounded by a noisy quantile of their sizes, so that
    # the sensitivity of each score is known.
    row_norms = jnp.sqrt(jnp.mean(features**2, axis=1))  # one number for each record
    size = noisy_quantile(
        size_key,
        gathered(row_norms * slope_norms(slopes)),
        num_above=_CLIPPED * num_samples,
        noise_multiplier=size_multiplier,
    )
    estimator = Winsorization(_BEYOND_SIZE * size)
    products = streamed_grad(lambda w, row: jnp.sum((row[0] @ w) * row[1]))
    shape = jnp.zeros((num_features, *slopes.shape[1:]), features.dtype)
    mean = aggregate(estimator, axis_name=kind.axis_name)
    gradients = cast(Any, products(shape, (features, slopes)))
    scores = cast(jax.Array, mean.update(gradients, mean.init(shape))[0])
    bound = estimator.sensitivity(num_samples, scores.size).linf
    scores = jnp.abs(scores)
    if scores.ndim > 1:
        scores = jnp.max(scores, axis=1)
    free = jnp.arange(num_features)
    if chosen is not None:
        is_chosen = jnp.zeros(num_features, "int32").at[chosen].set(1)
        free = jnp.argsort(is_chosen, stable=True)[: num_features - len(chosen)]
    noisy = peeling(
        choice_key,
        scores[free],
        sparsity=num_chosen,
        selection_scale=bound * jnp.sqrt(num_chosen / (2 * rho)) * ROUNDED_UP,
        release_stddev=jnp.inf,  # only the set is used
    )
    return free[jnp.flatnonzero(noisy, size=num_chosen)]
