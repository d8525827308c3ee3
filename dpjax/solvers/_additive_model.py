"""A sum of curves of columns, from data and a budget, without hyperparameters."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _keys, _validate
from dpjax._sharding import row_axes
from dpjax._types import ArrayLike, Key, Scalar
from dpjax.accounting import PrivacyGuarantee
from dpjax.losses import LinearLoss
from dpjax.losses._shared import Huber, named
from dpjax.solvers._calibration import check_noise
from dpjax.solvers._curves import Curves, hats
from dpjax.solvers._gain import SHARES, Threshold, is_seen, released_gain
from dpjax.solvers._loop import Execution, check_execution
from dpjax.solvers._solution import Solution
from dpjax.solvers.linear._kind import Examples, ModelKind, bounded
from dpjax.solvers.linear._model import (
    cleaned,
    column_index,
    dp_linear_model,
    noise_of,
    per_record,
    records_of,
)

_COARSE = (-2.0, 0.0, 2.0)
_FINE = (-4.0, -2.0, -1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
# The units of lines and hat functions. Steps that are equal in all weights move a
# function by the square of its unit.
_LINE, _HEIGHT = 0.5, 2.0
_TAIL = 0.05  # of lines beyond the fine knots, in models of labels


class Rule(NamedTuple):
    """When columns bend, of a loss.

    Attributes:
        records: what coarse and fine knots need: so many records for each weight of
            the model and each unit of the noise multiplier.
        tail: the unit of lines beyond the fine knots. If it is small, far tails take
            less of what clipping leaves of a record, but are fitted later.
        threshold: which gain is enough, where it is released.
        bends_unseen: whether they bend where the noise would hide the gain.
    """

    records: tuple[float, float]
    tail: float
    threshold: Threshold
    bends_unseen: bool

    @classmethod
    def of(cls, loss: LinearLoss) -> "Rule":
        """Returns that of a loss.

        Labels bound what a record says. Other targets may be nearly all noise, with
        heavy tails, which curves follow sooner than lines do.
        """
        if loss.num_outputs > 1 or loss.target_range == (-1.0, 1.0):
            threshold = Threshold(2.0, 4e-4)
            return cls((8.0, 12.0), _TAIL, threshold, bends_unseen=True)
        threshold = Threshold(5.0, math.inf)
        return cls((60.0, 25.0), _LINE, threshold, bends_unseen=False)

    def knots(
        self, num_clear: float, num_columns: int, num_smooth: int
    ) -> tuple[float, ...]:
        """Returns the knots of every curve, () for a linear model.

        Args:
            num_clear: the number of records, over the noise multiplier and the number
                of outputs.
            num_columns: the number of lines.
            num_smooth: the number of columns that may bend.
        """
        coarse, fine = self.records
        for num_records, knots in ((fine, _FINE), (coarse, _COARSE)):
            num_weights = num_columns + num_smooth * (len(knots) - 1)
            if num_smooth and num_clear >= num_records * num_weights:
                return knots
        return ()


def knots_of(
    loss: LinearLoss,
    num_samples: int,
    num_columns: int,
    num_smooth: int,
    noise_multiplier: float,
) -> tuple[float, ...]:
    """Returns the knots of every curve by public numbers, () for a linear model."""
    rule, num_functions = Rule.of(loss), 2 * num_smooth * loss.num_outputs
    if not (rule.bends_unseen or is_seen(num_samples, num_functions, noise_multiplier)):
        return ()
    num_clear = num_samples / (noise_multiplier * loss.num_outputs)
    return rule.knots(num_clear, num_columns, num_smooth)


def dp_additive_model(
    loss: str | LinearLoss,
    data: tuple[ArrayLike, ArrayLike],
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
    execution: Execution = Execution(),
) -> Solution:
    """Fits a sum of functions of single columns, without hyperparameters.

    Minimises the mean of weight·loss(f(x) + offset, y). f is linear, but that each
    column of `smooth` also adds a function of its own. It is linear between public
    knots, zero at zero and constant beyond the last knots, so that it is bounded. The
    line stands beside it: a target that is linear in a heavy-tailed column, far tails
    included, is in the model. Models of labels prefer flatter tails where they bend.

    These functions are sums of hat functions, one for each knot but zero. So the model
    is linear in its weights, and `dp_linear_model` fits them to features that each
    record gives by itself. The number of knots, at most 11, follows from public
    numbers: the more weights and noise there are for the number of records, the fewer.
    At a small budget there are none, and the model is the linear one.

    Whether columns bend at all is a private choice, because curves that gain nothing
    cost more than lines. A linear model gets a twentieth of the budget. A noisy mean of
    its slopes times bends of all columns, with 6.5 per cent, says what curves would
    gain. If that is enough all columns of `smooth` bend, else none, and the rest fits
    the model. Where the noise would hide the gain (a public rule) there is no such
    test: models of labels bend, others do not. Targets that are no labels need more
    records and a larger gain, because they may be nearly all noise.

    Curves have no bands, because noise hides what neighbouring knots differ in. Of
    three curves with 11 knots, 20,000 records and epsilon 1, it hides 12 of 34
    directions, and no band would be finite; with 100,000 records some would be, 7 times
    as wide as without privacy.

    Args:
        loss: as of `dp_linear_model`.
        data: (features, targets), shapes (n, d) and (n,); n is public. The columns of
            `smooth` should be in public units: zero a usual value, and most values
            within ±2. NaN counts as zero. Targets as of `dp_linear_model`.
        key: a typed key.
        epsilon: privacy of all that is released, positive.
        delta: privacy of all that is released, in (0, 1).
        noise_multiplier: in place of epsilon, as of `dp_linear_model`.
        smooth: the public indices of the columns that may bend. A column of two values
            needs no more than its line.
        intercept: the public index of a column of ones, whose values are not read, or
            None.
        offsets: as of `dp_linear_model`.
        weights: as of `dp_linear_model`.
        max_weight: as of `dp_linear_model`.
        execution: as of `dp_linear_model`; callback and checkpoint are of the last fit.
            Under jit or vmap there is no callback where a choice is made, because both
            models are then computed.

    Returns:
        A `Solution`, which has `predict` and `shapes`, the curve of each column. Its
        params are `Curves`, with heights of zero where no column bends. Its stats are
        those of the last `dp_linear_model`, for the features of lines and hat
        functions; shares count the choice. Where one was made also gain, what was
        released, in squares of a clip norm.

    Raises:
        ValueError: where an argument is out of its range, or shapes do not fit; before
            the choice, never because of the values of the data.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input, stats and all iterates
        included. Features of a record are a function of this record alone, and knots
        follow from public numbers. Two models and the choice are adaptive Gaussian
        mechanisms; together they cost exactly as much as the one of
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
        explainable boosting. The choice: Rao (1948), Large sample tests of statistical
        hypotheses. The fit: as of `dp_linear_model`.
    """
    model = named(loss)
    check_noise(epsilon, delta, noise_multiplier)
    total, epsilon, event = noise_of(epsilon, delta, noise_multiplier)
    _validate.typed_key(key)
    features, targets = records_of(data)
    num_samples, num_columns = features.shape
    column = None
    if intercept is not None:
        column = column_index("intercept", intercept, num_columns)
    bent = _smooth(smooth, num_columns, column)
    knots = knots_of(model, num_samples, num_columns, len(bent), total)
    tail = Rule.of(model).tail if knots == _FINE else _LINE

    def fit(key: Key, knots: tuple[float, ...], share: float, execution: Execution):
        return dp_linear_model(
            model,
            (_expanded(features, bent, knots, tail), targets),
            key=key,
            delta=delta,
            noise_multiplier=total / math.sqrt(share),
            intercept=column,
            offsets=offsets,
            weights=weights,
            max_weight=max_weight,
            execution=execution,
        )

    def curves(solution: Solution, has_bends: bool) -> Curves:
        unit = tail if has_bends else None
        return _curves(solution.params, num_columns, bent, unit, knots, column)

    privacy = PrivacyGuarantee.of(
        epsilon, delta, dp_event=event, num_samples=num_samples
    )
    num_functions = 2 * len(bent) * model.num_outputs
    if not (knots and is_seen(num_samples, num_functions, total)):
        solution = fit(key, knots, 1.0, execution)
        return Solution(curves(solution, bool(knots)), privacy, solution.stats)

    check_execution(execution)
    first_key, gain_key, key = _keys.split(key, 3)
    without = Execution(microbatch_size=execution.microbatch_size)
    first = fit(first_key, (), SHARES["first_fit"], without)
    kind = ModelKind(
        model,
        has_intercept=column is not None,
        has_weights=weights is not None,
        has_exposures=False,
        axis_name=row_axes(features, None) or None,
    )
    records = Examples(
        features,
        targets,
        per_record("offsets", offsets, targets, 0.0),
        per_record("weights", weights, targets, 1.0),
    )
    gain = released_gain(
        *_residual_problem(kind, bent, column, records, max_weight, first),
        key=gain_key,
        noise_multiplier=total,
    )
    is_enough = gain > Rule.of(model).threshold.of(num_samples, total)
    rest = 1 - math.fsum(SHARES.values())

    def final(key: Key, has_bends: bool) -> tuple[Curves, dict[str, Any]]:
        solution = fit(key, knots if has_bends else (), rest, execution)
        stats: dict[str, Any] = solution.stats
        shares = {name: rest * share for name, share in stats["shares"].items()}
        own = {"noise_multiplier": total, "shares": SHARES | shares}
        return curves(solution, has_bends), stats | own | {"gain": gain}

    if _validate.is_concrete(is_enough):
        params, stats = final(key, bool(is_enough))
        return Solution(params, privacy, stats)
    _validate.require(
        execution.callback is None,
        "execution",
        execution,
        "without a callback under jit or vmap, where a release says what is fitted",
    )
    # Only one of the two is released, so that their noise may be the same.
    straight, bending = final(jax.random.clone(key), False), final(key, True)
    params, stats = jax.tree.map(partial(jnp.where, is_enough), bending, straight)
    return Solution(params, privacy, stats)


def _residual_problem(
    kind: ModelKind,
    smooth: tuple[int, ...],
    intercept: int | None,
    records: Examples,
    max_weight: Scalar,
    first: Solution,
) -> tuple[ModelKind, Examples, jax.Array]:
    """Returns the kind, the columns that may bend, and a linear model's predictions."""
    examples = cleaned(kind.loss, None, records, max_weight)
    params, features = first.params, examples.features
    predictions = _lines(features, params, intercept)
    if isinstance(kind.loss, Huber) and kind.loss.in_scales:
        # Of residuals in their scale.
        scale = first.stats["residual_scale"]
        predictions, (targets, offsets) = (
            predictions / scale,
            (examples.targets / scale, examples.offsets / scale),
        )
        examples = examples._replace(targets=targets, offsets=offsets)
    bending = examples.features[:, jnp.asarray(smooth)]
    return kind, examples._replace(features=bending), predictions


