"""Private selection of the candidate with the largest noisy score.

Both mechanisms return argmax_v epsilon u(v) / sensitivity_range + noise: Gumbel noise
gives the exponential mechanism, exponential noise permute-and-flip. Scores may come in
chunks, one in memory at a time. Scores are compared by their differences, so rounding
is relative to the gap to the best score and not to its magnitude.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._rounding import ROUNDED_UP
from dpjax._sharding import check_key_varies_as, varying_with
from dpjax._tree import narrowed_numbers
from dpjax._types import Key, Scalar
from dpjax.mechanisms import _samplers

ScoreFn = Callable[[jax.Array], jax.Array]


def exponential(
    key: Key,
    scores: jax.Array | ScoreFn,
    *,
    epsilon: Scalar,
    sensitivity_range: Scalar,
    num_chunks: int | None = None,
) -> jax.Array:
    """Chooses an index with the exponential mechanism; a higher score is better.

    Pr[v] is in proportion to exp(epsilon u(v) / sensitivity_range).

    Args:
        key: a typed key, used once here.
        scores: u, floating point of shape (num_candidates,). Or, with num_chunks, a
            traceable function of a chunk index (int32) that returns the scores of this
            chunk, always of shape (chunk_size,). -inf marks a candidate that is
            excluded for every data set. NaN counts as the lowest score, +inf as the
            highest; finite scores are clipped to a quarter of the largest float.
        epsilon: privacy parameter of this choice; positive, may be traced.
        sensitivity_range: the supremum over neighbors of max_v du(v) - min_v du(v),
            with du the change of the scores: at most twice their linf sensitivity, and
            the linf sensitivity itself if all scores change in the same direction.
            Positive, may be traced.
        num_chunks: number of chunks of the function; None for an array.

    Returns:
        The index, an int32 scalar; chunks are numbered one after the other.

    Raises:
        ValueError: If key is not a single typed key, epsilon or sensitivity_range is
            not positive and finite, scores are not a floating-point vector, or
            num_chunks does not fit scores.

    Privacy:
        The choice is epsilon-DP and (epsilon^2/8)-zCDP, under the relation of
        sensitivity_range: `docs/privacy/proofs/mechanisms.md`, 2.3. sensitivity_range
        must hold for the scores after NaN and infinities are replaced, so clip the
        contribution of each record to the score first. For real numbers: see
        `dpjax.mechanisms`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> scores = jnp.array([0.0, 3.0, 40.0, 8.0])
        >>> int(exponential(jax.random.key(0), scores, epsilon=1.0,
        ...                 sensitivity_range=2.0))
        2

    Reference:
        McSherry, Talwar (2007), "Mechanism design via differential privacy". Bounded
        range: Dong, Durfee, Rogers (2020), "Optimal differential privacy composition
        for exponential mechanisms".
    """
    how = epsilon, sensitivity_range, num_chunks
    return _choose(_samplers.gumbel, key, scores, *how)


def permute_and_flip(
    key: Key,
    scores: jax.Array | ScoreFn,
    *,
    epsilon: Scalar,
    sensitivity_range: Scalar,
    num_chunks: int | None = None,
) -> jax.Array:
    """Chooses an index by permute-and-flip; a higher score is better.

    It returns argmax_v epsilon u(v) / sensitivity_range + Exp(1). This is equivalent to
    visiting candidates in random order, and accepting each with probability
    exp(epsilon (u(v) - max u) / sensitivity_range). For a single choice its expected
    score is never below the expected score of `exponential` at the same epsilon.

    Arguments, result and errors are those of `exponential`.

    Privacy:
        The choice is epsilon-DP under the relation of sensitivity_range, and
        (epsilon^2/2)-zCDP like every epsilon-DP mechanism. This is four times the cost
        of `exponential`, so prefer `exponential` in compositions:
        `docs/privacy/proofs/mechanisms.md`, 2.4. The paper uses twice the linf
        sensitivity for the range. For NaN, infinities and real numbers see
        `exponential`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> scores = jnp.array([0.0, 3.0, 40.0, 8.0])
        >>> int(permute_and_flip(jax.random.key(0), scores, epsilon=1.0,
        ...                      sensitivity_range=2.0))
        2

    Reference:
        McKenna, Sheldon (2020), "Permute-and-flip: a new mechanism for differentially
        private selection". Exponential noise: Ding, Kifer, Sayed Edwards, Steinke, Wang
        and Zhang (2021), "The permute-and-flip mechanism is identical to
        report-noisy-max with exponential noise".
    """
    how = epsilon, sensitivity_range, num_chunks
    return _choose(_samplers.exponential, key, scores, *how)


def _choose(sampler, key, scores, epsilon, sensitivity_range, num_chunks) -> jax.Array:
    """Returns the index that `exponential` or `permute_and_flip` releases."""
    # `sampler` draws the noise. The other arguments are those of `exponential`.
    _validate.typed_key(key)
    _validate.positive(epsilon=epsilon, sensitivity_range=sensitivity_range)
    if callable(scores):
        _validate.count(num_chunks=num_chunks)
        index = jax.ShapeDtypeStruct((), jnp.int32)
        _check_scores(jax.eval_shape(scores, index), num_chunks)
        return _scan(sampler, key, scores, num_chunks, epsilon, sensitivity_range)
    rule = "None where scores is an array; it is for scores that are a function"
    _validate.require(num_chunks is None, "num_chunks", num_chunks, rule)
    scores = narrowed_numbers(scores, "scores")
    _check_scores(scores, 1)
    check_key_varies_as(scores, key)
    return _choose_from_array(sampler, key, scores, epsilon, sensitivity_range)


def _check_scores(scores, num_chunks) -> None:
    """Refuses scores of a chunk that are not a vector of floats, or are too many."""
    shape, dtype = jnp.shape(scores), jnp.result_type(scores)
    rule = "an array of floats with one axis, and 1 to 2^31 - 1 candidates in all"
    is_fine = len(shape) == 1 and 1 <= num_chunks * shape[0] < 2**31
    is_fine = is_fine and jnp.issubdtype(dtype, jnp.floating)
    _validate.require(is_fine, "scores", jax.ShapeDtypeStruct(shape, dtype), rule)


@partial(jax.jit, static_argnums=0)
def _choose_from_array(sampler, key, scores, epsilon, sensitivity_range):
    scores = jnp.asarray(scores)
    return _scan(sampler, key, lambda _: scores, 1, epsilon, sensitivity_range)


class _Best(NamedTuple):
    """Holds the best candidate; score and noise are apart, to avoid rounding errors."""

    score: jax.Array
    noise: jax.Array
    place: jax.Array


def _scan(sampler, key, score_fn, num_chunks, epsilon, sensitivity_range) -> jax.Array:
    """Returns the index of the candidate with the largest noisy score, by chunks."""
    # `sampler` draws the noise. `score_fn(i)` has the scores of chunk i.
    first = jax.eval_shape(score_fn, jax.ShapeDtypeStruct((), jnp.int32))
    dtype = jnp.float64 if first.dtype == jnp.float64 else jnp.float32
    finite = jnp.finfo(dtype)
    # epsilon and sensitivity_range may have been rounded to float32 a few times, by
    # 2^-24 each: raise the range so that the effective epsilon is never larger than
    # requested. With normal numbers no product is 0 times inf. XLA may flush to zero
    # subnormal differences of scores, and up to 2^24 products of a linear score, for
    # both neighboring data sets: raise the range by 2^26 of the smallest normal number.
    epsilon = jnp.asarray(epsilon).astype(dtype)
    epsilon = jnp.clip(epsilon, finite.tiny, finite.max)
    sensitivity_range = jnp.asarray(sensitivity_range).astype(dtype) * ROUNDED_UP
    sensitivity_range = sensitivity_range + 2.0**26 * finite.tiny
    largest = finite.max / 4

    def scaled(gap: jax.Array) -> jax.Array:
        return jnp.where(jnp.isinf(gap), gap, gap / sensitivity_range * epsilon)

    def step(best: _Best, chunk) -> tuple[_Best, None]:
        """Returns the better of the best candidate so far and the best of a chunk."""
        words, i = chunk  # of a key, and the number of the chunk
        chunk_key = jax.random.wrap_key_data(words, impl=impl)
        scores = jnp.asarray(score_fn(i)).astype(dtype)
        scores = jnp.where(jnp.isnan(scores), -largest, scores)
        is_out = scores == -jnp.inf
        scores = jnp.where(is_out, scores, jnp.clip(scores, -largest, largest))
        noise = sampler(chunk_key, scores.shape, dtype)
        # Compare differences to the best score, or to -largest if all are excluded.
        top = jnp.maximum(scores.max(), -largest)
        j = jnp.argmax(scaled(scores - top) + noise).astype(jnp.int32)
        new = _Best(scores[j], noise[j], i * scores.shape[0] + j)
        wins = scaled(new.score - best.score) + new.noise > best.noise
        return jax.tree.map(partial(jnp.where, wins), new, best), None

    # The scan gets raw words of the keys, as in `_peel_in_rounds`.
    impl = jax.random.key_impl(key)
    words = jax.random.key_data(jax.random.split(key, num_chunks))
    none = _Best(jnp.array(-jnp.inf, dtype), jnp.zeros((), dtype), jnp.int32(0))
    chunks = words, jnp.arange(num_chunks, dtype="int32")
    best, _ = jax.lax.scan(step, varying_with(none, words), chunks)
    return best.place
