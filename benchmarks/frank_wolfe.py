"""dp_frank_wolfe beside a plain NumPy version of the same algorithm.

    python benchmarks/frank_wolfe.py

Paper 004, figure 1(b): linear regression with log-normal features, epsilon = 1. The
NumPy version takes the closed form of the estimator as it is printed, on a matrix of
per-sample gradients, batch by batch. And, at n = 10,000 and d = 100,000, how long one
step takes beside a pass over its batch, and what memory it needs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from timing import compile_seconds, milliseconds, print_table, temporary_bytes

import dpjax
from dpjax.constraints import L1Ball
from dpjax.solvers import dp_frank_wolfe

NUM_SAMPLES, NUM_FEATURES = 90_000, 800


def fit(features, targets, **options):
    return dp_frank_wolfe(
        dpjax.losses.squared,
        jnp.zeros(features.shape[1]),
        (features, targets),
        key=jax.random.key(1),
        epsilon=1.0,
        constraint=L1Ball(1.0),
        **options,
    )


def numpy_influence(a, beta):
    """The printed closed form of h_beta, clipped to its range."""
    b = np.abs(a) / np.sqrt(beta)
    low, high = (np.sqrt(2) - a) / b, (np.sqrt(2) + a) / b
    above, below = scipy.special.ndtr(-low), scipy.special.ndtr(-high)
    at_low = np.exp(-(low**2) / 2) / np.sqrt(2 * np.pi)
    at_high = np.exp(-(high**2) / 2) / np.sqrt(2 * np.pi)
    correction = 2 * np.sqrt(2) / 3 * (above - below)
    correction -= (a - a**3 / 6) * (above + below)
    correction -= b * (1 - a**2 / 2) * (at_low - at_high)
    correction += a * b**2 / 2 * (above + below + low * at_low + high * at_high)
    correction += b**3 / 6 * ((2 + low**2) * at_low - (2 + high**2) * at_high)
    h = a * (1 - b**2 / 2) - a**3 / 6 + correction
    limit = 2 * np.sqrt(2) / 3 * scipy.special.erf(np.sqrt(beta / 2))
    return np.nan_to_num(np.clip(h, -limit, limit))


def numpy_fit(features, targets, *, scale, beta, num_steps):
    rng = np.random.default_rng(0)
    num_samples, num_features = features.shape
    batch_size = num_samples // num_steps
    params = np.zeros(num_features, np.float32)
    limit = 2 * np.sqrt(2) / 3 * scipy.special.erf(np.sqrt(beta / 2))
    score_range = 2 * 2 * scale * limit / batch_size
    for step in range(num_steps):
        rows = slice(step * batch_size, (step + 1) * batch_size)
        x, y = features[rows], targets[rows]
        grads = x * (x @ params - y)[:, None]
        mean = scale * numpy_influence(grads / scale, beta).mean(axis=0)
        scores = np.concatenate([-mean, mean]) / score_range
        j = np.argmax(scores + rng.exponential(size=scores.shape))
        vertex = np.zeros(num_features, np.float32)
        vertex[j % num_features] = 1 if j < num_features else -1
        params += 2 / (step + 3) * (vertex - params)
    return params


def main():
    problem = dpjax.datasets.linear_model(
        jax.random.key(0),
        num_samples=NUM_SAMPLES,
        num_features=NUM_FEATURES,
        feature_law=dpjax.datasets.LogNormal(scale=0.6**0.5),
        noise_law=dpjax.datasets.Normal(scale=0.1**0.5),
        params_fn=lambda key, d: jnp.zeros(d).at[:3].set(jnp.array([0.5, -0.3, 0.2])),
    )
    stats = fit(*problem.data).stats
    setting = {name: float(stats[name]) for name in ("scale", "beta")}
    setting["num_steps"] = int(stats["num_steps"])
    host = [np.asarray(x) for x in problem.data]
    times = milliseconds(
        {
            "dp_frank_wolfe": lambda: fit(*problem.data).params,
            "NumPy": lambda: numpy_fit(*host, **setting),
        },
        repeats=5,
    )
    base = times["dp_frank_wolfe"]
    seconds = compile_seconds(lambda x, y: fit(x, y).params, *problem.data)
    print_table(
        [f"n = {NUM_SAMPLES:,}, d = {NUM_FEATURES}", "ms end to end", "times dpjax"],
        [[name, time, time / base] for name, time in times.items()],
    )
    risks = [
        float(jnp.mean((problem.features @ params - problem.targets) ** 2))
        for params in (
            fit(*problem.data).params,
            jnp.asarray(numpy_fit(*host, **setting)),
            jnp.zeros(NUM_FEATURES),
        )
    ]
    print(f"compile time {seconds:.2f} s; mean squared residuals of dpjax, NumPy and")
    print("zero: {:.3f}, {:.3f}, {:.3f}\n".format(*risks))

    shape = (10_000, 100_000)
    features = jax.random.normal(jax.random.key(2), shape)
    targets = features[:, 0]
    one_pass = jax.jit(lambda x, w: x @ w)
    num_steps = int(fit(features, targets, num_steps=21).stats["num_steps"])
    wide = milliseconds(
        {
            "a pass x @ w over all": lambda: one_pass(features, jnp.ones(shape[1])),
            "dp_frank_wolfe, 21 steps": lambda: (
                fit(features, targets, num_steps=num_steps).params
            ),
        },
        repeats=3,
    )
    base = wide["a pass x @ w over all"]
    memory = temporary_bytes(
        lambda x, y: fit(x, y, num_steps=num_steps).params, features, targets
    )
    print_table(
        ["n = 10,000, d = 100,000", "ms", "passes"],
        [[name, time, time / base] for name, time in wide.items()],
    )
    print(f"temporary memory {memory / 2**20:.1f} MiB; the data have 3,815 MiB\n")


if __name__ == "__main__":
    main()
