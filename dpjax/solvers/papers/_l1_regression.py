"""Private l1 regression: a selection among public candidates (paper 000).

A candidate's score is the number of records that it fits. A record counts 1 if its
residual is zero, 0 if its loss is truncated, and otherwise as psi of the paper says.
"""

import math
from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._sharding import (
    by_device,
    check_key_of_rows,
    gathered,
    psum,
    row_axes,
    varying,
    varying_axes,
)
from dpjax._tree import like, linear_data
from dpjax._types import ArrayLike, Key, PyTree, Scalar
from dpjax.accounting import PrivacyGuarantee
from dpjax.accounting._selection import selection_event
from dpjax.mechanisms import permute_and_flip
from dpjax.solvers.training._solution import Solution

_MOST_SAMPLES, _MOST_CANDIDATES = 2**24, 2**30
_CHUNK_SIZE = 4096
_BLOCK_LENGTH = 64  # products of so many factors up to 2 stay below 2^127
_BLOCKS_AT_ONCE = 64  # blocks in parallel on a device that has threads for them
_FEW_FEATURES = 8  # up to this number, fused products are faster than a matrix product

Blocks = tuple[jax.Array, jax.Array]


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

    The loss is L(w) = 1/(n iota) sum_i psi(iota |y_i - <x_i, w>|), with z1 = min(z, 1),
    moment order theta and psi(z) = -log(1 - z1 + z1^theta / theta) <= log(theta).
    Permute-and-flip chooses by the scores -n iota epsilon L(w) / (2 log theta). With
    theta = 2 this is Algorithm 1 of paper 000, with theta below 2 Algorithm 2.

    Args:
        features: x, shape (n, d), floating point; n is public, below 2^24.
        targets: y, shape (n,), floating point.
        key: a typed key.
        epsilon: privacy parameter, positive.
        candidates: shape (N, d), floating point, N >= 2, chosen without the data: any
            array, such as of `dpjax.constraints.grid_net` or `scipy.stats.qmc`.
        truncation: iota > 0, for residuals above 1 / iota; by default the best.
        moment_order: theta in (1, 2]; scoring is about five times faster at 2.
        residual_moment_bound: a public bound M on E|y - <x, w>|^theta, for all
            candidates w. Privacy holds even if the bound is wrong.
        failure_prob: the probability with which risk_bound may fail.
        chunk_size: how many candidates are scored at once, for speed and memory only.

    Returns:
        A `Solution` with one candidate as params, shape (d,). Its stats hold
        truncation, num_candidates, num_chunks, sensitivity_slack (the factor for
        rounding) and risk_bound: for i.i.d. records, with probability 1 - failure_prob,
        E|y - <x, w>| is less than risk_bound above its minimum over all candidates.

    Privacy:
        epsilon-DP under replace-one, for every input; a residual that is NaN counts as
        truncated. A replaced record moves a score by at most one unit, also in float32
        (`FixedPoint`), and a difference of scores by two. The paper's algorithms divide
        by one, and are 2 epsilon-DP. It is assumed that the same compiled program runs
        on both neighboring data sets. No argument but the data may depend on records.

    Example:
        >>> import jax, numpy as np
        >>> from dpjax.constraints import Box, grid_net
        >>> rng = np.random.default_rng(0)
        >>> features = rng.normal(size=(5_000, 2)).astype("float32")
        >>> targets = features @ np.array([0.5, -0.3]) + rng.standard_t(1.5, 5_000)
        >>> net = grid_net(Box(-1.0, 1.0), 2, radius=0.1)
        >>> solution = dp_l1_regression(features, targets, key=jax.random.key(2),
        ...                             epsilon=1.0, candidates=net, truncation=0.3)
        >>> print(solution.params.round(1))
        [ 0.5 -0.3]

    Reference:
        Wang, Xu (2022), Algorithms 1, 2, equations 2, 6, 16; McKenna, Sheldon (2020).
    """
    _validate.positive(epsilon=epsilon, residual_moment_bound=residual_moment_bound)
    _validate.positive(moment_order=moment_order)
    _validate.probability(failure_prob=failure_prob)
    check_key_of_rows(key, (features, targets))
    _validate.require(1 < moment_order <= 2, "moment_order", moment_order, "in (1, 2]")
    features, targets, candidates = _arrays(features, targets, gathered(candidates))
    num_samples, num_candidates = features.shape[0], candidates.shape[0]
    chunk_size = _CHUNK_SIZE if chunk_size is None else chunk_size
    _validate.count(chunk_size=chunk_size)
    chunk_size = min(chunk_size, num_candidates)
    fixed_point = FixedPoint.of(num_samples, moment_order)
    # The bound uses Lemma 4 (7) for all candidates, Lemma 5 (8) for the best candidate,
    # and Pr[score < max - 2t/epsilon] <= N exp(-t) for the choice, each with failure
    # probability eta/3. Except for the rounding of scores, it is
    # 2 M iota^(theta-1)/theta + ((1 + 2 U/epsilon) log(3N/eta) + log(3/eta))/(n iota).
    # The paper's bounds (14) and (26) are larger.
    log_term = math.log(3 / failure_prob)
    every = log_term + math.log(num_candidates)
    sharpness = fixed_point.unit / epsilon
    deviation = ((1 + 2 * sharpness) * every + log_term) / num_samples
    bias = 2 * residual_moment_bound / moment_order
    if truncation is None:
        # The best iota for A iota^(theta - 1) + B / iota, with A = bias, B = deviation,
        # solves (theta - 1) A iota^(theta - 2) = B / iota^2.
        ratio = deviation / ((moment_order - 1) * bias)
        truncation = cast(Scalar, ratio ** (1 / moment_order))
    _validate.positive(truncation=truncation)
    static = fixed_point, chunk_size, row_axes((features, targets), None)
    numbers = key, truncation, epsilon
    params = _choose(static, numbers, (features, targets), candidates)
    event = selection_event(epsilon, mechanism="permute_and_flip")
    stats = {
        "truncation": truncation,
        "num_candidates": num_candidates,
        "num_chunks": -(-num_candidates // chunk_size),
        "sensitivity_slack": fixed_point.unit / math.log(moment_order),
        "risk_bound": bias * truncation ** (moment_order - 1) + deviation / truncation,
    }
    privacy = PrivacyGuarantee.of(epsilon, 0.0, dp_event=event, num_samples=num_samples)
    return Solution(params, privacy, stats)


@partial(jax.jit, static_argnums=0)
def _choose(static, numbers, data, candidates) -> jax.Array:
    """Returns the candidate (d,) that permute-and-flip chooses by its fit to data."""
    # `static` has a `FixedPoint`, the chunk size, and the mesh axes over which records
    # are sharded; `numbers` has the key, truncation and epsilon.
    fixed_point, size, axes = static
    num_candidates = len(candidates)
    num_chunks = -(-num_candidates // size)
    padding = num_chunks * size - num_candidates
    columns = jnp.pad(candidates.T.astype(data[0].dtype), ((0, 0), (0, padding)))

    def on_records(replicated: PyTree, data: PyTree) -> tuple[jax.Array, tuple[()]]:
        """Returns the index of the chosen candidate; each device has its records."""
        ((key, truncation, epsilon), columns), (features, targets) = replicated, data
        blocks = row_blocks(features, targets, truncation, fixed_point)

        def score_chunk(index: jax.Array) -> jax.Array:
            start = index * size
            chunk = jax.lax.dynamic_slice_in_dim(columns, start, size, axis=1)
            scores = chunk_scores(blocks, chunk, fixed_point, axes)
            is_padding = start + jnp.arange(size, dtype="int32") >= num_candidates
            return jnp.where(is_padding, -jnp.inf, scores)

        # The range of scores is in units U / (n iota) of the loss.
        how = {"epsilon": epsilon, "sensitivity_range": 2.0, "num_chunks": num_chunks}
        return permute_and_flip(key, score_chunk, **how), ()

    return candidates[by_device(on_records, axes, (numbers, columns), data)[0]]


def _arrays(
    features: ArrayLike, targets: ArrayLike, candidates: ArrayLike
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns features (n, d), targets (n,) and candidates (N, d), or raises."""
    # The data become float64 if any of the three is; candidates must be floats.
    x, y = linear_data(features, targets)
    is_fine, rule = len(x) < _MOST_SAMPLES, "of fewer than 2^24 rows"
    _validate.require(is_fine, "features", x.shape, rule)
    w = jnp.asarray(candidates)
    is_fine = w.ndim == 2 and jnp.issubdtype(w.dtype, jnp.floating)
    is_fine = is_fine and 2 <= len(w) < _MOST_CANDIDATES and w.shape[1] == x.shape[1]
    rule = f"floats of shape (N, {x.shape[1]}) with 2 to 2^30 - 1 rows"
    kind = jax.ShapeDtypeStruct(w.shape, w.dtype)
    _validate.require(is_fine, "candidates", kind, rule)
    if w.dtype == jnp.float64:
        x, y = x.astype(w.dtype), y.astype(w.dtype)
    return x, y, w


