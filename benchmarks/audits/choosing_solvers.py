"""Claims of solvers that choose: a record decides which of two that tie is ahead."""

import jax
import jax.numpy as jnp

from benchmarks.audits.case import Build, Case, last_turned, linear, of, solved
from dpjax import constraints, solvers
from dpjax.estimators import Winsorization


def _dp_frank_wolfe_composed() -> Case:
    """The better of two vertices becomes the worse one in all eight steps."""

    def rate(step: jax.Array) -> jax.Array:
        return 1 / (1 + step.astype("float32"))

    options = {"epsilon": 2.0, "delta": 0.05, "num_steps": 8}
    return _chosen(9, num_against=4, learning_rate=rate, **options)


def _dp_l1_regression() -> Case:
    """One of two candidates that tie falls behind."""
    options = {"epsilon": 2.0, "candidates": jnp.eye(2), "truncation": 1.0}
    # A record fits one candidate and is truncated at the other.
    features, targets = jnp.array([[0.0, 9.0], [9.0, 0.0]]), jnp.zeros(2)
    neighbor = features.at[0].set(features[1]), targets
    solve = of(solvers.dp_l1_regression, **options)
    return solved(solve, (features, targets), neighbor)


def _dp_center_and_scale() -> Case:
    """One record leaves the lowest bin of sizes for the highest of three.

    The scale shows them, at 45 per cent of the budget; by the signs there is no center.
    """
    solve = of(solvers.dp_center_and_scale, epsilon=4.0, delta=1e-5)
    samples = jnp.tile(jnp.array([1.5, -1.5, 3.0, -3.0, 6.0, -6.0]), 40)[:, None]
    return solved(solve, samples, samples.at[0].set(6.0), is_gaussian=True)


def _chosen(num_samples, *, num_steps=2, num_against=0, **options) -> Case:
    """All records but some prefer one vertex of two; the last one turns round."""
    solve = of(
        solvers.dp_frank_wolfe,
        linear,
        jnp.array([0.5, 0.5]),
        constraint=constraints.Simplex(1.0),
        estimator=Winsorization(1.0),
        num_steps=num_steps,
        **options,
    )
    data = jnp.tile(jnp.array([[1.0, -1.0]]), (num_samples, 1))
    data = data.at[:num_against].multiply(-1)
    return solved(solve, data, last_turned(data))


CASES: dict[str, Build] = {
    # One of two vertices that tie falls behind in the last step.
    "dp_frank_wolfe": lambda: _chosen(4, epsilon=1.0),
    "dp_frank_wolfe_composed": _dp_frank_wolfe_composed,
    # One of two vertices that tie falls behind.
    "dp_lasso": lambda: solved(
        of(solvers.dp_lasso, epsilon=1.0, delta=0.0, threshold=1.0, num_steps=1),
        *((jnp.ones((2, 1)), jnp.array([9.0, last])) for last in (9.0, -9.0)),
    ),
    "dp_l1_regression": _dp_l1_regression,
    # The smaller of two samples jumps over the other. Half of the budget is for the
    # interval, which so few samples have not.
    "dp_quantile": lambda: solved(
        of(solvers.dp_quantile, epsilon=1.0, edges=jnp.arange(5.0)),
        *(jnp.array([0.5, 1.5]), jnp.array([3.5, 1.5])),
    ),
    "dp_center_and_scale": _dp_center_and_scale,
}
