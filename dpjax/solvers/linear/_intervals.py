"""Standard errors of a linear model: a fit, one noisy Newton step, and a sandwich.

With scores s = w loss'(prediction, y) and second derivatives H of the mean loss at the
fit, theta = fit - H^-1 mean(x s) has the covariance H^-1 (S / n) H^-1 for S the second
moments of x s. Here H, the mean and S are noisy, and the covariance counts that.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _keys
from dpjax._sharding import gathered
from dpjax._tree import like
from dpjax._types import Key, Scalar
from dpjax.estimators._clipping import clip_to_norm
from dpjax.losses import squared
from dpjax.solvers.linear._constant import of_rarer_class
from dpjax.solvers.linear._fit import (
    Params,
    fit,
    norms_of_rows,
    product,
    row_norms,
    whitened,
)
from dpjax.solvers.linear._kind import Examples, ModelKind, themselves
from dpjax.solvers.linear._steps import BlockClipping
from dpjax.solvers.statistics._moments import Whitening, noisy_second_moments, shrunk
from dpjax.solvers.statistics._noisy_mean import noisy_mean
from dpjax.solvers.statistics._noisy_quantile import (
    MOST_SHARE,
    Excess,
    noisy_bound,
    noisy_excess,
    num_above,
)
from dpjax.solvers.training._curves import bounded
from dpjax.solvers.training._loop import Execution

# Shares of the budget, with enough records and with few; scores have the rest: see
# `fit_with_errors`. With few records the noise of second derivatives decides.
_SHARES = {
    "fit": (0.15, 0.12),
    "row_lengths": (0.02, 0.01),
    "row_moments": (0.1, 0.05),
    "curvature_lengths": (0.02, 0.01),
    "curvatures": (0.12, 0.35),
    "score_lengths": (0.04, 0.04),
    "score_tails": (0.05, 0.03),
    "score_moments": (0.04, 0.03),
}
# Records are few if (d + 1)^1.5 noise multipliers are this share of them or more. Then
# this share of all rows is clipped, half of it in the first release: the noise falls
# more than the bias grows, which counts times the error of the fit.
_FEW, _CUT_ROWS = 0.03, 0.2
# With more records for a unit of the noise multiplier, these releases take smaller
# shares: their noise still falls as n^-1/2, and the noise of scores is what makes
# intervals wide. The fit's share falls as the root, because its squared error counts.
# With more features than `_MANY_FEATURES` the number grows as their root: the fit's
# error times the noise of second derivatives grows faster with them than the noise of
# scores.
_MANY_RECORDS, _MANY_FEATURES = 6_000, 10
# Floors of a first, rough whitening, which puts the second moments of correlated
# features above their noise: only the edge of the noise is added to eigenvalues.
_FLOORS = (1.0, 0.0)
# The noise hides eigenvalues below this multiple of the edge of its spectrum. Up to the
# second multiple intervals do not rely on asymptotics: see `fit_with_errors`.
_CLEAR, _CLEARLY = 1.1, 2.0
# Squared hidden loadings count as zero below this multiple of their noise.
_NO_LOADING = 9.0
# Fewer records for a coefficient and a unit of the noise multiplier have no interval,
# because none were measured (benchmarks/COVERAGE.md). The mean of 4,000 skewed records
# is nearly normal, and tails of the second share have a variance.
_FEWEST, _FEWEST_ASYMPTOTIC, _MOST_ASYMPTOTIC = 60, 4_000, 0.25
# All intervals are infinite if a noisy bound would clip a larger share.
_MOST_ABOVE = 0.5

_LEVEL_SHARE = 0.15  # of the scores' budget, for the score of the intercept
# Bounds of scores, over a number that few records exceed. The bound for the intercept
# is larger, because its tail may be on one side only.
_BEYOND = {"weights": 1.2, "intercept": 2.0}
# The share of usual tails that is beyond a bound, of those beyond its half: in tails of
# index 2.7, and of index 2.
_USUAL = {"weights": 0.15, "intercept": 0.25}
# With two classes these are scores that all records would have with the slope of the
# rarer one, or this share of the largest slope: noise hides how large its few are.
_LEAST_SLOPE, _BEYOND_CLASSES = 0.75, {"weights": 1.0, "intercept": 1.1}
# Of the rarer class this many are clipped for a unit of the noise multiplier, of all at
# most a share. The last number is a factor of the budget shares of other releases.
_CUT_CLASSES, _MOST_CUT_CLASSES, _LESS_CLASSES = 11.0, 0.3, 0.88
# The bound of the weights' scores clips at least this many records: the smaller of a
# share, and a number for each multiplier and root of n. Clipping more makes less noise,
# and its bias is estimated, but not well enough for the root of many records.
_MOST_CUT, _PER_ROOT = 0.011, 0.8
# The share of the budget for second moments of users' scores that bounds them, and the
# bound over a number that few users exceed: clipping would make errors too small.
_USER_LENGTHS, _BEYOND_USERS = 0.2, 1.25
# The share of a block's budget for the part of scores beyond half of their bound.
_OUTER_SHARE = 0.6
_OUTER = "_beyond"  # suffix of the name of that part
# The relative error of the estimated bias, besides the noise of counts.
_MODEL_ERROR, _MODEL_ERROR_CLASSES = 0.25, 0.6
# Where tails of both signs are clipped, their outer parts cancel, and hide how what is
# cut depends on a feature. For a stddev of a direction it may grow by this share of its
# mean, or if less by so many times the share of records beyond half of the bound. Up to
# the last number it does not make an interval conservative.
_MOST_GROWTH, _GROWTH, _ASYMPTOTIC_GROWTH = 0.5, 3.0, 0.15
_clipped = jax.vmap(clip_to_norm, (0, None))  # clips each row to one norm


def _shares(
    shape: tuple[int, ...], noise_multiplier: float, has_two_classes: bool = False
) -> dict[str, float]:
    """Returns the shares of the budget, which add up to 1, from public numbers."""
    num_samples, num_features = shape
    many = _MANY_RECORDS * math.sqrt(max(1, num_features / _MANY_FEATURES))
    less = min(1.0, many * noise_multiplier / num_samples)
    less *= _LESS_CLASSES if has_two_classes else 1.0
    few = _few(shape, noise_multiplier)
    shares = {
        name: less * ((1 - few) * usual + few * at_few)
        for name, (usual, at_few) in _SHARES.items()
    }
    shares["fit"] /= math.sqrt(less)
    return shares | {"scores": 1 - math.fsum(shares.values())}


def _few(shape: tuple[int, ...], noise_multiplier: float) -> float:
    """Returns how few the records are for the noise, from 0 to 1, by public numbers."""
    num_samples, num_features = shape
    noise = (num_features + 1) ** 1.5 * noise_multiplier
    return min(1.0, noise / (_FEW * num_samples))


class Curvatures(NamedTuple):
    """Holds directions in which the released Hessian is the identity.

    A direction is hidden if its second derivative is not clear of the noise. With an
    intercept the last direction is the level, the intercept for centered rows.
    """

    root: jax.Array  # (k, k): columns of curvature 1, zeros if hidden
    caution: jax.Array  # (k,): factors of columns for curvatures less the stddev
    hidden: jax.Array  # (k, k): hidden directions in these columns, else zeros
    num_hidden: jax.Array  # the number of hidden directions
    error: jax.Array  # edge of the noise, over the least curvature that is not hidden
    stddev: jax.Array  # of the noise on the diagonal


class Scores(NamedTuple):
    """Holds means and moments of gradients (scores) in directions of `Curvatures`."""

    moments: jax.Array  # (k, k), noisy second moments
    noise: Scalar  # the stddev of the noise on their diagonal
    mean: jax.Array  # (k,), corrected by an estimate of the bias of clipping
    stddev: jax.Array  # (k,), of the mean's noise
    bias: jax.Array  # (any, k), vectors: the covariance of the bias is bias^T bias
    units: jax.Array  # (k,), by which to multiply the mean and its errors
    tail_share: jax.Array  # the larger one of the blocks': see `Excess`
    growth: Scalar  # of what is cut, by a stddev of a direction


def fit_with_errors(
    kind: ModelKind,  # the static description of the model
    examples: Examples,  # features, targets, offsets, weights
    *,
    key: Key,
    noise_multiplier: float,  # of all releases together
    execution: Execution,  # microbatches, callback, checkpoint
) -> tuple[Params, Params, jax.Array, dict[str, Any]]:
    """Releases weights and intercept, their standard errors, correlations, and stats.

    Confidence intervals follow from these. Correlations (k, k) are of the errors, with
    the weights before the intercept.

    1. A bound of row norms, and second moments of rows, give coordinates z. If features
       are correlated, noise hides fewer directions of the Hessian H in z.
    2. A fit in z is the first estimate.
    3. H is the second moments of rows times the root of the loss's second derivative,
       clipped. Directions of curvature up to 1.1 times the noise's largest eigenvalue
       are hidden: they are left out.
    4. Scores (records' gradients) in the other directions, in which H is the identity,
       and for the intercept get bounds, with noisy counts of scores near and above.
    5. The mean of clipped scores is corrected by an estimate of the bias of clipping; S
       is the second moments of the corrected scores, or of their means by user, because
       the scores of a user may depend on each other. S / n is then over users.
    6. If more is cut on one side, which scores of the intercept show, the bias may have
       a part in each direction, and errors count it: see `_MOST_GROWTH`.

    The step is H^-1 times the mean. The covariance adds to H^-1 (S / n) H^-1 the
    covariances by noise of the mean, by noise of H, and of the estimated bias. All are
    computed from released numbers. The part by noise of H takes curvatures as lower by
    one standard deviation, so that it grows towards hidden directions.

    The stats say whether errors rest on asymptotics: not if n is below 4,000, if the
    edge of the noise of H is above half of a curvature that is not hidden
    (`curvature_error`), if the tail of scores may have no variance (`tail_share`), or
    if 5 percent of the scores are beyond C / 2 and are not of two classes.

    Privacy:
        One Gaussian mechanism of the noise multiplier under replace-one: four noisy
        bounds, two pairs of noisy counts, three noisy second moments, a fit, and a mean
        of sensitivity 2 / n in units of its bounds. Without an intercept there is one
        bound and one pair less. All else is a function of released numbers. With users
        of k rows, one Gaussian mechanism of noise_multiplier / k if a user is replaced:
        a bound and second moments of users have this multiplier, and the k rows of a
        user move all other releases by at most k sensitivities.
    """
    num_samples = len(examples.targets)
    num_users = num_samples // kind.user_size
    shape = examples.features.shape
    shares = _shares(shape, noise_multiplier, kind.has_two_classes)
    multipliers = {
        name: noise_multiplier / math.sqrt(share) for name, share in shares.items()
    }
    start_key, fit_key, curvature_key, *score_keys = _keys.split(key, 5)
    row_keys, curvature_keys = _keys.split(start_key), _keys.split(curvature_key)

    num_cut = _CUT_ROWS * _few(shape, noise_multiplier) * num_samples

    def bound_of(norms: jax.Array, key: Key, name: str, least: float) -> jax.Array:
        how = {"noise_multiplier": multipliers[name], "least": least}
        return noisy_bound(key, gathered(norms), **how)

    norms = norms_of_rows(kind, examples)
    radius = bound_of(norms, row_keys[0], "row_lengths", num_cut / 2)
    release = kind, examples, radius, row_keys[1], multipliers["row_moments"]
    white, z = whitened(*release, floors=_FLOORS)
    examples = examples._replace(features=bounded(z))
    del z  # frees memory
    kind = kind._replace(basis=themselves)
    how = {"noise_multiplier": multipliers["fit"], "execution": execution}
    first, fit_stats = fit(kind, examples, key=fit_key, **how)
    # With a Huber loss in scales, all numbers below are in units of the scale.
    unit = fit_stats.get("residual_scale", jnp.ones((), examples.targets.dtype))
    first, rows, slopes = _linearized(kind, examples, first, unit)
    radius = bound_of(row_norms(rows), curvature_keys[0], "curvature_lengths", num_cut)
    release = rows, radius, multipliers["curvatures"], kind.axis_name
    moments, noise = noisy_second_moments(curvature_keys[1], *release)
    curvatures = _curvatures(kind.has_intercept, moments, noise)
    largest, share = kind.loss.derivative_bound, 0.5
    if kind.has_two_classes and kind.has_intercept:
        slope, share = of_rarer_class(kind, fit_stats["constant"])
        largest = jnp.maximum(slope, _LEAST_SLOPE * largest)
    samples, sizes = _scores(kind, examples, slopes, curvatures.root, largest)
    scores = released_scores(kind, samples, sizes, share, score_keys, multipliers)
    args = kind, num_users, white, unit, first, curvatures, scores
    params, *errors, correlations, of_noise = _newton_step(*args)
    many_above = num_above(multipliers["row_lengths"]) > _MOST_ABOVE * num_samples
    least = _FEWEST * len(correlations) * max(1.0, noise_multiplier / kind.user_size)
    if many_above or num_users < least:
        errors = jax.tree.map(lambda x: jnp.full_like(x, jnp.inf), errors)
        correlations = of_noise = jnp.eye(len(correlations), dtype=correlations.dtype)
    is_certain = curvatures.error <= 1 / _CLEARLY
    is_certain = is_certain & (scores.tail_share <= _MOST_ASYMPTOTIC)
    is_certain = is_certain & (scores.growth <= _ASYMPTOTIC_GROWTH)
    fit_share = shares.pop("fit")
    within = {x: fit_share * share for x, share in fit_stats["shares"].items()}
    stats = fit_stats | {
        "noise_multiplier": noise_multiplier,
        "shares": shares | within,
        "num_hidden": curvatures.num_hidden,
        "curvature_error": curvatures.error,
        "tail_share": scores.tail_share,
        "is_asymptotic": is_certain & (num_users >= _FEWEST_ASYMPTOTIC),
        "noise_errors": errors[1],
        "noise_correlations": of_noise,
    }
    return params, errors[0], correlations, stats


@partial(jax.jit, static_argnums=0)
def _linearized(
    kind: ModelKind, examples: Examples, params: Params, unit: Scalar
) -> tuple[Params, jax.Array, jax.Array]:  # params, rows (n, k), slopes (n,)
    """Returns params over `unit`, and rows and slopes for a Newton step from there.

    Rows are features, and 1 for an intercept, times the root of the weighted second
    derivative over its bound: their second moments are the Hessian in this unit. Slopes
    are weighted derivatives. `unit` is the residuals' scale with a Huber loss, else 1.
    """
    z, targets, offsets, weights = examples
    params = {name: x / unit for name, x in params.items()}
    predictions = product(z, params["weights"]) + params.get("intercept", 0.0)
    predictions += bounded(offsets / unit)
    targets = bounded(targets / unit)
    slopes = weights * kind.loss.derivative(predictions, targets)
    curvatures = weights * kind.loss.curvature(predictions, targets)
    if kind.has_intercept:
        z = jnp.concatenate([z, jnp.ones_like(z[:, :1])], axis=1)
    roots = jnp.sqrt(curvatures / kind.loss.curvature_bound)
    return params, z * roots[:, None], slopes


@partial(jax.jit, static_argnums=0)
def _curvatures(has_intercept: bool, moments: jax.Array, stddev: Scalar) -> Curvatures:
    """Returns eigenvectors of the Hessian, scaled so that it is the identity in them.

    `moments` (k, k) are the released Hessian, with noise of `stddev` on the diagonal.
    A Newton step leaves out eigenvectors with eigenvalues that may be noise: they are
    zeros, and in `hidden` instead. The last column is for an intercept, rows centered.
    """
    stddev = jnp.asarray(stddev, moments.dtype)
    edge = math.sqrt(2 * len(moments)) * stddev  # the noise's largest eigenvalue
    least = _CLEAR * edge
    if not has_intercept:
        root, caution, hidden, number, smallest = _directions(moments, least, stddev)
        return Curvatures(root, caution, hidden, number, edge / smallest, stddev)
    # The level is the last direction. The other directions are found for centered rows.
    level, means = moments[-1, -1], moments[:-1, -1]
    is_clear = (level > least).astype(level.dtype)
    level = jnp.maximum(level, least)
    center = means / level
    inner = moments[:-1, :-1] - level * jnp.outer(center, center)
    root, caution, hidden, num_hidden, smallest = _directions(inner, least, stddev)
    root = _with_level(root, -center @ root, is_clear / jnp.sqrt(level))
    hidden = _with_level(hidden, -center @ hidden, 1 - is_clear)
    caution = jnp.append(caution, jnp.sqrt(level / (level - stddev)))
    num_hidden, error = num_hidden + 1 - is_clear, edge / jnp.minimum(smallest, level)
    return Curvatures(root, caution, hidden, num_hidden, error, stddev)


def _with_level(inner: jax.Array, row: jax.Array, corner: Scalar) -> jax.Array:
    """Returns `inner` with the last row, and a last column of zeros and the corner."""
    size = len(inner)
    padded = jnp.pad(inner, ((0, 1), (0, 1)))
    return padded.at[size, :size].set(row).at[size, size].set(corner)


def _directions(
    moments: jax.Array, least: jax.Array, stddev: jax.Array
) -> tuple[jax.Array, ...]:
    """Returns eigenvectors for `Curvatures`, and the least eigenvalue of clear ones.

    They are vectors v with v^T moments v = 1 and their factors, hidden ones, and the
    number of these.
    """
    # Eigenvectors with eigenvalues up to `least`, which may be noise, are hidden:
    # columns of norm 1 of the second matrix, zeros in the first.
    values, vectors = jnp.linalg.eigh(moments)
    is_clear = values > least
    values = jnp.maximum(values, least)
    scale = jnp.where(is_clear, jnp.sqrt(1 / values), 0.0)
    hidden = jnp.where(is_clear[None, :], 0.0, vectors)
    caution = jnp.sqrt(values / (values - stddev))
    num_hidden = jnp.sum(~is_clear, dtype=values.dtype)
    smallest = jnp.min(jnp.where(is_clear, values, jnp.inf))
    return vectors * scale[None, :], caution, hidden, num_hidden, smallest


@partial(jax.jit, static_argnums=0)
def _scores(
    kind: ModelKind,
    examples: Examples,
    slopes: jax.Array,
    root: jax.Array,
    largest: Scalar,  # the slope of the rarer class
) -> tuple[Params, Params]:
    """Returns each record's gradient along the columns of `root`, for a Newton step.

    They are features z times slopes (derivatives of the loss), in two blocks: weights
    (n, d), and (n, 1) for the intercept. The Hessian is the identity along `root`. Next
    are sizes (n,) to bound each block: norms, with two classes those of the rarer one.
    """
    if kind.has_intercept:
        z = product(examples.features, root[:-1, :-1]) + root[-1:, :-1]
        along = {"weights": z, "intercept": jnp.full_like(z[:, :1], root[-1, -1])}
    else:
        along = {"weights": product(examples.features, root)}
    samples = {name: slopes[:, None] * x for name, x in along.items()}
    if not kind.has_two_classes:
        return samples, {name: row_norms(x) for name, x in samples.items()}
    slope_of = {"weights": largest, "intercept": kind.loss.derivative_bound}
    norms = {name: examples.weights * row_norms(x) for name, x in along.items()}
    return samples, {name: like(slope_of[name], x) * x for name, x in norms.items()}


@partial(jax.jit, static_argnums=(0, 1))
def _newton_step(
    kind: ModelKind,  # the static description of the model
    num_users: int,  # of independent scores
    white: Whitening,  # from features to the coordinates of the fit
    unit: Scalar,  # of the fit's params
    first: Params,  # params of the fit
    curvatures: Curvatures,  # directions in which the Hessian is the identity
    scores: Scores,  # means and second moments of gradients
) -> tuple[Any, ...]:
    """Returns params after a Newton step, two standard errors, correlations (k, k).

    They are in the units of the features, from released numbers. Errors and their
    correlations count sampling and all noise, then noise alone. Errors are infinite for
    params that depend on hidden directions.
    """
    root, caution, hidden, num_hidden, _, noise = curvatures
    units = scores.units / kind.loss.curvature_bound
    scale = jnp.max(units)  # so that squares neither overflow nor underflow
    start = jnp.hstack([first[x] for x in ("weights", "intercept") if x in first])
    start = start / scale
    identity = jnp.eye(len(root), dtype=root.dtype)

    slope = -root * (units / scale)[None, :]  # derivative of the step in the mean
    moments = scores.moments
    if kind.has_two_classes and kind.user_size == 1:
        # If the model holds they are the Hessian: alike on the diagonal, zero off it.
        alike = jnp.any(root != 0, axis=0)
        alike = alike.at[-1].set(False) if kind.has_intercept else alike
        moments = shrunk(moments, scores.noise, alike)[0]
    values, vectors = jnp.linalg.eigh(moments)
    spread = (vectors * jnp.maximum(values, 0)[None, :]) @ vectors.T / num_users
    noisy = jnp.diag(scores.stddev**2) + scores.bias.T @ scores.bias
    turn, doubts = jnp.zeros_like(start), jnp.zeros_like(start[None])
    if kind.has_intercept and not (kind.is_robust or kind.loss == squared):
        args = kind, first["intercept"], slope * scale, scores, spread
        slope, turn, doubts = (x / scale for x in _second_order(*args))
    step = slope @ scores.mean
    # The noise E of H, symmetric, makes H^-1 E step of the step: E[E v v^T E] for a
    # vector v is s^2 / 2 (|v|^2 + v v^T). Along hidden directions, where there is no
    # step, the error of the fit is assumed to be as large as the fit itself.
    large = slope * caution[None, :] ** 2 @ scores.mean
    cautious = root * caution[None, :]
    inverse = cautious @ cautious.T
    unseen = jnp.where(num_hidden > 0, jnp.sum(start**2), 0.0)
    doubt = (jnp.sum(large**2) + unseen) * identity + jnp.outer(large, large)
    noisy = slope @ noisy @ slope.T + inverse @ (noise**2 / 2 * doubt) @ inverse
    noisy = noisy + doubts.T @ doubts
    # In features the weights are A w, and the intercept decreases by <center, A w>.
    back = white.matrix
    if kind.has_intercept:
        back = _with_level(back, -white.center @ back, 1.0)
    params = back @ (start + step + turn)
    noisy = back @ noisy @ back.T
    covariance = back @ slope @ spread @ slope.T @ back.T + noisy
    variances = jnp.diag(covariance)
    # A hidden direction is known up to noise of about E / curvature in the clear ones.
    loadings = jnp.sum((back @ hidden) ** 2, axis=1)
    blur = jnp.sum((back @ inverse) ** 2, axis=1) * (noise**2 / 2 * num_hidden)
    is_known = (loadings <= _NO_LOADING * blur) & (variances > 0) & jnp.isfinite(params)
    is_known = is_known & (scores.tail_share <= MOST_SHARE)
    errors = jnp.where(is_known, jnp.sqrt(variances) * scale * unit, jnp.inf)
    errors = jnp.where(errors > 0, errors, jnp.inf)
    noise_errors = jnp.sqrt(jnp.clip(jnp.diag(noisy), 0, variances)) * scale * unit
    noise_errors = jnp.where(jnp.isfinite(errors), noise_errors, jnp.inf)
    params = jnp.nan_to_num(params * scale * unit)
    pairs = (covariance, errors), (noisy, noise_errors)
    correlations = [_correlations(x, y / (scale * unit)) for x, y in pairs]
    vectors = [_parts(kind, x) for x in (params, errors, noise_errors)]
    return *vectors, *correlations


def _correlations(covariance: jax.Array, errors: jax.Array) -> jax.Array:
    inverses = jnp.where(jnp.isfinite(errors) & (errors > 0), 1 / errors, 0.0)
    correlations = covariance * jnp.outer(inverses, inverses)
    return jnp.fill_diagonal(correlations, 1.0, inplace=False)


def _second_order(
    kind: ModelKind,  # the static description of the model
    level: jax.Array,  # the intercept of the fit
    slope: jax.Array,  # derivative of the Newton step in the mean
    scores: Scores,  # means and second moments of gradients
    spread: jax.Array,  # covariance of the mean by sampling
) -> tuple[jax.Array, jax.Array, jax.Array]:  # slope, change, doubts
    """Returns the slope and a change of a Newton step, to second order, and its doubts.

    The third derivative is a factor times the second: 1 with a log link, 1 - 2 p with a
    logit. So a change of the level multiplies curvatures, and the step overshoots by
    half the H-weighted mean of squared changes. Doubts (2, k) are the size of both.
    """
    factor = 1.0 if kind.loss.has_log_link else -jnp.tanh(level / 2)
    rise = slope[-1, -1] * scores.mean[-1]
    faster = jnp.clip(1 - factor * rise, 0.5, 2.0)
    slope = slope.at[:, :-1].multiply(faster)
    # Columns of the slope have an H-norm that the last one shows.
    sizes = slope[-1, -1] ** 2 * (scores.units / scores.units[-1]) ** 2
    turn = jnp.sum(sizes * scores.mean**2)
    variances = scores.stddev**2 + jnp.diag(spread)
    change = -factor / 2 * jnp.maximum(turn - jnp.sum(sizes * variances), 0.0)
    at_level = jnp.zeros_like(slope[0]).at[-1]
    inner = rise * (slope[:, :-1] @ scores.mean[:-1])
    doubts = jnp.stack([at_level.set(turn / 2), inner])
    return slope, at_level.set(jnp.clip(change, -1.0, 1.0)), doubts


def _parts(kind: ModelKind, values: jax.Array) -> Params:
    if not kind.has_intercept:
        return {"weights": values}
    return {"weights": values[:-1], "intercept": values[-1]}


def released_scores(
    kind: ModelKind,  # the static description of the model
    samples: Params,  # the blocks, (n, k) each
    sizes: Params,  # to bound them, (n,) each
    share: Scalar,  # of the rarer of two classes
    keys: list[Key],  # for bounds and counts; for the mean and the moments
    multipliers: dict[str, float],  # noise multipliers by release
) -> Scores:
    """Releases mean and second moments of gradients, for a Newton step and its errors.

    `samples` are each record's gradients (scores), in a block for weights and one for
    the intercept. Each block is clipped to a noisy bound C, and released in two parts:
    clipped to C / 2, and the remainder. With a Pareto tail from C / 2 on, clipping to C
    removes rho times the second part. Two noisy counts give rho, which corrects the
    mean, with an error that adds to the standard errors.
    """
    shares = {"weights": 1.0}
    if kind.has_intercept:
        shares = {"weights": 1 - _LEVEL_SHARE, "intercept": _LEVEL_SHARE}
    num_samples, multiplier = len(samples["weights"]), multipliers["scores"]
    clipped = min(_MOST_CUT * num_samples, _PER_ROOT * multiplier * num_samples**0.5)
    beyond, doubts = _BEYOND, (_MODEL_ERROR, _MOST_GROWTH)
    if kind.has_two_classes:
        beyond, doubts = _BEYOND_CLASSES, (_MODEL_ERROR_CLASSES, 0.0)
        clipped = _CUT_CLASSES * multiplier / share
        clipped = jnp.minimum(clipped, _MOST_CUT_CLASSES * num_samples)
    halves, excess = {}, {}
    each = math.sqrt(len(shares))
    for name, sub_key in zip(shares, _keys.split(keys[0]), strict=False):
        bound_key, tail_key = _keys.split(sub_key)
        bound = beyond[name] * noisy_bound(
            bound_key,
            gathered(sizes[name]),
            noise_multiplier=each * multipliers["score_lengths"],
            least=clipped if name == "weights" else 0.0,
        )
        halves[name] = bound / 2
        excess[name] = noisy_excess(
            tail_key,
            gathered(row_norms(samples[name])),
            bound,
            noise_multiplier=each * multipliers["score_tails"],
            usual=_USUAL[name],
            may_have_gap=not kind.has_two_classes,
        )
    mean_key, moments_key = _keys.split(keys[1])
    parts = {x: (1 - _OUTER_SHARE) * share for x, share in shares.items()}
    parts |= {x + _OUTER: _OUTER_SHARE * share for x, share in shares.items()}
    estimator = BlockClipping(
        {x: halves[x.removesuffix(_OUTER)] for x in parts}, tuple(parts.items())
    )
    samples = _in_parts(samples, halves)
    mean = noisy_mean(estimator, samples, multiplier, mean_key, kind.axis_name)
    size = sum(x.size for x in mean.values())
    noise = estimator.noise_parameters(multiplier, num_samples, size)
    parts = samples, mean, excess, halves, noise["stddev"]
    rows, *of_mean = _corrected(tuple(shares.items()), *parts, doubts)
    multiplier, axis_name = multipliers["score_moments"], kind.axis_name
    radius: Scalar = 1.0
    if kind.user_size > 1:
        users = rows.reshape(-1, kind.user_size, rows.shape[1])
        rows, axis_name = gathered(jnp.mean(users, axis=1)), None
        multiplier /= kind.user_size  # if a user is replaced
        bound_key, moments_key = _keys.split(moments_key)
        lengths = multiplier / math.sqrt(_USER_LENGTHS)
        bound = noisy_bound(bound_key, row_norms(rows), noise_multiplier=lengths)
        radius = _BEYOND_USERS * bound
        multiplier /= math.sqrt(1 - _USER_LENGTHS)
    release = rows, radius, multiplier, axis_name
    moments, noise = noisy_second_moments(moments_key, *release)
    return Scores(moments, noise, *of_mean)


@jax.jit
def _in_parts(samples: Params, halves: Params) -> Params:
    """Returns scores clipped to half of their bound, and the remainders."""
    inner = {name: _clipped(x, halves[name]) for name, x in samples.items()}
    return inner | {name + _OUTER: x - inner[name] for name, x in samples.items()}


@partial(jax.jit, static_argnums=0)
def _corrected(
    shares: tuple[tuple[str, float], ...],  # of the budget, by block
    samples: Params,  # inner and outer parts of each block
    mean: Params,  # of the parts, released
    excess: dict[str, Excess],  # how much norms exceed the bounds
    halves: Params,  # half of the bounds
    stddev: Scalar,  # of the noise of the parts
    doubts: tuple[Scalar, Scalar],  # relative errors: of the bias, and `_MOST_GROWTH`
) -> tuple[jax.Array, ...]:
    """Returns rows for second moments, and the fields of `Scores` after `noise`.

    Rows (n, k) are gradients, corrected for clipping by `excess` like the mean, and
    scaled to norms up to 1.
    """
    blocks = []
    for block, (name, share) in enumerate(shares):
        ratio, error, *_ = excess[name]
        largest = 2 + ratio  # of inner + (1 + ratio) outer, in units of the half
        to_unit = math.sqrt(share) / largest
        inner = 1 / math.sqrt((1 - _OUTER_SHARE) * share)
        outer = 1 / math.sqrt(_OUTER_SHARE * share)
        remainder = outer * mean[name + _OUTER]
        corrected = to_unit * (inner * mean[name] + (1 + ratio) * remainder)
        noise = to_unit * jnp.hypot(inner, (1 + ratio) * outer)
        noise = jnp.full_like(remainder, noise * like(stddev, noise))
        off = jnp.hypot(error, doubts[0] * ratio) * to_unit * remainder
        off = jnp.outer(jnp.eye(len(shares), dtype=off.dtype)[block], off)
        unit = jnp.full_like(remainder, halves[name] / to_unit)
        row = (1 + ratio) * _clipped(samples[name + _OUTER], halves[name])
        row = to_unit / halves[name] * (samples[name] + row)
        blocks.append((row, corrected, noise, off, unit))
    joined = (jnp.concatenate(x, axis=-1) for x in zip(*blocks, strict=True))
    rows, corrected, noise, off, unit = joined
    growth = jnp.clip(_GROWTH * excess["weights"].part, 0.0, doubts[1])
    if "intercept" in excess:
        # What is beyond half of the intercept's bound, without the part by noise.
        outer = 1 / math.sqrt(_OUTER_SHARE * dict(shares)["intercept"])
        middle = mean["intercept" + _OUTER][0]
        beyond = jnp.maximum(middle**2 - like(stddev, middle) ** 2, 0.0)
        beyond = outer * halves["intercept"] * jnp.sqrt(beyond)
        cut = growth * (1 + excess["intercept"].ratio) * beyond / unit
        off = jnp.concatenate([off, jnp.diag(cut)[:-1]])
    tail_share = jnp.max(jnp.stack([x.share for x in excess.values()]))
    return rows, corrected, noise, off, unit, tail_share, growth