class FixedPoint(NamedTuple):
    """Writes scores as integers, which makes their sensitivity exact.

    A score stands for sum_i log(f_i) / U, where f_i = theta exp(-psi_i) is computed
    from record i alone and clipped to [1, theta]. Records are in blocks of at most K.
    The product of a block's f_i has one logarithm, which is rounded to the integer
    q = round(2^g log(f_1 ... f_K) / U). The sum of these integers is rounded to a
    multiple of 2^(g - h) and divided by 2^g, which gives the score.

    Before it is rounded, q has an error of at most 2^g e / U with
    e = K 2^-23 + 2^-17 max(1, K log theta). This covers K roundings of a product, its
    scaling, and its logarithm, which is right to 2^-18 of the larger of itself and 1 (a
    test tries all float32 mantissas on the device where it runs). With
    U = (log(theta) + 2 e) / (1 - 2^-g) one record moves q by at most 2^g, and so any
    score, exact in float32, by at most 1 (`docs/privacy/proofs/solvers.md`, 4.5). The
    slack U / log(theta) is 1.0011 for theta = 2 and n = 100,000, and below 1.01 for
    n < 2^24 and theta >= 1.1.
    """

    moment_order: float  # theta
    unit: float  # U
    block_length: int  # K
    fine_bits: int  # g
    score_bits: int  # h

    @classmethod
    def of(cls, num_samples: int, moment_order: float) -> "FixedPoint":
        length = min(_BLOCK_LENGTH, num_samples)
        fine_bits = min(16, 31 - num_samples.bit_length())
        score_bits = min(fine_bits, 24 - num_samples.bit_length())
        log_order = math.log(moment_order)
        error = length * 2.0**-23 + 2.0**-17 * max(1.0, length * log_order)
        unit = (log_order + 2 * error) / (1 - 2.0**-fine_bits)
        return cls(moment_order, unit, length, fine_bits, score_bits)


