"""dp_gradient_descent on n = 100,000, d = 50, 100 steps, beside non-private descent.

    python benchmarks/gradient_descent.py

The non-private run takes as many full gradients of the mean loss in one compiled scan.
"""

import jax
import jax.numpy as jnp
from timing import milliseconds, print_table

import dpjax
from dpjax.estimators import (
    Clipping,
    MedianOfMeans,
    SmoothedTruncation,
    Truncation,
    Winsorization,
)

NUM_SAMPLES, NUM_FEATURES, NUM_STEPS = 100_000, 50, 100
ESTIMATORS = {
    "Truncation": Truncation(1.0),
    "Winsorization": Winsorization(1.0),
    "Clipping": Clipping(1.0),
    "SmoothedTruncation, beta 1": SmoothedTruncation(1.0),
    "SmoothedTruncation, beta 9.21": SmoothedTruncation(1.0, 9.21),
    "MedianOfMeans of Truncation, 40 groups": MedianOfMeans(Truncation(1.0), 40),
}


@jax.jit
def plain_descent(params, data):
    losses = jax.vmap(dpjax.losses.logistic, in_axes=(None, 0))

    def step(params, _):
        grads = jax.grad(lambda params: losses(params, data).mean())(params)
        return params - 0.1 * grads, None

    return jax.lax.scan(step, params, length=NUM_STEPS)[0]


def main():
    problem = dpjax.datasets.logistic_model(
        jax.random.key(0), num_samples=NUM_SAMPLES, num_features=NUM_FEATURES
    )
    data, start = problem.data, jnp.zeros(NUM_FEATURES)

    def private(estimator):
        return lambda: (
            dpjax.solvers.dp_gradient_descent(
                dpjax.losses.logistic,
                start,
                data,
                key=jax.random.key(1),
                epsilon=1.0,
                delta=1e-5,
                estimator=estimator,
                learning_rate=0.1,
                num_steps=NUM_STEPS,
            ).params
        )

    functions = {"non-private full gradients": lambda: plain_descent(start, data)}
    functions |= {name: private(estimator) for name, estimator in ESTIMATORS.items()}
    times = milliseconds(functions, repeats=5)
    base = times["non-private full gradients"]
    print_table(
        ["method", "ms for 100 steps", "times non-private"],
        [[name, time, time / base] for name, time in times.items()],
    )


if __name__ == "__main__":
    main()
