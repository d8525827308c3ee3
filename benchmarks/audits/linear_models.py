"""Claims of `dp_linear_model`, with each of its options, and of `dp_additive_model`.

Attacks read the transcript of all Gaussian releases, if there is no other noise and no
sample. The record that changes is far out on both sides, in different sizes, so that it
moves counts of sizes as well as clipped means.
"""

import jax
import jax.numpy as jnp

from benchmarks.audits.case import Build, Case, last_turned, solved
from benchmarks.audits.transcripts import transcribed
from dpjax import losses, solvers
from dpjax._types import Key, PyTree
from dpjax.gradients import by_user
from dpjax.solvers import Solution

_LONG, _FAR = 1e4, 1e9  # a gradient is clipped, a prediction decided
_OFFSETS = jnp.array([0.0, -_FAR])


def _first_over_last(params: jax.Array) -> jax.Array:
    return params[0, 1] - params[0, 2]


def _dp_linear_model_features() -> Case:
    """Of four features with equal scores, a record prefers every other one.

    The attack reads which two were chosen, and then the signs of their weights.
    """
    signs = jnp.array([1.0, -1.0, 1.0, -1.0])
    given = {"epsilon": 4.0, "delta": 0.05, "max_features": 2}

    def solve(key: Key, features: jax.Array) -> Solution:
        data = features, jnp.full(2, _FAR)
        return solvers.dp_linear_model("squared", data, key=key, **given)

    def statistic(released: tuple[jax.Array, jax.Array]) -> jax.Array:
        params, selected = released
        # The set comes first: no logarithm of a weight is above 100.
        sizes = jnp.sign(params) * jnp.log1p(jnp.abs(params))
        return 1e3 * jnp.sum(signs[selected]) + jnp.sum(signs * sizes)

    features = jnp.stack([jnp.ones(4), signs])
    return solved(
        *(solve, features, last_turned(features)),
        shown=lambda solution: (solution.params, solution.stats["selected"]),
        statistic=statistic,
    )


def _turned_beyond(
    num_records, num_releases, epsilon=4.0, max_records=None, by_result=False
) -> Case:
    features = jnp.zeros((num_records, 1)).at[-1].set(9.0)
    labels = jnp.zeros(num_records).at[-1].set(1.0)
    given = {"epsilon": epsilon, "delta": 1e-5 if max_records is None else 0.01}
    given |= {"max_records": max_records, "smooth": (0,)}

    def solve(key: Key, data: PyTree) -> Solution:
        return solvers.dp_additive_model("logistic", data, key=key, **given)

    if not by_result:
        pair = (features, labels), (features.at[-1].set(-1e6), labels)
        return transcribed(solve, *pair, num_releases=num_releases)
    of_labels = lambda key, labels: solve(key, (features, labels))  # noqa: E731
    statistic = lambda curves: curves.curve(0, jnp.array([9.0]))[0]  # noqa: E731
    options = {"num_releases": num_releases, "is_gaussian": max_records is None}
    return solved(of_labels, labels, -labels, statistic=statistic, **options)


def _turned(
    loss,
    features,
    targets,
    turned,
    *,
    each=1,
    moved=1.0,
    num_releases=30_000,
    **options,
) -> Case:
    """The last user has other targets, sizes and offsets; by default it is a record."""
    records = {x: options.pop(x) for x in ("weights", "offsets") if x in options}
    statistic = options.pop("statistic", None)
    given = {"epsilon": 4.0, "delta": 1e-5 if statistic is None else 0.01, **options}

    def solve(key: Key, data: PyTree) -> Solution:
        *pair, records = data
        if each > 1:
            num_users, of = len(pair[1]) // each, jnp.arange(len(pair[1])) // each
            pair = by_user(pair, of, num_users=num_users, records_per_user=each)
        return solvers.dp_linear_model(loss, pair, key=key, **given, **records)

    features, targets, neighbor = jnp.array(features), jnp.array(targets), {**records}
    if "offsets" in records:
        neighbor["offsets"] = last_turned(records["offsets"])
    last = slice(-each, None)
    other = features.at[last].multiply(moved), targets.at[last].set(turned), neighbor
    args = solve, (features, targets, records), other
    if statistic is None:
        return transcribed(*args, num_releases=num_releases)
    return solved(*args, statistic=statistic, num_releases=num_releases)