def row_blocks(
    features: jax.Array, targets: jax.Array, truncation: Scalar, fixed_point: FixedPoint
) -> Blocks:
    """Returns rows in blocks, over which `chunk_scores` sums scores of candidates."""
    # The shapes are (steps, blocks, length, d) and (steps, blocks, length): a scan runs
    # over steps, their blocks run in parallel, and a block's product has one logarithm.
    length = fixed_point.block_length
    num_blocks = -(-targets.size // length)
    num_steps = -(-num_blocks // _BLOCKS_AT_ONCE)
    shape = (num_steps, -(-num_blocks // num_steps), length)
    padding = math.prod(shape) - targets.size
    # Padding rows have infinite residuals: they add 0.
    truncation = like(truncation, features)  # scales residuals for the truncated loss
    features = jnp.pad(features * truncation, ((0, padding), (0, 0)))
    targets = jnp.pad(targets * truncation, (0, padding), constant_values=jnp.inf)
    return features.reshape(*shape, -1), targets.reshape(shape)


def chunk_scores(
    blocks: Blocks,
    columns: jax.Array,
    fixed_point: FixedPoint,
    axes: tuple[str, ...] = (),
) -> jax.Array:
    """Returns the scores of candidates, shape (size,); a better fit has a higher score.

    A score is a sum of a number in [0, 1] for each record, lower for a larger residual,
    rounded to integers as in `FixedPoint`. `columns` are candidates, shape (d, size),
    and `blocks` records from `row_blocks`. If rows are sharded over mesh `axes`, a psum
    adds the integers. A block has rows of one device, as `FixedPoint` asks.
    """
    grid = 2.0**fixed_point.fine_bits / fixed_point.unit

    def step(total, rows):
        features, targets = rows
        residuals = targets[..., None] - _products(features, columns)
        product = jnp.prod(_factor(residuals, fixed_point.moment_order), axis=-2)
        logs = jnp.round(jnp.log(product) * grid).astype(jnp.int32)
        return total + logs.sum(axis=0, dtype=jnp.int32), None

    def run(blocks: Blocks) -> jax.Array:
        zeros = jnp.zeros(columns.shape[1], jnp.int32)
        zeros = varying(zeros, varying_axes(columns) | varying_axes(blocks[1]))
        return jax.lax.scan(step, zeros, blocks)[0]

    def one_by_one() -> jax.Array:
        return run(jax.tree.map(lambda x: x.reshape(-1, 1, *x.shape[2:]), blocks))

    # On a CPU one block at a time stays in cache; other devices run many in parallel.
    total = jax.lax.platform_dependent(cpu=one_by_one, default=lambda: run(blocks))
    total = psum(total, axes)
    # Adding half a unit before the shift rounds to the nearest multiple.
    dropped = fixed_point.fine_bits - fixed_point.score_bits
    rounded = (total + (1 << dropped >> 1)) >> dropped
    return rounded.astype(columns.dtype) * 2.0**-fixed_point.score_bits


def _products(features: jax.Array, columns: jax.Array) -> jax.Array:
    """Returns the predictions <x, w>, shape (..., length, size)."""
    num_features = columns.shape[0]
    if num_features > _FEW_FEATURES:
        return jnp.matmul(features, columns, precision=jax.lax.Precision.HIGHEST)
    columns = columns[:, None, None]
    terms = [features[..., j, None] * columns[j] for j in range(num_features)]
    return sum(terms[1:], start=terms[0])


def _factor(residuals: jax.Array, moment_order: float) -> jax.Array:
    """Returns theta exp(-psi(|r|)) in [1, theta]: 1 if |r| >= 1, or r is NaN."""
    size = jnp.abs(residuals)
    rest = jnp.where(size < 1, 1 - size, 0)  # 1 - z1 of the paper's (6) and (16)
    if moment_order == 2:
        return 1 + rest * rest
    power = jnp.exp(moment_order * jnp.log(1 - rest))  # faster than a power
    return jnp.clip(moment_order * rest + power, 1, moment_order)
