"""Figure 1(b) of paper 004: the excess risk of private Frank-Wolfe, epsilon = 1.

python -m benchmarks.frank_wolfe_risk
"""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks.page import table
from dpjax.constraints import L1Ball
from dpjax.solvers import dp_frank_wolfe

NUM_DRAWS = 4


def three_large(key, num_features):
    """Parameters with three large entries, and zeros."""
    del key
    return jnp.zeros(num_features).at[:3].set(jnp.array([0.5, -0.3, 0.2]))


PARAMS = {"l1 ball": dpjax.datasets.l1_ball_params, "0.5, -0.3, 0.2": three_large}


def excess_risks(num_samples, num_features, params_fn, seed):
    """Of the paper's setting, the default one, zero weights; without a half."""
    problem = dpjax.datasets.linear_model(
        jax.random.key(seed),
        num_samples=num_samples,
        num_features=num_features,
        feature_law=dpjax.datasets.LogNormal(scale=0.6**0.5),
        noise_law=dpjax.datasets.Normal(scale=0.1**0.5),
        params_fn=params_fn,
    )

    def risk(params):
        return float(jnp.mean((problem.features @ params - problem.targets) ** 2))

    zeros = jnp.zeros(num_features)
    fits = [
        dp_frank_wolfe(
            dpjax.losses.squared,
            zeros,
            problem.data,
            key=jax.random.key(100 + seed),
            epsilon=1.0,
            constraint=L1Ball(1.0),
            calibration=calibration,
        ).params
        for calibration in ("paper", "tight")
    ]
    best = risk(problem.true_params)
    return [risk(params) - best for params in (*fits, zeros)]


def main():
    rows = []
    for n, d, name in product((10_000, 90_000), (200, 800), PARAMS):
        risks = [excess_risks(n, d, PARAMS[name], seed) for seed in range(NUM_DRAWS)]
        means = (f"{risk:.4f}" for risk in np.mean(risks, axis=0))
        rows.append([f"{n:,}", str(d), name, *means])
    header = ["n", "d", "w*", "paper's setting", "default", "zero weights"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
