"""Claims of `dp_linear_model`, with each of its options, and of `dp_additive_model`.

An attack reads one of the Gaussian releases, and shows no more than its share of the
budget: all where classes have a constant, 3/4 where steps see the record.
"""

import jax
import jax.numpy as jnp

from benchmarks.audits.case import Build, Case, last_turned, solved
from dpjax import losses, solvers
from dpjax._types import Key, PyTree
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


def _turned_beyond(num_records, num_releases=10_000, max_records=None) -> Case:
    features = jnp.zeros((num_records, 1)).at[-1].set(9.0)
    labels = jnp.zeros(num_records).at[-1].set(1.0)
    given = {"epsilon": 4.0, "delta": 1e-5 if max_records is None else 0.01}
    given |= {"max_records": max_records, "smooth": (0,)}

    def solve(key: Key, labels: jax.Array) -> Solution:
        data = features, labels
        return solvers.dp_additive_model("logistic", data, key=key, **given)

    statistic = lambda curves: curves.curve(0, jnp.array([9.0]))[0]  # noqa: E731
    options = {"num_releases": num_releases, "is_gaussian": max_records is None}
    return solved(solve, labels, -labels, statistic=statistic, **options)


def _turned(
    loss, features, targets, turned, *, num_releases=100_000, **options
) -> Case:
    """The last record has another target in the neighbour, and its offset turns too.

    With `records_per_unit` all records of the last unit have that target.
    """
    statistic = options.pop("statistic", lambda params: params[0])
    records = {x: options.pop(x) for x in ("weights", "offsets") if x in options}
    is_gaussian = "max_records" not in options
    given = {"epsilon": 4.0, "delta": 1e-5 if is_gaussian else 0.01, **options}

    def solve(key: Key, data: PyTree) -> Solution:
        *data, records = data
        return solvers.dp_linear_model(loss, tuple(data), key=key, **given, **records)

    features, targets, neighbor = jnp.array(features), jnp.array(targets), {**records}
    if "offsets" in records:
        neighbor["offsets"] = last_turned(records["offsets"])
    return solved(
        solve,
        (features, targets, records),
        (
            features,
            targets.at[-options.get("records_per_unit", 1) :].set(turned),
            neighbor,
        ),
        statistic=statistic,
        num_releases=num_releases,
        is_gaussian=is_gaussian,
    )


CASES: dict[str, Build] = {
    # Of two records one has a target, whose sign all steps see.
    "dp_linear_model": lambda: _turned("squared", [[0.0], [1.0]], [0.0, _FAR], -_FAR),
    # Of two units one has targets, whose sign all steps see.
    "dp_linear_model_units": lambda: _turned(
        *("squared", [[0.0], [0.0], [1.0], [1.0]], [0.0, 0.0, _FAR, _FAR], -_FAR),
        records_per_unit=2,
    ),
    # The class of a record turns, which is all that is released.
    "dp_linear_model_constant": lambda: _turned(
        *(losses.softmax(3), jnp.ones((60, 1)), jnp.arange(60.0) % 3, 1.0),
        statistic=_first_over_last,
        intercept=0,
    ),
    # A label turns, and the offset keeps its slope full.
    "dp_linear_model_intercept": lambda: _turned(
        *("logistic", [[0.0, 1.0], [_LONG, 1.0]], [0.0, 1.0], -1.0),
        intercept=1,
        offsets=_OFFSETS,
    ),
    # The target of a record of full weight crosses the clamp. The rest of the budget
    # was spent on the bounds.
    "dp_linear_model_weights": lambda: _turned(
        *("squared", jnp.ones((2, 1)), [0.0, _FAR], -_FAR),
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
    # which the gradient passes in every step. Many records are slow: 10,000 releases.
    "dp_linear_model_outputs": lambda: _turned(
        *(losses.softmax(3), jnp.zeros((60, 1)).at[-1].set(1.0), jnp.zeros(60), 1.0),
        statistic=lambda params: params[0, 1] - params[0, 0],
        num_releases=10_000,
    ),
    # A target far from all others turns, and the Newton step sees its score. That step
    # has half of the budget. 200 records are slow: 10,000 releases.
    "dp_linear_model_intervals": lambda: _turned(
        *("squared", jnp.ones((200, 1)), [1.0, -1.0] * 99 + [1.0, _FAR], -_FAR),
        intervals=True,
        num_releases=10_000,
    ),
    # The class of one of four records turns, which is drawn with probability 3/4. The
    # claim is at 0.01.
    "dp_linear_model_sample": lambda: _turned(
        *(losses.softmax(3), jnp.ones((4, 1)), [0.0, 0.0, 0.0, 2.0], 1.0),
        statistic=_first_over_last,
        intercept=0,
        max_records=3,
    ),
    "dp_linear_model_features": _dp_linear_model_features,
    # The label of a record beyond the last knot turns, the others are zeros. By their
    # number knots are fine, or coarse with moments of their own, or chosen: then both
    # models are fitted, which is slow.
    "dp_additive_model": lambda: _turned_beyond(400),
    "dp_additive_model_bends": lambda: _turned_beyond(310),
    "dp_additive_model_choice": lambda: _turned_beyond(1_000, num_releases=3_000),
    # The same in a sample of three quarters of them. The claim is at 0.01.
    "dp_additive_model_sample": lambda: _turned_beyond(440, max_records=330),
}
