"""A lower bound on epsilon from a single release: many records at once are guessed."""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._types import Key, PyTree
from dpjax.audit._releases import as_pair

# jax_privacy's root is exact to 1e-6, and may lie above.
_EPSILON_SLACK = 1e-6


@dataclasses.dataclass(frozen=True)
class OneRunAudit:
    """A lower bound on epsilon from one release.

    Attributes:
        epsilon: the lower bound, zero or above.
        delta: at which the bound is.
        confidence: with which it is right.
        num_canaries: how many records were drawn by a coin.
        num_guesses: for how many of them the attack guessed the coin.
        num_correct: how many of the guesses were right.
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
    """A lower bound on epsilon from one release, where many cannot be afforded.

    For each record a fair coin decides whether it is taken from data or from neighbor.
    The attack sees the release, ranks the records by a statistic, and guesses that the
    k/2 of the highest came from neighbor, the k/2 of the lowest from data. Of k guesses
    an (epsilon, delta)-DP release lets few more be right than of k coins that fall
    right with probability e^epsilon / (1 + e^epsilon).

    Args:
        release: `release(key, data)`, called once, as it is.
        data: a pytree of arrays that share a leading axis of n records.
        neighbor: another of the same shapes. Records that are the same in both are
            part of every data set; the m others are the canaries.
        key: a typed key, used once here.
        statistic: a function of the release alone, (n,) numbers: high where record i
            seems to come from neighbor. Scale them alike over records.
        delta: at which to bound epsilon, in [0, 1).
        confidence: one minus the probability of a bound that is too high. The theorem
            adds up to 2 m delta to that probability: a small m delta leaves room.

    Returns:
        A `OneRunAudit`: the best bound over k = m, m/2, m/4 ..., as long as k right
        guesses would tell anything.

    Raises:
        ImportError: where jax_privacy is not installed: pip install "dpjax[audit]".
        ValueError: where an argument is out of its range, the data sets differ in
            shapes or in no record, or the statistic has another shape than (n,).

    Privacy:
        If release is (epsilon, delta)-DP under REPLACE_ONE, then audit.epsilon <=
        epsilon with probability `confidence` over coins and release, for any
        statistic. The values of k are public and share 1 - confidence between them;
        ties are broken by position. The bound is far below that of
        `epsilon_lower_bound` unless m is large and records are released nearly
        independently of each other.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax.mechanisms import laplace
        >>> def release(key, bits):  # of which the records are read off one by one
        ...     return laplace(key, bits, scale=0.5)
        >>> audit = one_run(release, jnp.zeros(20_000), jnp.ones(20_000),
        ...                 key=jax.random.key(0), statistic=lambda released: released)
        >>> print(f"{audit.epsilon:.2f} of 2")
        1.89 of 2

    Reference:
        Steinke, Nasr, Jagielski (2023), "Privacy auditing with one (1) training run",
        Theorem 5.2; under REPLACE_ONE a coin chooses between two records where theirs
        chooses between a record and none. Computed by jax_privacy's auditor.
    """
    try:
        from jax_privacy import auditing
    except ImportError as why:
        raise ImportError(
            'one_run needs jax_privacy: install with pip install "dpjax[audit]".'
        ) from why
    _validate.typed_key(key)
    _validate.delta(delta)
    _validate.probability(confidence=confidence)
    num_records = _validate.leading_size(data, "data")
    data, neighbor = as_pair(data, neighbor)
    is_canary = np.zeros(num_records, bool)
    for x, y in zip(*map(jax.tree.leaves, (data, neighbor)), strict=True):
        is_canary |= np.any(np.asarray(x != y).reshape(num_records, -1), axis=1)
    num_canaries = int(is_canary.sum())
    _validate.require(
        num_canaries > 0, "neighbor", neighbor, "different from data in some record"
    )

    coin_key, release_key = jax.random.split(key)
    coins = jax.random.bernoulli(coin_key, shape=(num_records,))

    def chosen(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where(coins.reshape(-1, *[1] * (x.ndim - 1)), y, x)

    scores = np.asarray(
        statistic(release(release_key, jax.tree.map(chosen, data, neighbor)))
    )
    _validate.require(
        scores.shape == (num_records,),
        "what statistic returns",
        jax.ShapeDtypeStruct(scores.shape, scores.dtype),
        f"one number for each of {num_records} records",
    )

    # Ranks -(m-1), -(m-3), ..., m-1: the farther from zero, the surer the guess.
    order = np.argsort(scores[is_canary], kind="stable")
    ranks = np.empty(num_canaries)
    ranks[order] = 2.0 * np.arange(num_canaries) - (num_canaries - 1)
    is_right = (ranks > 0) == np.asarray(coins)[is_canary]
    # jax_privacy counts "in" canaries above a threshold as guesses that are right.
    sureness = np.abs(ranks) + 0.5 * (ranks > 0)  # no ties
    auditor = auditing.CanaryScoreAuditor(sureness[is_right], sureness[~is_right])
    # What k right guesses of k refute: 2^-k must be below the share of one k.
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
            # A claim at delta = 0 holds at every other delta too.
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
