"""Scores of candidates in l1 regression, whose sensitivity holds in float32.

A candidate's score is the number of records that it fits: a record counts 1 where its
residual is zero, 0 where the loss is truncated, and in between by the paper's psi.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax._sharding import psum, varying, varying_axes
from dpjax._tree import like
from dpjax._types import Scalar

_BLOCK_LENGTH = 64  # products of so many factors up to 2 stay below 2^127
_BLOCKS_AT_ONCE = 64  # where a device has threads for them
_FEW_FEATURES = 8  # up to here, products fused into the scores beat a matrix product

Blocks = tuple[jax.Array, jax.Array]


class FixedPoint(NamedTuple):
    """Writes scores as integers, which makes their sensitivity exact.

    Let f_i = theta exp(-psi_i), computed from record i alone and clipped to
    [1, theta]. At most K of them are multiplied; a product has one logarithm, which is
    rounded to q = round(2^g log(f_1 ... f_K) / U), and these integers are added. Their
    sum is rounded to a multiple of 2^(g - h): divided by 2^g, that is the score.

    1. Before it is rounded, q has an error of at most 2^g e / U with
       e = K 2^-23 + 2^-17 max(1, K log theta): K roundings of a product, a logarithm
       that is right to 2^-18 of the larger of itself and 1 (a test tries all float32
       mantissas on the device where it runs), its scaling.
    2. Another record in the block moves q by at most 2^g (log(theta) + 2 e) / U + 1,
       which is 2^g: this equation defines U. The sum moves by as much.
    3. Rounding to multiples of 2^(g - h) is monotone and commutes with adding 2^g: the
       rounded sum moves by at most 2^g as well.
    4. Of n records q is at most n 2^g < 2^31, and n 2^h < 2^24: sums are exact in
       int32, and scores in float32.

    So one record moves any score by at most 1, where a score stands for
    sum_i log(f_i) / U. U / log(theta), the slack, is 1.0011 for theta = 2 and
    n = 100,000, and below 1.01 for n < 2^24 and theta >= 1.1.

    Attributes:
        moment_order: theta.
        unit: U.
        block_length: K.
        fine_bits: g.
        score_bits: h.
    """

    moment_order: float
    unit: float
    block_length: int
    fine_bits: int
    score_bits: int

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
    """Returns iota x, (steps, blocks, length, d), and iota y, (steps, blocks, length).

    Rows that fill them up have infinite residuals, so they count for nothing.
    """
    length = fixed_point.block_length
    num_blocks = -(-targets.size // length)
    num_steps = -(-num_blocks // _BLOCKS_AT_ONCE)
    shape = (num_steps, -(-num_blocks // num_steps), length)
    padding = math.prod(shape) - targets.size
    truncation = like(truncation, features)
    features = jnp.pad(features * truncation, ((0, padding), (0, 0)))
    targets = jnp.pad(targets * truncation, (0, padding), constant_values=jnp.inf)
    return features.reshape(*shape, -1), targets.reshape(shape)


def chunk_scores(
    blocks: Blocks,
    columns: jax.Array,
    fixed_point: FixedPoint,
    axes: tuple[str, ...] = (),
) -> jax.Array:
    """Scores candidates, the columns of a (d, size) matrix: sums of log(f_i) / U.

    Of rows that are sharded over Manual mesh axes a psum adds the integers: a block has
    rows of one device, and every bound holds as it is.
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

    # CPU: a block's product stays in cache. Elsewhere: many blocks in parallel.
    total = jax.lax.platform_dependent(cpu=one_by_one, default=lambda: run(blocks))
    total = psum(total, axes)
    dropped = fixed_point.fine_bits - fixed_point.score_bits
    rounded = (total + (1 << dropped >> 1)) >> dropped
    return rounded.astype(columns.dtype) * 2.0**-fixed_point.score_bits


def _products(features: jax.Array, columns: jax.Array) -> jax.Array:
    """Returns <x, w> for all rows and columns, shape (..., length, size)."""
    num_features = columns.shape[0]
    if num_features > _FEW_FEATURES:
        return jnp.matmul(features, columns, precision=jax.lax.Precision.HIGHEST)
    columns = columns[:, None, None]
    terms = [features[..., j, None] * columns[j] for j in range(num_features)]
    return sum(terms[1:], start=terms[0])


def _factor(residuals: jax.Array, moment_order: float) -> jax.Array:
    """Returns theta exp(-psi(|r|)) in [1, theta]: 1 where r is beyond 1, or NaN."""
    size = jnp.abs(residuals)
    rest = jnp.where(size < 1, 1 - size, 0)  # (6), (16): 1 - z1
    if moment_order == 2:
        return 1 + rest * rest
    power = jnp.exp(moment_order * jnp.log(1 - rest))  # faster than a power
    return jnp.clip(moment_order * rest + power, 1, moment_order)