def _far(
    num_records: int, epsilon: float, num_releases: int, each=1, **options
) -> Case:
    """The prediction and the target of a record change sizes, and one its sign."""
    last = slice(-each, None)  # all records of a user
    features = jnp.linspace(-1.0, 1.0, num_records)[:, None].at[last].set(1e6)
    targets = jnp.cos(9 * jnp.arange(num_records)).at[last].set(_FAR)
    options |= {"each": each, "moved": 1e-3, "epsilon": epsilon}
    options["num_releases"] = num_releases
    return _turned("squared", features, targets, -1e6, **options)


CASES: dict[str, Build] = {
    # At epsilon 1 an attack of this strength needs 1.4 million releases for 85 percent.
    "dp_linear_model": lambda: _far(100, 3.0, 400_000),
    "dp_linear_model_1": lambda: _far(100, 1.0, 200_000),
    "dp_linear_model_8": lambda: _far(100, 8.0, 120_000),
    "dp_linear_model_users": lambda: _far(200, 8.0, 20_000, each=2),
    # The class of a record turns, which is all that is released.
    "dp_linear_model_constant": lambda: _turned(
        *(losses.softmax(3), jnp.ones((60, 1)), jnp.arange(60.0) % 3, 1.0),
        intercept=0,
        num_releases=100_000,
    ),
    # A label turns, and the offset keeps its slope full.
    "dp_linear_model_intercept": lambda: _turned(
        *("logistic", [[0.0, 1.0], [_LONG, 1.0]], [0.0, 1.0], -1.0),
        intercept=1,
        offsets=_OFFSETS,
    ),
    # The target of a record of full weight crosses the clamp.
    "dp_linear_model_weights": lambda: _turned(
        *("squared", jnp.ones((2, 1)), [0.0, _FAR], -1e6),
        intercept=0,
        weights=jnp.ones(2),
    ),
    # A label turns beside a record of weight zero, without intercept. The offset keeps
    # the slope full in all steps.
    "dp_linear_model_offsets": lambda: _turned(
        *("logistic", [[0.0], [_LONG]], [0.0, 1.0], -1.0),
        weights=jnp.array([0.0, 1.0]),
        offsets=_OFFSETS,
    ),
    # A count without exposure becomes an exposure without count.
    "dp_linear_model_exposures": lambda: _turned(
        *(losses.poisson(10.0), [[0.0, 1.0], [1.0, 1.0]], [1.0, _FAR], 0.0),
        intercept=1,
        weights=jnp.ones(2),
        offsets=_OFFSETS,
    ),
    # The class of the only record that is not zero turns. Zeros make a small threshold,
    # which the gradient passes in every step.
    "dp_linear_model_outputs": lambda: _turned(
        losses.softmax(3), jnp.zeros((60, 1)).at[-1].set(1.0), jnp.zeros(60), 1.0
    ),
    # The Newton step sees the score of the record, but a curvature that is clipped with
    # it does not move.
    "dp_linear_model_intervals": lambda: _far(200, 3.0, 20_000, intervals=True),
    "dp_linear_model_intervals_1": lambda: _far(200, 1.0, 80_000, intervals=True),
    "dp_linear_model_intervals_8": lambda: _far(200, 8.0, 20_000, intervals=True),
    # The class of one of four records turns, which is drawn with probability 3/4. The
    # claim is at 0.01.
    "dp_linear_model_sample": lambda: _turned(
        *(losses.softmax(3), jnp.ones((4, 1)), [0.0, 0.0, 0.0, 2.0], 1.0),
        statistic=_first_over_last,
        intercept=0,
        max_records=3,
        num_releases=100_000,
    ),
    "dp_linear_model_features": _dp_linear_model_features,
    # The feature of a record goes from beyond the last knot to far below the first, the
    # others are zeros. By their number knots are fine, or coarse with moments of their
    # own, or chosen: then several models are fitted, which is slow.
    "dp_additive_model": lambda: _turned_beyond(520, 40_000, 3.0),
    "dp_additive_model_1": lambda: _turned_beyond(1_400, 10_000, 1.0),
    "dp_additive_model_8": lambda: _turned_beyond(230, 120_000, 8.0),
    "dp_additive_model_bends": lambda: _turned_beyond(310, 10_000),
    # The label turns. The curve is read, because a transcript under `vmap` also holds
    # models that the choice rejects, which are not released.
    "dp_additive_model_choice": lambda: _turned_beyond(1_000, 3_000, by_result=True),
    # A label turns in a sample of three quarters of them. The claim is at 0.01.
    "dp_additive_model_sample": lambda: _turned_beyond(
        440, 10_000, max_records=330, by_result=True
    ),
}
