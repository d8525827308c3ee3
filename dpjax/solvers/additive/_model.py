"""Fits a sum of curves of columns to data and a budget, without hyperparameters."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _keys, _validate
from dpjax._sharding import check_key_of_rows
from dpjax._types import ArrayLike, Key, Scalar
from dpjax.gradients._users import UserRecords
from dpjax.losses import LinearLoss
from dpjax.solvers.additive._choice import (
    RARE_SHARE,
    rare_columns,
    released_gain,
    shares_of,
)
from dpjax.solvers.additive._curves import (
    COARSE,
    FINE,
    FINEST_RECORDS,
    HEIGHT,
    LINE,
    MOST_FINEST,
    NARROW,
    TAIL,
    TAIL_FACTORS,
    TAIL_RATIO,
    Hats,
    at_finest,
    at_knots,
    banded_knots_of,
    curves_of,
    gain_noise,
    is_seen,
    knots_of,
    least_gain,
    may_be_split,
)
from dpjax.solvers.linear._columns import fit_columns, on_sample, problem, rows_of
from dpjax.solvers.linear._kind import Bends, Examples, ModelKind
from dpjax.solvers.linear._model import checked, column_index, noise_of
from dpjax.solvers.training._calibration import check_noise, unit_of
from dpjax.solvers.training._curves import Curves
from dpjax.solvers.training._loop import Execution, check_execution
from dpjax.solvers.training._solution import Solution


def dp_additive_model(
    loss: str | LinearLoss,
    data: tuple[ArrayLike, ArrayLike] | UserRecords,
    *,
    key: Key,
    epsilon: float | None = None,
    delta: float,
    noise_multiplier: float | None = None,
    smooth: Sequence[int],
    intercept: int | None = None,
    offsets: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    max_weight: float = 1.0,
    max_records: int | None = None,
    intervals: bool = False,
    execution: Execution = Execution(),
) -> Solution:
    """Fits a sum of functions of single columns, without hyperparameters.

    Minimizes the mean of weight·loss(f(x) + offset, y). f is linear, and each column of
    `smooth` adds a curve: linear between public knots, zero at zero and constant beyond
    the last knots. A curve is a sum of hat functions, which `dp_linear_model` fits as
    features of the record. Public numbers determine the knots: 11 or 13 in most models,
    none at a small budget, where the model is linear. With a log link columns bend
    whenever there are knots; otherwise this is a private choice, for 4 to 13 percent of
    the budget, for labels between lines, three knots and eleven:
    `docs/guides/curves.md` has the rules.

    With `intervals` curves have bands: see `Solution.bands`. Bands would not count a
    choice, so there is none: all columns of `smooth` have five, three or no knots, by a
    public rule, and no line beyond the last knots, at ±2. `docs/guides/intervals.md`
    says what bands cover, and where they are infinite or too narrow.

    Args:
        loss: as in `dp_linear_model`.
        data: (features, targets), shapes (n, d) and (n,); n is public. The columns of
            `smooth` should be in public units in which zero is a usual value and most
            values are within ±2. NaN counts as zero. Targets, and users, are as in
            `dp_linear_model`.
        smooth: the public indices of the columns that may bend. A column of two values
            needs only its line.
        key: a typed key.
        epsilon: privacy of all that is released, as in `dp_linear_model`.
        delta: privacy of all that is released, in (0, 1).
        noise_multiplier: in place of epsilon, as in `dp_linear_model`.
        intercept: as in `dp_linear_model`, as are offsets, weights and max_weight.
        offsets: shape (n,), or None.
        weights: shape (n,), or None.
        max_weight: the largest weight, public, positive.
        max_records: as in `dp_linear_model`; knots follow from m and its budget.
        intervals: whether to release standard errors and bands, for losses that have
            intervals in `dp_linear_model`.
        execution: as in `dp_linear_model`; callback and checkpoint see the last fit.
            Under jit or vmap a private choice allows no callback, because all models
            are computed.

    Returns:
        A `Solution`, which has `predict` and `shapes`, the curve of each column. Its
        params have slopes, and heights at knots, all zero if no column bends;
        `params.curve(column, grid)` is one curve, and `params.monotone(directions)` has
        only curves that rise or fall, and costs no privacy. Its stats are those of the
        last `dp_linear_model`, fitted to lines and hat functions; shares count both
        choices, and gain is the released gain of curves, in squares of a clip norm.
        With `intervals` there are also standard errors of slopes and heights, and the
        correlations of all errors, slopes first. Heights at zero, and slopes of columns
        with knots, are no estimates: they are zero, with no error.

    Raises:
        ValueError: if an argument is out of its range, or shapes do not fit; before the
            choice, and never because of the values of the data.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input, stats and all iterates
        included. Features of a record are a function of this record alone, and knots
        follow from public numbers. Two models and both choices are adaptive Gaussian
        mechanisms, which cost exactly as much as the one mechanism of
        `dp_linear_model`. The loss, smooth and the intercept's index must not depend on
        the data.

    Example:
        >>> import jax, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> features = np.c_[rng.standard_t(3, (10_000, 2)), np.ones(10_000)]
        >>> means = np.minimum(np.abs(features[:, 0]), 2) + features[:, 1]
        >>> solution = dp_additive_model(
        ...     "squared", (features, means + rng.standard_t(3, 10_000)),
        ...     key=jax.random.key(0), epsilon=2.0, delta=1e-5, smooth=[0], intercept=2)
        >>> error = solution.predict(features) - means
        >>> print(f"{np.sqrt(np.mean(error**2)):.1f} of {np.std(means):.1f}")
        0.2 of 1.8

    Reference:
        Hastie, Tibshirani (1986), Generalized additive models; Nori, Caruana, Bu, Shen,
        Kulkarni (2021), Accuracy, interpretability, and differential privacy via
        explainable boosting; Rao (1948), Large sample tests of statistical hypotheses:
        the choice.
    """
    check_noise(epsilon, delta, noise_multiplier)
    check_key_of_rows(key, data)
    _validate.positive(max_weight=max_weight)
    check_execution(execution)
    unit, given = unit_of(data), (offsets, weights, max_records)
    pair, offsets, weights, user_size = rows_of(data, *given)
    table = checked(loss, pair, intercept, intervals)
    num_samples, num_columns = table.features.shape
    bent = _smooth(smooth, num_columns, table.column)
    options: dict[str, Any] = {"smooth": smooth, "intercept": intercept}
    options |= {"max_weight": max_weight, "intervals": intervals}
    fit = partial(dp_additive_model, loss, execution=execution, **options)
    pair, call = table[1:3], {"key": key, "epsilon": epsilon, "delta": delta}
    call |= {"offsets": offsets, "weights": weights}
    if solution := on_sample(fit, pair, max_records, **call):
        return solution
    rows = num_samples, user_size, unit
    total, privacy = noise_of(epsilon, delta, noise_multiplier, rows)
    sizes, column = (num_samples, num_columns, len(bent), total), table.column
    knots = banded_knots_of(*sizes) if intervals else knots_of(table.loss, *sizes)
    kind, examples = problem(table, offsets, weights, max_weight, user_size)
    del data, pair, table
    terms = Terms(kind, num_columns, bent, column, knots, intervals)
    models = [terms._replace(knots=())]
    if bent and kind.has_labels and not intervals and may_be_split(*sizes):
        split = terms._replace(knots=COARSE, is_split=True)
        if knots == FINE:
            models.append(split)
        else:
            terms = split
    # With a log link, and for split curves, public numbers alone decide.
    may_choose = not (kind.loss.has_log_link or terms.is_split)
    may_choose &= is_seen(num_samples, terms.num_functions, total)
    if intervals or not (terms.knots and may_choose):
        fitted = _all_terms(terms, examples, key, total, execution)
        return Solution(fitted[0], privacy, *fitted[1:])
    params, stats = _chosen_terms(terms, models, examples, key, total, execution)
    return Solution(params, privacy, stats)


def _smooth(
    smooth: Sequence[int], num_columns: int, intercept: int | None
) -> tuple[int, ...]:
    """Returns the nonnegative indices of columns that may have curves, or raises."""
    # They must be different columns of the data, without the intercept's.
    is_fine = isinstance(smooth, Sequence | np.ndarray) and not isinstance(smooth, str)
    _validate.require(is_fine, "smooth", smooth, "a sequence of indices of columns")
    bent = tuple(column_index("smooth", index, num_columns) for index in smooth)
    rule = "indices of different columns, without the intercept's"
    is_fine = len(set(bent)) == len(bent) and intercept not in bent
    _validate.require(is_fine, "smooth", smooth, rule)
    return bent


class Terms(NamedTuple):
    """Holds the static description of an additive model: columns, curves and knots."""

    kind: ModelKind  # as `problem` returns it
    num_columns: int  # with the intercept's column
    bent: tuple[int, ...]  # the indices of columns that may bend
    intercept: int | None  # index of its column, which examples lack
    knots: tuple[float, ...]  # of every curve; () for lines alone
    intervals: bool  # errors are released; curves have no line beside them
    is_split: bool = False  # second moments of lines and hat functions are apart

    @property
    def tail(self) -> float:
        """Returns the unit of lines beyond the last knots."""
        if self.intervals and self.knots:
            return 0.0
        return TAIL if self.kind.has_labels and self.knots == FINE else LINE

    @property
    def own(self) -> tuple[int, ...]:
        """Returns the places of the columns that may bend, among those of examples."""
        if self.intercept is None:
            return self.bent
        return tuple(place - (place > self.intercept) for place in self.bent)

    @property
    def num_functions(self) -> int:
        """Counts the functions that the choice tests, for all outputs."""
        return 2 * len(self.bent) * self.kind.loss.num_outputs

    def may_be_finest(self, num_samples: int, noise_multiplier: float) -> bool:
        """Returns whether columns that are mostly zero may have narrow functions."""
        num_clear = num_samples / (noise_multiplier * self.kind.loss.num_outputs)
        num_weights = self.num_columns + len(self.bent) * (len(self.knots) - 1)
        num_weights += MOST_FINEST * len(NARROW)
        is_clear = num_clear >= FINEST_RECORDS * num_weights
        return self.kind.has_labels and self.knots == FINE and is_clear

    def fit(
        self,
        examples: Examples,  # features, targets, offsets, weights
        key: Key,
        noise_multiplier: float,  # of this fit
        execution: Execution,  # microbatches, callback, checkpoint
        finest: jax.Array | None = None,  # indices of `bent`; None: no columns
    ) -> tuple[jax.Array, dict[str, Any], jax.Array | None, jax.Array | None]:
        """Releases a linear model of lines and hat functions of the columns.

        Returns the weights of all functions, stats, and the weights' standard errors
        and correlations, which are None if the model is to have no intervals. Columns
        in `finest` also have narrow hat functions.
        """
        num_finest = 0 if finest is None else len(finest)
        if finest is not None and num_finest:
            # The narrow functions are made of a second copy of these columns.
            columns = examples.features
            again = columns[:, jnp.asarray(self.own)[finest]]
            examples = examples._replace(features=jnp.append(columns, again, axis=1))
        kind, intercept = self.kind, self.intercept
        if self.is_split:
            kind = kind._replace(bends=Bends(self.own, self.knots))
        elif self.knots:
            hats = Hats(self.own, self.knots, self.tail, num_finest)
            kind = kind._replace(basis=hats)
        if intercept is not None and self.tail == 0:
            intercept -= sum(place < intercept for place in self.bent)
        return fit_columns(
            kind,
            examples,
            self.num_columns + num_finest,
            intercept,
            key=_keys.split(key)[0],  # the key that `dp_linear_model` uses
            noise_multiplier=noise_multiplier,
            intervals=self.intervals,
            execution=execution,
        )

    def curves(self, weights: jax.Array) -> Curves:
        """Returns the curves of fitted weights."""
        tail = self.tail if self.knots else None
        line, tail, height = (1.0, 1.0, 1.0) if self.is_split else (LINE, tail, HEIGHT)
        static = self.num_columns, self.bent, tail, self.knots, self.intercept
        return curves_of(weights, *static, line, height)


def _all_terms(
    terms: Terms, examples: Examples, key: Key, noise_multiplier: float, execution: Any
) -> tuple[Curves, dict[str, Any], Curves | None, jax.Array | None]:
    """Releases an additive model with a curve for each column that may have one.

    Returns its slopes of lines and heights of curves at knots, as `Curves`; stats; and
    the standard errors, also as `Curves`, and correlations of slopes and heights, which
    are None unless `terms.intervals` is true.
    """
    fitted, stats, errors, correlations = terms.fit(
        examples, key, noise_multiplier, execution
    )
    params = terms.curves(fitted)
    if errors is None or correlations is None:
        return params, stats, None, None
    # A slope or height is a weight times a unit, or else fixed at zero, without error.
    at_zero = len(terms.bent) * [knot == 0 for knot in terms.knots]
    zeros = terms.num_columns + np.flatnonzero(at_zero)
    known = *(terms.bent if terms.knots else ()), *zeros.tolist()
    return params, stats, terms.curves(errors), _with_known(correlations, known)


def _chosen_terms(
    terms: Terms,  # the static description of the model
    models: list[Terms],  # the same for models of fewer terms, lines first
    examples: Examples,  # features, targets, offsets, weights
    key: Key,
    noise_multiplier: float,  # of all releases together
    execution: Execution,  # microbatches, callback, checkpoint
) -> tuple[Curves, dict[str, Any]]:  # curves, stats
    """Releases an additive model and its stats, after a private choice of its terms.

    Privacy:
        One Gaussian mechanism of the noise multiplier under replace-one: a linear
        model, the choices, and the model that they choose, each with its share.
    """
    *keys, key = _keys.split(key, 3)
    if terms.may_be_finest(len(examples.targets), noise_multiplier):
        key, rare_key = _keys.split(key)
        keys.append(rare_key)
    choice = _released_choice(
        terms, len(models), examples, keys, noise_multiplier, execution
    )
    rest = 1 - math.fsum(choice.shares.values())

    def final(key: Key, index: int) -> tuple[Curves, dict[str, Any]]:
        """Releases the model of an index, as in `_Choice.which`, and its stats."""
        num_finest = max(index - len(models), 0)
        finest = None if choice.rare is None else choice.rare[:num_finest]
        bent = [*models, terms][min(index, len(models))]
        multiplier = noise_multiplier / math.sqrt(rest)
        fitted, stats, *_ = bent.fit(examples, key, multiplier, execution, finest)
        of_fit = {name: rest * share for name, share in stats["shares"].items()}
        stats |= {"noise_multiplier": noise_multiplier, "gain": choice.gain}
        stats["shares"] = choice.shares | of_fit
        if finest is None:
            return at_knots(bent.curves(fitted), terms.knots), stats
        num_wide = len(fitted) - len(NARROW) * len(finest)
        params = at_knots(bent.curves(fitted[:num_wide]), terms.knots)
        return at_finest(params, finest, fitted[num_wide:]), stats

    if _validate.is_concrete(choice.which):
        return final(key, int(choice.which))
    rule = "without a callback under jit or vmap, where a release chooses the model"
    _validate.require(execution.callback is None, "execution", execution, rule)
    # Only one of these models is released, so that they may share their noise.
    last = len(models) + (0 if choice.rare is None else len(choice.rare))
    fits = [final(jax.random.clone(key), index) for index in range(last)]
    fits.append(final(key, last))
    return jax.tree.map(lambda *each: jnp.stack(each)[choice.which], *fits)


class _Choice(NamedTuple):
    """Holds a released choice of terms."""

    # The index of the model: of those with fewer terms, then that with all of them, and
    # those with all terms and narrow hat functions in 1, 2, ... columns.
    which: jax.Array
    gain: jax.Array  # a scalar
    rare: jax.Array | None  # columns for narrow functions; None: no such choice
    shares: dict[str, float]  # shares of the budget that the choice costs


def _released_choice(
    terms: Terms,  # the static description of the model
    num_models: int,  # that have fewer terms: lines, and perhaps a few knots
    examples: Examples,  # features, targets, offsets, weights
    keys: list[Key],  # for the linear model, the gain, and perhaps the counts
    noise_multiplier: float,  # of all releases together
    execution: Execution,  # microbatches, callback, checkpoint
) -> _Choice:
    """Releases which terms to fit: lines, curves, or curves with narrow functions.

    The choice follows from the gain, an estimate of how much curves reduce the loss of
    a linear model, and from noisy shares of records at zero, by column. The linear
    model is released for this choice only. All knots need a gain above a threshold,
    few knots only one above its standard deviation.
    """
    kind, num_samples = terms.kind, len(examples.targets)
    first_key, gain_key, *rare_key = keys
    num_weights = (len(terms.knots) - 1) * len(terms.bent) * kind.loss.num_outputs
    threshold = least_gain(kind, num_samples, num_weights, noise_multiplier)
    noise = gain_noise(num_samples, terms.num_functions, noise_multiplier)
    shares = shares_of(kind, noise, threshold)
    line, line_stats, *_ = terms._replace(knots=()).fit(
        examples,
        first_key,
        noise_multiplier / math.sqrt(shares["first_fit"]),
        Execution(microbatch_size=execution.microbatch_size),
    )
    scale = line_stats.get("residual_scale")
    bending, predictions = _residual_problem(terms, examples, line, scale)
    gain, slope_norm = released_gain(
        kind,
        bending,
        predictions,
        line_stats.get("constant", np.zeros((), predictions.dtype)),
        key=gain_key,
        noise_multiplier=noise_multiplier,
        shares=shares,
    )
    size = line_stats.get("target_size")
    if size is None and not kind.has_labels:
        threshold *= TAIL_FACTORS[1]
    stddev = noise / shares["bends"]
    which = _which(num_models > 1, gain, threshold, stddev, size, slope_norm)
    if not rare_key:
        return _Choice(which, gain, None, shares)
    shares["rare_columns"] = RARE_SHARE
    multiplier = noise_multiplier / math.sqrt(RARE_SHARE)
    rare, num_rare = rare_columns(kind.axis_name, bending, *rare_key, multiplier)
    which += jnp.where(which == num_models, num_rare, 0)
    return _Choice(which, gain, rare, shares)


@partial(jax.jit, static_argnums=0)
def _which(
    has_few_knots: bool,
    gain: jax.Array,
    threshold: Scalar,
    stddev: Scalar,  # of the gain
    target_size: jax.Array | None,  # with which the threshold grows
    slope_norm: jax.Array,
) -> jax.Array:
    """Returns the index of the model of a gain, before narrow functions are counted."""
    if target_size is not None:
        ratio = target_size / (TAIL_RATIO * slope_norm)
        threshold *= jnp.clip(ratio, *TAIL_FACTORS)
    which = (gain > threshold + 2 * stddev).astype("int32")
    return which + (gain > stddev).astype("int32") if has_few_knots else which


def _residual_problem(
    terms: Terms, examples: Examples, line: jax.Array, scale: jax.Array | None
) -> tuple[Examples, jax.Array]:  # for `released_gain`
    """Returns examples of columns for curves, and a linear model's predictions.

    `line` has the linear model's weights. Targets and predictions are divided by
    `scale`, the residuals' scale of the Huber loss, unless it is None.
    """
    features = examples.features
    bending, predictions = _lines(features, line, terms.intercept, terms.own)
    if scale is not None:  # the Huber loss has its threshold in units of it
        predictions, offsets = predictions / scale, examples.offsets / scale
        targets = examples.targets / scale
        examples = examples._replace(targets=targets, offsets=offsets)
    return examples._replace(features=bending), predictions


@partial(jax.jit, static_argnums=(2, 3))
def _lines(
    features: jax.Array, weights: jax.Array, intercept: int | None, own: tuple[int, ...]
) -> tuple[jax.Array, jax.Array]:
    """Returns the columns `own` of features, and the predictions of a linear model.

    `features` has no column of ones.
    """
    level = jnp.zeros((), weights.dtype)
    if intercept is not None:
        level = weights[intercept]
        weights = jnp.delete(weights, intercept, axis=0, assume_unique_indices=True)
    scores = jnp.matmul(features, weights, precision=jax.lax.Precision.HIGHEST)
    predictions = scores + jnp.broadcast_to(level, scores.shape)
    return features[:, jnp.asarray(own)], predictions


@partial(jax.jit, static_argnums=1)
def _with_known(correlations: jax.Array, places: tuple[int, ...]) -> jax.Array:
    """Adds to `correlations` the rows and columns of params that have no error."""
    size = len(correlations) + len(places)
    remaining = jnp.asarray([i for i in range(size) if i not in places])
    full = jnp.eye(size, dtype=correlations.dtype)
    return full.at[remaining[:, None], remaining[None, :]].set(correlations)
