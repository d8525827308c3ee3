"""A generalised linear model from data and a budget, without hyperparameters."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent, ZCDpEvent

from dpjax import _keys, _validate, accounting
from dpjax._sharding import check_key_of_rows, with_auto_axes
from dpjax._tree import linear_data
from dpjax._types import ArrayLike, Key
from dpjax.accounting import (
    PrivacyGuarantee,
    epsilon_to_rho,
    gaussian_epsilon,
    gaussian_event,
    rho_to_epsilon,
)
from dpjax.losses import LinearLoss, logistic, squared
from dpjax.losses._log_link import LogLink
from dpjax.losses._named import named
from dpjax.losses._residual_losses import Huber
from dpjax.solvers.linear._choice import choose_features
from dpjax.solvers.linear._columns import fit_columns, problem
from dpjax.solvers.linear._on_sample import on_sample
from dpjax.solvers.training._calibration import check_noise
from dpjax.solvers.training._loop import Execution, check_execution
from dpjax.solvers.training._solution import Solution

_MODEL_SHARE = 0.55  # of the budget, if features are chosen with the rest


def dp_linear_model(
    loss: str | LinearLoss,
    data: tuple[ArrayLike, ArrayLike],
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
    """Fits a generalised linear model to data and a budget, without hyperparameters.

    Minimises the mean of weight·loss(<w, x> + offset, y). What other solvers need as
    hyperparameters is released privately, with shares of the budget (see `stats`):

    1. If there is an intercept, the best constant prediction. It is a private mean of
       the targets, clipped at a bound that comes from a noisy histogram, and divided by
       the private mean of the weights, which costs nothing beside it. The share of
       a class is half a standard deviation of its noise from 0 and 1. With a log
       link it is the mean per unit of exposure, where offsets are logarithms of the
       exposure; exposures above 1 count as 1 here.
    2. A clip norm for rows, and the second moments of clipped rows. They define
       coordinates z = A^T (x - center) in which all directions with more signal than
       noise have equal spread. Other directions keep theirs.
    3. The norm of gradients at the best constant. It sets the clip norm of the steps,
       which is lower if there is more noise.
    4. 50 to 150 steps of clipped noisy gradients in z, starting at the best constant.
       A step size is the distance moved so far, divided by the root of the sum of
       squared gradient norms. The result is a weighted mean of the iterates. With the
       squared loss the intercept stays as it is, because it is a mean; with other
       losses it takes steps as well, with a clip norm of its own.
    5. One noisy Newton step on the scale and the level of the predictions, because
       clipped gradients of skewed targets stop before the best weights. Losses with
       several outputs skip it.

    The Huber loss is robust to targets of any size: no release is a mean of them.
    Targets are first centred at a private median and divided by the median distance
    from it. A first fit with a quarter of the budget gives residuals; in units of their
    median size, or of the threshold, a second fit corrects the first.

    With `max_features`, features are chosen first: half of them by their correlation
    with the derivatives of the loss at zero weights, the others by the correlation with
    the derivatives at a model of the first half. If targets have a large mean, subtract
    a public number from them first.

    With `intervals`, a fit with 15 per cent of the budget, or less of many records, is
    followed by one noisy Newton step, and the params have standard errors: see
    `Solution.interval`.

    - They are for the coefficients of the best linear predictor of the population, from
      which records are drawn independently, with four moments of features and two of
      scores. No model has to be true (White 1980). With the Huber loss in scales, the
      released scale is part of the predictor.
    - They count the sampling of records and the noise of every release. What is not
      linear in the error of the first fit is counted for the intercept alone.
    - Scores are clipped at 1.2 times a norm C that 200 to 300 records exceed at epsilon
      1 (of 100,000 records 1,100, because clipping costs less than noise), those of the
      intercept at twice theirs. What that cuts is estimated: the scores
      from C / 2 to C have its direction, and two noisy counts its size, as of a Pareto
      tail. The params are corrected by it, and the interval is wider by the noise of
      that, and by a quarter of it. With lognormal noise times e^(x/2) the interval for
      the coefficient of x held the truth in 95 per cent of runs, and in 67 without that
      correction. If the counts show a tail too heavy for that, of an index below 1.6,
      all intervals are infinite.
    - An interval is infinite if the noise hides the second derivatives in a direction
      that the coefficient has a part in: of a constant column, of two that are nearly
      the same. `num_hidden` in the stats says how many directions that are. All are
      infinite if records are fewer than 4,000, or about 4,000 / epsilon: a public rule.
      Of 2,000 records skewed as above 86 per cent were held at epsilon 3, of 4,000 96.
    - Measured with 10 features, n = 20,000, delta = n^-1.1, epsilon 1, in 200 runs of
      each law: 95 to 97 per cent of intervals at level 0.95 held the truth, 91 or more
      of every coefficient, at 1.4 to 2.3 times the width without privacy (normal 1.4;
      t5 features with t3 noise 1.7; lognormal 2.2). `benchmarks/COVERAGE.md` has more.

    Args:
        loss: "squared", "logistic", "huber", or a convex `losses.LinearLoss` of bounded
            curvature, such as `losses.poisson(10.0)` or `losses.softmax(3)`. "huber"
            becomes linear at 1.345 scales of the residuals, `losses.huber(t)` at t or
            10,000 scales of the targets, whichever is less.
        data: (features, targets), shapes (n, d) and (n,); n is public. Features should
            be of comparable size, such as standardised ones; NaN counts as zero.
            Targets outside the loss's range are mapped by `loss.targets_of`. For
            classes, y > 0 is the positive one. NaN has no weight.
        key: a typed key.
        epsilon: privacy of all that is released, positive.
        delta: privacy of all that is released, in (0, 1).
        noise_multiplier: in place of epsilon, positive: stddev / l2 sensitivity of the
            one Gaussian mechanism that all releases of the model are together. Use it
            if the model shares a budget with other Gaussian releases, because the
            inverse squares of multipliers add up. `Solution.privacy` then states the
            epsilon of the model alone.
        intercept: the public index of a column of ones, whose values are not read. If
            it is the only column, the constant gets the whole budget. None: there is no
            intercept.
        max_features: how many features, without the intercept, may have a weight. Use
            it if there are many features and few matter. None: all.
        offsets: shape (n,), added to predictions, such as the logarithm of the exposure
            with a log link. None: zeros.
        weights: shape (n,), of records, clipped to [0, max_weight]; NaN is zero. A
            record of weight zero changes no release. None: ones.
        max_weight: the largest weight, public, positive.
        max_records: m, public. Of more records m are drawn without replacement, by the
            key, and the fit spends `accounting.Sample.budget`; delta n / m must be
            below 1. None: all.
        intervals: whether the solution has standard errors and intervals, see below.
            With the squared, logistic, Huber, Poisson or gamma loss, at least one
            feature beside the intercept, and without `max_features`.
        execution: how it runs: microbatches, callback, checkpoint. A callback sees the
            weights in z; with the Huber loss, those of the second fit.

    Returns:
        A `Solution` with params of shape (d,), or (d, K) where the loss has K outputs.
        Its stats are public, or were released privately: num_steps; noise_multiplier of
        all releases together; shares of the budget; radius, the clip norm of rows;
        share_kept of the correlations; l2_clip_norms of weights and intercept in z;
        scale, the factor of the Newton step. With an intercept also constant,
        mean_weight (in the largest; without exposures), and target_size unless targets
        are labels. With the Huber loss these are of the second fit, constant is the
        median, and residual_scale is what "huber" measures residuals in. With
        `max_features` also selected, the
        indices of the chosen columns in ascending order, because their set is released
        and not their order. If the intercept is the only column there are no steps, and
        nothing about weights.

    Raises:
        ValueError: where an argument is out of its range, or shapes do not fit; before
            any computation, never because of the values of the data.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input, stats and all iterates
        included. All releases are adaptive Gaussian mechanisms on statistics of known
        sensitivity. Together they cost exactly as much as one Gaussian mechanism
        (`accounting.noise_multiplier`; Dong, Roth, Su 2022). With `max_features` there
        are also choices by the exponential mechanism, so that all releases are composed
        as zCDP (`accounting.epsilon_to_rho`). The loss, the intercept's index and
        max_features must not depend on the data. With `max_records` it is amplified by
        sampling without replacement (Balle, Barthe, Gaboardi 2018, Theorem 9).

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
        Clipping from a private quantile: Andrew et al. (2021). Second moments as
        preconditioner: Wang (2018); Ganesh et al. (2023). Steps: Ivgi, Hinder, Carmon
        (2023). Choices: Durfee, Rogers (2019). Intervals: van der Vaart (1998), chapter
        5.7; White (1980); Avella-Medina, Bradshaw, Loh (2023); Lin, Slavkovic,
        Bhoomireddy (2026). The first whitening: Kamath, Li, Singhal, Ullman (2019).
    """
    model = model_loss(loss)
    check_noise(epsilon, delta, noise_multiplier)
    check_key_of_rows(key, data)
    features, targets = records_of(data)
    num_samples, num_columns = features.shape
    column = None
    if intercept is not None:
        column = column_index("intercept", intercept, num_columns)
    num_features = num_columns - (column is not None)
    if max_features is not None:
        _validate.count(max_features=max_features)
    _validate.positive(max_weight=max_weight)
    if intervals:
        check_intervals(model, loss, max_features, num_features)
    check_execution(execution)
    same: dict[str, Any] = {"intercept": intercept, "max_features": max_features}
    same |= {"max_weight": max_weight, "intervals": intervals, "execution": execution}
    again = partial(dp_linear_model, loss, **same)
    budget = {"key": key, "epsilon": epsilon, "delta": delta}
    given: dict[str, Any] = {"offsets": offsets, "weights": weights, **budget}
    if solution := on_sample(again, (features, targets), max_records, **given):
        return solution
    kind, examples = problem(
        model, features, targets, column, offsets, weights, max_weight
    )
    del data, features, targets  # frees what no caller has
    key, choice_key = _keys.split(key)
    selected, stats = None, {}
    num_chosen = num_features if max_features is None else max_features
    is_choosing = num_chosen < num_features
    total, epsilon, event = noise_of(epsilon, delta, noise_multiplier, is_choosing)
    if is_choosing:
        selected = choose_features(
            kind,
            examples,
            key=choice_key,
            num_chosen=num_chosen,
            noise_multiplier=total / math.sqrt(1 - _MODEL_SHARE),
            execution=execution,
        )
        examples = examples._replace(features=examples.features[:, selected])
        if column is not None:
            rest = np.delete(np.arange(num_columns, dtype="int32"), column)
            selected = jnp.asarray(rest)[selected]
        total, stats = total / math.sqrt(_MODEL_SHARE), {"selected": selected}
    release = {"key": key, "noise_multiplier": total, "execution": execution}
    params, fit_stats, *errors = fit_columns(
        kind, examples, num_columns, column, selected, intervals=intervals, **release
    )
    privacy = PrivacyGuarantee.of(
        epsilon, delta, dp_event=event, num_samples=num_samples
    )
    return Solution(params, privacy, stats | fit_stats, *errors)


def model_loss(loss: str | LinearLoss) -> LinearLoss:
    """Returns the loss of a name, or as it is; refuses one that is not convex."""
    model = named(loss)
    is_fine = model.is_convex and math.isfinite(model.curvature_bound)
    _validate.require(is_fine, "loss", loss, "a convex loss of bounded curvature")
    return model


def check_intervals(
    model: LinearLoss,
    loss: str | LinearLoss,
    max_features: int | None,
    num_features: int,
) -> None:
    """Refuses models without intervals: other losses, chosen features, a constant."""
    has_intervals = (
        model in (squared, logistic)
        or isinstance(model, Huber)
        or (isinstance(model, LogLink) and model.power in (1, 2))
    )
    rule = "squared, logistic, Huber, Poisson or gamma, if there are to be intervals"
    _validate.require(has_intervals, "loss", loss, rule)
    rule = "None if there are to be intervals: they would not count the choice"
    _validate.require(max_features is None, "max_features", max_features, rule)
    rule = "one or more beside the intercept, if there are to be intervals"
    is_fine = num_features > 0
    _validate.require(is_fine, "features", f"{num_features} beside the intercept", rule)


def noise_of(
    epsilon: float | None,
    delta: float,
    multiplier: float | None,
    is_choosing: bool = False,
) -> tuple[float, float, DpEvent]:
    """Returns noise multiplier, epsilon and event of all releases together."""
    if is_choosing:  # by the exponential mechanism: zCDP
        if epsilon is not None:
            rho = epsilon_to_rho(epsilon, delta)
            return math.sqrt(0.5 / rho), epsilon, ZCDpEvent(rho)
        assert multiplier is not None
        rho = 0.5 / multiplier**2
        return multiplier, rho_to_epsilon(rho, delta), ZCDpEvent(rho)
    if epsilon is not None:
        multiplier = accounting.noise_multiplier(
            epsilon, delta, accounting.Sampling(num_steps=1)
        )
    assert multiplier is not None
    if epsilon is None:
        epsilon = gaussian_epsilon(multiplier, delta, sensitivity=1.0)
    return multiplier, epsilon, gaussian_event(multiplier)


def records_of(data: tuple[ArrayLike, ArrayLike]) -> tuple[jax.Array, jax.Array]:
    """Returns features (n, d) and targets (n,), as float arrays."""
    is_fine = isinstance(data, tuple | list) and len(data) == 2
    _validate.require(is_fine, "data", type(data), "a pair (features, targets)")
    return with_auto_axes(linear_data(*data))


def column_index(name: str, index: int, num_columns: int) -> int:
    """Returns the index of a column, from zero on."""
    is_index = isinstance(index, int | np.integer) and not isinstance(index, bool)
    rule = f"the index of one of {num_columns} columns"
    is_fine = is_index and -num_columns <= index < num_columns
    _validate.require(is_fine, name, index, rule)
    return int(index) % num_columns
