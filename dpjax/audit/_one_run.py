"""A lower bound on epsilon from a single release, by guesses about many records."""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._lazy import optional
from dpjax._types import Key, PyTree
from dpjax.audit._releases import as_pair

# The epsilon that jax_privacy returns may be too high by 1e-6.
_EPSILON_SLACK = 1e-6


@dataclasses.dataclass(frozen=True)
class OneRunAudit:
    """A lower bound on epsilon from one release.

    Attributes:
        epsilon: the lower bound, at least zero.
        delta: the delta for which the bound holds.
        confidence: the probability that the bound holds.
        num_canaries: number of records with values that a coin chose.
        num_guesses: number of coins that the attack guessed.
        num_correct: number of correct guesses.
    """

    epsilon: float
    delta: float
    confidence: float
    num_canaries: int
    num_guesses: int
    num_correct: int


def one_run(
    release: Callable[[Key, PyTree], PyTree],
    data: PyTree,
    neighbor: PyTree,
    *,
    key: Key,
    statistic: Callable[[PyTree], jax.Array],
    delta: float = 0.0,
    confidence: float = 0.95,
) -> OneRunAudit:
    """Returns a lower bound on epsilon from one release, if many are too expensive.

    For each record a fair coin chooses between its values in data and in neighbor. The
    attack ranks the records by a statistic of the release, and guesses "neighbor" for
    the k/2 highest and "data" for the k/2 lowest. If release is epsilon-DP, the right
    guesses are hardly more than binomial, of probability e^epsilon / (1 + e^epsilon).

    Args:
        release: `release(key, data)`, called once, without tracing.
        data: a pytree of arrays that share a leading axis of n records.
        neighbor: a pytree of the same shapes. The m records that differ are the
            canaries; the other records are part of every data set.
        key: a typed key, used once here.
        statistic: a function from the release to (n,) numbers: high if record i seems
            to come from neighbor, on one scale for all records.
        delta: privacy parameter for which to bound epsilon, in [0, 1).
        confidence: the probability that the bound is not too high. The theorem allows a
            failure probability of up to 2 m delta: the bound is good if m delta is
            small.

    Returns:
        A `OneRunAudit`: the best bound over k = m, m/2, m/4 ..., down to the last k at
        which k correct guesses could refute any claim.

    Raises:
        ImportError: If jax_privacy is not installed: pip install "dpjax[audit]".
        ValueError: If an argument is out of its range, the data sets differ in shape or
            do not differ in any record, or the statistic has another shape than (n,).

    Privacy:
        If release is (epsilon, delta)-DP under REPLACE_ONE, then audit.epsilon <=
        epsilon with probability `confidence` over coins and release, for any statistic.
        The values of k divide 1 - confidence equally. `epsilon_lower_bound` is far
        higher, unless m is large and records are nearly independent.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax.mechanisms import laplace
        >>> def release(key, bits):
        ...     return laplace(key, bits, scale=0.5)
        >>> audit = one_run(release, jnp.zeros(20_000), jnp.ones(20_000),
        ...                 key=jax.random.key(0), statistic=lambda released: released)
        >>> print(f"{audit.epsilon:.2f} of 2")
        1.89 of 2

    Reference:
        Steinke, Nasr, Jagielski (2023), "Privacy auditing with one (1) training run",
        Theorem 5.2; their coin chooses between a record and no record, here between two
        records, under REPLACE_ONE. jax_privacy's auditor computes the bound.
    """
    auditing = optional("jax_privacy.auditing", "one_run needs jax_privacy", "audit")
    _validate.typed_key(key)
    _validate.delta(delta)
    _validate.probability(confidence=confidence)
    num_records = _validate.leading_size(data, "data")
    data, neighbor = as_pair(data, neighbor)
    is_canary = np.zeros(num_records, bool)
    for x, y in zip(*map(jax.tree.leaves, (data, neighbor)), strict=True):
        is_canary |= np.any(np.asarray(x != y).reshape(num_records, -1), axis=1)
    rule = "different from data in some record"
    _validate.require(bool(is_canary.any()), "neighbor", "the same records", rule)

    # Coins mix the two data sets, and the release of the mixture must reveal the coins.
    coin_key, release_key = jax.random.split(key)
    coins = jax.random.bernoulli(coin_key, shape=(num_records,))

    def chosen(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where(coins.reshape(-1, *[1] * (x.ndim - 1)), y, x)

    mixed = jax.tree.map(chosen, data, neighbor)
    scores = np.asarray(statistic(release(release_key, mixed)))
    rule = f"of shape ({num_records},), one number for each record"
    given = jax.ShapeDtypeStruct(scores.shape, scores.dtype)
    is_fine = scores.shape == (num_records,)
    _validate.require(is_fine, "what statistic returns", given, rule)
    is_in = np.asarray(coins)[is_canary]
    return _best_bound(auditing, scores[is_canary], is_in, delta, confidence)


def _best_bound(auditing, scores, is_in, delta: float, confidence: float):
    """Returns the `OneRunAudit` of the number of guesses with the highest bound."""
    # `scores` (m,) rank the canaries, the records with two values; `is_in` (m,) is true
    # where a coin chose the neighbor's value. `auditing` is jax_privacy's module. The
    # bound holds because all numbers of guesses share 1 - confidence.
    num_canaries = len(scores)
    # Ranks are -(m-1), -(m-3), ..., m-1: guesses are surer the farther from 0 they are.
    ranks = np.empty(num_canaries)
    order = np.argsort(scores, kind="stable")
    ranks[order] = 2.0 * np.arange(num_canaries) - (num_canaries - 1)
    is_right = (ranks > 0) == is_in
    # jax_privacy counts "in" canaries above a threshold as correct guesses, so right
    # guesses are passed to it as "in" canaries.
    sureness = np.abs(ranks) + 0.5 * (ranks > 0)  # no ties
    auditor = auditing.CanaryScoreAuditor(sureness[is_right], sureness[~is_right])
    # k correct guesses of k may refute a claim only if 2^-k is at most 1 - confidence.
    fewest = math.ceil(-math.log2(1 - confidence))
    counts = [num_canaries]
    while counts[-1] // 2 >= fewest:
        counts.append(counts[-1] // 2)
    thresholds = np.sort(sureness)[::-1]
    best = OneRunAudit(0.0, delta, confidence, num_canaries, 0, 0)
    for count in counts:
        threshold = float(thresholds[count - 1])
        epsilon = auditor.epsilon_one_run(
            (1 - confidence) / len(counts),
            # An epsilon at delta = 0 holds at every delta, so a tiny delta replaces 0.
            max(delta, 1e-300),
            threshold_strategy=auditing.Explicit(threshold),
        )
        if epsilon - _EPSILON_SLACK > best.epsilon:
            best = dataclasses.replace(
                best,
                epsilon=float(epsilon) - _EPSILON_SLACK,
                num_guesses=count,
                num_correct=int(np.sum(is_right & (sureness >= threshold))),
            )
    return best
