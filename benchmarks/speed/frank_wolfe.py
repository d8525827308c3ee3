"""dp_frank_wolfe beside a plain NumPy version, and beside a pass over the data."""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

import dpjax
from benchmarks.speed.case import Case, Method, Target, Work
from benchmarks.speed.estimators import OPERATIONS
from benchmarks.speed.models import normal
from dpjax.constraints import L1Ball
from dpjax.solvers import dp_frank_wolfe


def _numpy_influence(a, beta):
    """The closed form of h_beta as the literature prints it, clipped to its range."""
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


def numpy_frank_wolfe(features, targets, *, scale, beta, num_steps):
    """The same algorithm on a matrix of per-sample gradients, batch by batch."""
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
        mean = scale * _numpy_influence(grads / scale, beta).mean(axis=0)
        scores = np.concatenate([-mean, mean]) / score_range
        j = np.argmax(scores + rng.exponential(size=scores.shape))
        vertex = np.zeros(num_features, np.float32)
        vertex[j % num_features] = 1 if j < num_features else -1
        params += 2 / (step + 3) * (vertex - params)
    return params


@lru_cache(maxsize=1)
def log_normal_data(n, d):
    """Linear regression with log-normal features, three of which count."""
    rng = np.random.default_rng(0)
    features = jnp.exp(normal(rng, (n, d), 0.6**0.5))
    mean = features[:, :3] @ jnp.array([0.5, -0.3, 0.2])
    return features, mean + normal(rng, (n,), 0.1**0.5)


def fit(features, targets, **options):
    """Private Frank-Wolfe over the unit l1 ball; returns the solution."""
    return dp_frank_wolfe(
        dpjax.losses.squared,
        jnp.zeros(features.shape[1]),
        (features, targets),
        key=jax.random.key(1),
        epsilon=1.0,
        constraint=L1Ball(1.0),
        **options,
    )


def least_work(n, d):
    """All batches together: the data once, with the influence of beta 9.21."""
    operations = OPERATIONS["SmoothedTruncation, beta 9.21"]
    sizes = {"n": n, "d": d, "c": operations}
    return Work("4*n*(d + 1)", "(4 + c)*n*d", "4*n*(d + 1)", sizes)


def _frank_wolfes(quick):
    n, d = (10_000, 200) if quick else (90_000, 800)

    def ours():
        return lambda x, y: fit(x, y).params, log_normal_data(n, d)

    def numpy():
        data = log_normal_data(n, d)
        stats = fit(*data).stats
        setting = {name: float(stats[name]) for name in ("scale", "beta")}
        setting["num_steps"] = int(stats["num_steps"])
        return partial(numpy_frank_wolfe, **setting), tuple(map(np.asarray, data))

    work = partial(least_work, n, d)
    return [
        Method("dp_frank_wolfe", ours, work=work),
        Method("NumPy", numpy, "numpy", work=work),
    ]


FRANK_WOLFE = Case(
    name="frank-wolfe",
    title="dp_frank_wolfe end to end, n = 90,000, d = 800",
    build=_frank_wolfes,
    yardstick="dp_frank_wolfe",
    targets=[Target("dp_frank_wolfe", ["NumPy"], times_faster=20)],
)


def _wide(quick):
    n, d = (1_000, 2_000) if quick else (10_000, 20_000)

    def ours():
        return lambda x, y: fit(x, y, num_steps=21).params, log_normal_data(n, d)

    def product():
        return jax.jit(jnp.matmul), (log_normal_data(n, d)[0], jnp.ones(d))

    return [
        Method("x @ w over all records", product, "jax"),
        Method("dp_frank_wolfe, 21 steps", ours, work=partial(least_work, n, d)),
    ]


WIDE = Case(
    name="frank-wolfe-wide",
    title="dp_frank_wolfe, n = 10,000, d = 20,000, beside a pass over the data",
    build=_wide,
    yardstick="x @ w over all records",
)