@partial(jax.jit, static_argnums=2)
def _lines(features: jax.Array, weights: jax.Array, intercept: int | None) -> jax.Array:
    """Returns the predictions of a linear model."""
    if intercept is not None:
        features = features.at[:, intercept].set(1.0)
    return jnp.matmul(features, weights, precision=jax.lax.Precision.HIGHEST)


def _smooth(
    smooth: Sequence[int], num_columns: int, intercept: int | None
) -> tuple[int, ...]:
    """Returns the indices of columns that may bend, from zero on."""
    _validate.require(
        isinstance(smooth, Sequence | np.ndarray) and not isinstance(smooth, str),
        "smooth",
        smooth,
        "a sequence of indices of columns",
    )
    bent = tuple(column_index("smooth", index, num_columns) for index in smooth)
    _validate.require(
        len(set(bent)) == len(bent) and intercept not in bent,
        "smooth",
        smooth,
        "of different columns, without the intercept's",
    )
    return bent


@partial(jax.jit, static_argnums=(1, 2, 3))
def _expanded(
    features: jax.Array, smooth: tuple[int, ...], knots: tuple[float, ...], tail: float
) -> jax.Array:
    """Returns lines and hat functions of the features, each record by itself.

    Lines have another unit beyond the last knots. With the hat functions they still
    add up to straight lines.
    """
    if not knots:
        return features
    columns = jnp.asarray(smooth)
    values = bounded(features[:, columns])
    heights = _HEIGHT * hats(values, knots)
    heights = jnp.delete(heights, knots.index(0.0), axis=-1)
    lines = tail * values + (_LINE - tail) * jnp.clip(values, knots[0], knots[-1])
    lines = features.at[:, columns].set(lines)
    return jnp.concatenate([lines, heights.reshape(len(features), -1)], axis=1)


@partial(jax.jit, static_argnums=(1, 2, 3, 4, 5))
def _curves(
    weights: jax.Array,
    num_columns: int,
    smooth: tuple[int, ...],
    tail: float | None,
    knots: tuple[float, ...],
    intercept: int | None,
) -> Curves:
    """Returns the curves of the weights of `_expanded`; without tail, of lines."""
    slopes, outputs = weights[:num_columns], weights.shape[1:]
    if tail is None or not knots:
        heights = jnp.zeros((len(smooth), len(knots), *outputs), weights.dtype)
        return Curves(slopes, heights, knots, smooth, intercept)
    lines = slopes[jnp.asarray(smooth)]
    slopes = slopes.at[jnp.asarray(smooth)].multiply(tail)
    heights = weights[num_columns:].reshape(len(smooth), len(knots) - 1, *outputs)
    heights = jnp.insert(_HEIGHT * heights, knots.index(0.0), 0.0, axis=1)
    within = (_LINE - tail) * jnp.asarray(knots, lines.dtype)
    heights = heights + jnp.moveaxis(jnp.multiply.outer(within, lines), 0, 1)
    return Curves(slopes, heights, knots, smooth, intercept)
