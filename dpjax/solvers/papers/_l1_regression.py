"""Private l1 regression: a selection among public candidates (paper 000).

The score is the sum of truncated losses, which `_l1_scores` computes.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._sharding import by_device, check_key_of_rows, psum, row_axes
from dpjax._tree import linear_data
from dpjax._types import ArrayLike, Key, PyTree, Scalar
from dpjax.accounting import PrivacyGuarantee, selection_event
from dpjax.mechanisms import permute_and_flip
from dpjax.solvers.papers._l1_scores import FixedPoint, chunk_scores, row_blocks
from dpjax.solvers.training._solution import Solution

_MOST_SAMPLES, _MOST_CANDIDATES = 2**24, 2**30
_CHUNK_SIZE = 4096


def dp_l1_regression(
    features: ArrayLike,
    targets: ArrayLike,
    *,
    key: Key,
    epsilon: float,
    candidates: ArrayLike,
    truncation: Scalar | None = None,
    moment_order: float = 2.0,
    residual_moment_bound: float = 1.0,
    failure_prob: float = 0.01,
    chunk_size: int | None = None,
) -> Solution:
    """Chooses a candidate w with a small mean of |y - <x, w>|, by truncated losses.

    L(w) = 1/(n iota) sum_i psi(iota |y_i - <x_i, w>|), and with z1 = min(z, 1) and
    moment order theta, psi(z) = -log(1 - z1 + z1^theta / theta), from 0 to log(theta).

    Permute-and-flip chooses by the scores -n iota epsilon L(w) / (2 log theta). With
    theta = 2 this is Algorithm 1 of paper 000, with theta below 2 Algorithm 2.

    Args:
        features: x, shape (n, d), floating point; n is public, below 2^24.
        targets: y, shape (n,), floating point.
        key: a typed key.
        epsilon: privacy parameter, positive.
        candidates: shape (N, d), floating point, N >= 2, chosen without the data: any
            array, or one from `dpjax.constraints.grid_net` or `halton_net`.
        truncation: iota > 0; the loss is constant for residuals above 1 / iota. By
            default the minimizer of the risk bound below.
        moment_order: theta in (1, 2]; scoring is about five times faster at 2.
        residual_moment_bound: a public bound M on E|y - <x, w>|^theta, for all
            candidates w. Privacy holds even if the bound is wrong.
        failure_prob: the probability with which risk_bound may fail.
        chunk_size: number of candidates scored at once. It changes speed, memory and
            the noise of a candidate, but not the distribution of the result.

    Returns:
        A `Solution` whose params are one candidate, shape (d,). Its stats hold
        truncation, num_candidates, num_chunks, sensitivity_slack (the factor on the
        sensitivity that covers rounding) and risk_bound: for i.i.d. records, with
        probability 1 - failure_prob, E|y - <x, w>| at params exceeds that at the best
        candidate by at most this. If the candidates are a zeta-net of a set, add
        zeta E||x||_2 for the best point of the set.

    Privacy:
        epsilon-DP under replace-one, for every input; a residual that is NaN counts as
        truncated. Because 0 <= psi <= log(theta), a replaced record moves a score -L by
        at most D = log(theta) / (n iota), and the changes of two scores differ by at
        most 2D, which is the sensitivity range. The paper's proof uses 2D for D; its
        algorithms divide by D for the range, and are 2 epsilon-DP.

        This holds for float32 scores: `FixedPoint` gives the proof. It assumes that the
        same compiled program runs on both neighbors. Candidates, truncation and all
        other arguments must not depend on the data.

    Utility:
        risk_bound = 2 M iota^(theta-1) / theta
        + ((1 + 2 U / epsilon) log(3N/eta) + log(3/eta)) / (n iota): Lemma 4 (7) for all
        candidates, Lemma 5 (8) for the best one, and Pr[score < max - 2t/epsilon] <=
        N exp(-t) for the choice, each with eta/3. Here U is log(theta) times the slack.
        (14) and (26) are larger, because they use the empirical optimum of the whole
        set. Rounding of scores is ignored.

    Example:
        >>> import jax, numpy as np
        >>> from dpjax.constraints import Box, grid_net
        >>> rng = np.random.default_rng(0)
        >>> features = rng.normal(size=(5_000, 2)).astype("float32")
        >>> noise = rng.standard_t(1.5, 5_000)
        >>> targets = features @ np.array([0.5, -0.3]) + noise
        >>> net = grid_net(Box(-1.0, 1.0), 2, radius=0.1)
        >>> solution = dp_l1_regression(features, targets, key=jax.random.key(2),
        ...                             epsilon=1.0, candidates=net, truncation=0.3)
        >>> print(solution.params.round(1))
        [ 0.5 -0.3]
        >>> print(solution.privacy)
        Replacing any one of the 5,000 records changes the probability of any event
        to at most e^1 = 2.72 times what it was.

    Reference:
        Wang, Xu (2022), "Differentially private l1-norm linear regression with
        heavy-tailed data", Algorithms 1 and 2, equations (2), (6), (16). Mechanism:
        McKenna, Sheldon (2020).
    """
    _validate.positive(
        epsilon=epsilon,
        residual_moment_bound=residual_moment_bound,
        moment_order=moment_order,
    )
    _validate.probability(failure_prob=failure_prob)
    check_key_of_rows(key, (features, targets))
    _validate.require(1 < moment_order <= 2, "moment_order", moment_order, "in (1, 2]")
    features, targets, candidates = _arrays(features, targets, candidates)
    num_samples, num_candidates = features.shape[0], candidates.shape[0]
    chunk_size = _CHUNK_SIZE if chunk_size is None else chunk_size
    _validate.count(chunk_size=chunk_size)
    chunk_size = min(chunk_size, num_candidates)

    fixed_point = FixedPoint.of(num_samples, moment_order)
    theory = _Theory(
        moment_order=moment_order,
        moment_bound=residual_moment_bound,
        num_samples=num_samples,
        num_candidates=num_candidates,
        failure_prob=failure_prob,
    )
    bias, deviation = theory.risk_terms(fixed_point.unit / epsilon)
    if truncation is None:
        truncation = theory.best_truncation(bias, deviation)
    _validate.positive(truncation=truncation)

    params = _choose(
        _Static(
            fixed_point,
            chunk_size,
            row_axes((features, targets), None),
            row_axes(candidates, None),
        ),
        key,
        features,
        targets,
        candidates,
        truncation,
        epsilon,
    )
    privacy = PrivacyGuarantee.of(
        epsilon,
        0.0,
        dp_event=selection_event(epsilon, mechanism="permute_and_flip"),
        num_samples=num_samples,
    )
    stats = {
        "truncation": truncation,
        "num_candidates": num_candidates,
        "num_chunks": -(-num_candidates // chunk_size),
        "sensitivity_slack": fixed_point.unit / math.log(moment_order),
        "risk_bound": bias * truncation ** (moment_order - 1) + deviation / truncation,
    }
    return Solution(params, privacy, stats)


class _Theory(NamedTuple):
    """Bounds A iota^(theta - 1) + B / iota on the excess risk."""

    moment_order: float
    moment_bound: float
    num_samples: int
    num_candidates: int
    failure_prob: float

    def risk_terms(self, sharpness: float) -> tuple[float, float]:
        """Returns A and B of the proven bound; sharpness is U / epsilon."""
        bias = 2 * self.moment_bound / self.moment_order
        log_term = math.log(3 / self.failure_prob)
        every = log_term + math.log(self.num_candidates)
        return bias, ((1 + 2 * sharpness) * every + log_term) / self.num_samples

    def best_truncation(self, bias: float, deviation: float) -> float:
        """Returns the iota where (theta - 1) A iota^(theta - 2) = B / iota^2."""
        order = self.moment_order
        return (deviation / ((order - 1) * bias)) ** (1 / order)


class _Static(NamedTuple):
    """The static arguments of a call."""

    fixed_point: FixedPoint
    chunk_size: int
    record_axes: tuple[str, ...]
    candidate_axes: tuple[str, ...]


@partial(jax.jit, static_argnums=0)
def _choose(
    static: _Static,
    key: Key,
    features: jax.Array,
    targets: jax.Array,
    candidates: jax.Array,
    truncation: Scalar,
    epsilon: Scalar,
) -> jax.Array:
    """Chooses a candidate; records and candidates may both be sharded."""
    axes, size = static.candidate_axes, static.chunk_size

    def among(replicated: PyTree, candidates: jax.Array) -> tuple[jax.Array, tuple[()]]:
        (key, _, epsilon), blocks = replicated
        num_candidates = len(candidates)
        num_chunks = -(-num_candidates // size)
        padding = num_chunks * size - num_candidates
        columns = jnp.pad(candidates.T.astype(features.dtype), ((0, 0), (0, padding)))

        def score_chunk(index: jax.Array) -> jax.Array:
            start = index * size
            chunk = jax.lax.dynamic_slice_in_dim(columns, start, size, axis=1)
            scores = chunk_scores(blocks, chunk, static.fixed_point, static.record_axes)
            is_padding = start + jnp.arange(size, dtype="int32") >= num_candidates
            return jnp.where(is_padding, -jnp.inf, scores)

        index = permute_and_flip(
            key,
            score_chunk,
            epsilon=epsilon,
            sensitivity_range=2.0,  # in units U / (n iota) of the loss
            num_chunks=num_chunks,
            axis_name=axes or None,
        )
        if not axes:
            return candidates[index], ()
        index -= jax.lax.axis_index(axes) * num_chunks * size
        is_here = (index >= 0) & (index < num_candidates)
        chosen = jnp.where(is_here, candidates[jnp.where(is_here, index, 0)], 0)
        return psum(chosen, axes), ()

    def on_records(replicated: PyTree, data: PyTree) -> tuple[jax.Array, tuple[()]]:
        numbers, candidates = replicated
        _, truncation, _ = numbers
        features, targets = data
        blocks = row_blocks(features, targets, truncation, static.fixed_point)
        return by_device(among, axes, (numbers, blocks), candidates)

    replicated = (key, truncation, epsilon), candidates
    return by_device(on_records, static.record_axes, replicated, (features, targets))[0]


def _arrays(
    features: ArrayLike, targets: ArrayLike, candidates: ArrayLike
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns checked arrays; the data in float64 if one of them is."""
    x, y = linear_data(features, targets)
    _validate.require(
        len(x) < _MOST_SAMPLES, "features", x.shape, "of fewer than 2^24 rows"
    )
    w = jnp.asarray(candidates)
    _validate.require(
        w.ndim == 2
        and jnp.issubdtype(w.dtype, jnp.floating)
        and 2 <= len(w) < _MOST_CANDIDATES
        and w.shape[1] == x.shape[1],
        "candidates",
        jax.ShapeDtypeStruct(w.shape, w.dtype),
        f"floats of shape (N, {x.shape[1]}) with 2 to 2^30 - 1 rows",
    )
    if w.dtype == jnp.float64:
        x, y = x.astype(w.dtype), y.astype(w.dtype)
    return x, y, w
