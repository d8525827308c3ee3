"""Others' methods of private regression, priced exactly under replace-one.

Each maps (problem, key, epsilon) to weights (d,), adaptive clipping all keys at once.
Gaussian releases share one mu, where the papers split epsilon and delta.
"""

import warnings
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from benchmarks.utility.hindsight import clipped_gradients, draws, on_device
from benchmarks.utility.problems import Problem, scaled_down
from dpjax.accounting import gaussian_stddev

# Of AdaSSP, the probability that its ridge is too small (Wang 2018, Algorithm 2).
FAILURE_PROB = 0.05
# Of boosted AdaSSP, the same for all data sets (Tang et al. 2023).
NUM_ROUNDS = 100
# Of TukeyEM (Amin et al. 2023, section 4), where there are records enough.
NUM_MODELS = 1_000
# Of adaptive clipping, as Andrew et al. (2021) fix them for all their tasks; besides
# their quantile, 0.5, a higher one runs, which suits gradients of few large ones.
ADAPTATION, FIRST_NORM, COUNT_NOISE = 0.2, 0.1, 1 / 20
ADAPTIVE_STEPS = 100


class LeftOut(Exception):
    """Why a method cannot do a problem."""


def generator(key: jax.Array) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())


@lru_cache(maxsize=2)
def _moments(data: Problem, bound: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns rows scaled down to a bound, X^T X and its least eigenvalue."""
    features = scaled_down(data.features, bound).astype(np.float32)
    # float32 products keep 5,000 features feasible; their error is far below the noise.
    gram = (features.T @ features).astype(np.float64)
    least = scipy.linalg.eigvalsh(gram, subset_by_index=(0, 0), driver="evr")[0]
    return features, gram, max(0.0, float(least))


def _noisy_gram(rng, gram, stddev):
    """Adds N(0, stddev^2) on the diagonal and half the variance off it, mirrored.

    Replacing a row of norm at most B moves the Frobenius norm by at most sqrt(2) B^2.
    """
    noise = rng.standard_normal(gram.shape)
    noise = np.triu(noise, 1) * np.sqrt(0.5) + np.diag(noise.diagonal() / 2)
    return gram + stddev * (noise + noise.T)


def adassp(data, key, epsilon, *, quantile=1.0) -> np.ndarray:
    """Solves noisy normal equations, with a ridge as large as their noise.

    Releases, each a third of mu^2: the least eigenvalue of X^T X, of sensitivity B^2;
    X^T X, of sqrt(2) B^2; X^T y, of 2 B b. Bounds B on rows and b on targets are
    quantiles, which are not paid for. Wang (2018), Algorithm 2, by mu.
    """
    rng = generator(key)
    row_bound, bound = _true_bounds(data, quantile)
    features, gram, least = _moments(data, row_bound)
    targets = np.clip(data.targets, -bound, bound)
    num_features = len(gram)
    unit = gaussian_stddev(epsilon, data.delta, sensitivity=1.0, num_releases=3)
    stddev = unit * row_bound**2
    floor = least + stddev * (rng.standard_normal() - np.sqrt(np.log(6 / data.delta)))
    spread = np.sqrt(num_features * np.log(2 * num_features**2 / FAILURE_PROB))
    ridge = max(0.0, stddev * spread - max(0.0, floor))
    noisy = _noisy_gram(rng, gram, np.sqrt(2) * stddev)
    noisy[np.diag_indices_from(noisy)] += ridge
    right = (features.T @ targets.astype(np.float32)).astype(np.float64)
    right += 2 * unit * row_bound * bound * rng.standard_normal(num_features)
    return scipy.linalg.solve(noisy, right, assume_a="sym")


@lru_cache(maxsize=4)
def _true_bounds(data: Problem, quantile: float) -> tuple[float, float]:
    lengths = np.linalg.norm(data.features, axis=1), np.abs(data.targets)
    return tuple(float(np.quantile(x, quantile)) for x in lengths)


def boosted_adassp(data: Problem, key: jax.Array, epsilon: float) -> np.ndarray:
    """Repeats AdaSSP on the residuals, which are clipped to 1 as rows are to norm 1.

    Gaussian releases of one multiplier: the least eigenvalue and X^T X once, X^T
    residual in each of 100 rounds, of sensitivities 1, sqrt(2) and 2. Tang et al.
    (2023).
    """
    rng = generator(key)
    features, gram, least = _moments(data, 1.0)
    num_features = len(gram)
    once = {"sensitivity": 1.0, "num_releases": NUM_ROUNDS + 2}
    stddev = gaussian_stddev(epsilon, data.delta, **once)
    floor = max(0.0, least + stddev * (rng.standard_normal() - 1.96))
    ridge = max(0.0, 1.96 * stddev * np.sqrt(num_features) - floor)
    noisy = _noisy_gram(rng, gram, np.sqrt(2) * stddev)
    noisy[np.diag_indices_from(noisy)] += ridge
    factors = scipy.linalg.lu_factor(noisy)
    params = np.zeros(num_features)
    for _ in range(NUM_ROUNDS):
        residuals = data.targets - features @ params.astype(np.float32)
        right = features.T @ np.clip(residuals, -1, 1)
        right = right + 2 * stddev * rng.standard_normal(num_features)
        params += scipy.linalg.lu_solve(factors, right)
    return params


def tukey_em(data: Problem, key: jax.Array, epsilon: float) -> np.ndarray:
    """Samples a point that is deep among least-squares fits of disjoint parts.

    Half of epsilon is for propose-test-release, with Laplace noise of 2 / epsilon as
    the paper has it (the authors' code has epsilon / 2), half for the exponential
    mechanism. Weights are zero where the test fails. Amin et al. (2023), Algorithms 1
    to 3.
    """
    rng = generator(key)
    num_samples, num_features = data.shape
    num_models = min(NUM_MODELS, num_samples // num_features)
    if num_models < 16:
        raise LeftOut(f"{num_samples // num_features} fits of d records are too few")
    order = rng.permutation(num_samples)
    size = num_samples // num_models
    parts = order[: size * num_models].reshape(num_models, size)
    pairs = ((data.features[part], data.targets[part]) for part in parts)
    models = np.array([np.linalg.lstsq(*pair, rcond=1e-6)[0] for pair in pairs], float)
    # Ties are broken by noise that no data enters.
    sides = np.sort(models.T + 1e-10 * rng.random((num_features, num_models)), axis=1)
    depths = num_models // 2
    widths = sides[:, ::-1][:, :depths] - sides[:, :depths]  # of depth i + 1 at least
    logs = np.log(widths)
    volumes = logs.sum(axis=0)
    start, half = num_models // 4, epsilon / 2
    distance = _distance_to_unsafety(volumes, half, data.delta, start)
    if distance + rng.laplace(scale=1 / half) <= np.log(1 / (2 * data.delta)) / half:
        return np.zeros(num_features)
    # The depth: log of the volume of exactly that depth, plus half's share of it.
    inner = np.append(volumes[start:], -np.inf)
    exact = volumes[start - 1 :] + np.log1p(-np.exp(inner - volumes[start - 1 :]))
    exact[-1] = volumes[-1]
    scores = exact + 0.5 * half * np.arange(len(exact))
    depth = start - 1 + int(np.argmax(scores + rng.gumbel(size=len(scores))))
    outer = np.stack([sides[:, depth], sides[:, ::-1][:, depth]])
    if depth == depths - 1:
        return rng.uniform(*outer)
    box = np.stack([sides[:, depth + 1], sides[:, ::-1][:, depth + 1]])
    return _between(rng, outer, box, logs[:, depth], logs[:, depth + 1])


def _distance_to_unsafety(volumes, epsilon, delta, start):
    """Returns the largest k that the test calls safe; -1 where none is."""
    threshold = np.log(delta / 8) - epsilon
    largest = -1
    for k in range(start - 1):
        deeper = volumes[start + k + 1 :]
        if not len(deeper):
            break
        gains = 0.5 * epsilon * np.arange(1, len(deeper) + 1)
        if np.min(volumes[start - k - 2] - deeper - gains) > threshold:
            break
        largest = k
    return largest


def _between(rng, outer, inner, log_outer, log_inner):
    """Draws uniformly from a box without one inside it.

    By the first coordinate that leaves the inner box: earlier ones are inside.
    """
    leave = log_outer + np.log1p(-np.exp(np.minimum(log_inner - log_outer, -1e-16)))
    before = np.append(0.0, np.cumsum(log_inner)[:-1])
    after = np.append(np.cumsum(log_outer[::-1])[::-1][1:], 0.0)
    scores = before + leave + after
    first = int(np.argmax(scores + rng.gumbel(size=len(scores))))
    point = rng.uniform(*outer)
    point[:first] = rng.uniform(*inner[:, :first])
    low, high = inner[0, first] - outer[0, first], outer[1, first] - inner[1, first]
    place = rng.uniform(0, low + high)
    width = inner[1, first] - inner[0, first]
    point[first] = outer[0, first] + place + (place > low) * width
    return point


@partial(jax.jit, static_argnames=("loss", "num_steps"))
def _adapt(
    features, targets, keys, rate, noise, count_noise, quantile, *, loss, num_steps
):
    num_features = features.shape[1]

    def step(index, carry):
        params, norms = carry
        gradients, share = clipped_gradients(features, targets, params, norms, loss)
        noises = draws(keys, index, num_features + 1)
        gradients += noise * norms[None] * noises[1:]
        share += count_noise * noises[0]
        norms *= jnp.exp(-ADAPTATION * (share - quantile))
        return params - rate * gradients, norms

    start = jnp.zeros((num_features, keys.size)), jnp.full(keys.size, FIRST_NORM)
    return jax.lax.fori_loop(0, num_steps, step, start)[0]


def adaptive_clipping(data, keys, epsilon, *, quantile):
    """Descent with the clip norm led to a quantile of the gradients' norms.

    Of mu^2, each step pays 1 / s^2 for a count with noise s, at most a twentieth, and
    1 / z^2 for the mean of clipped gradients with noise multiplier z.
    """
    num_samples = data.shape[0]
    mu = 1 / gaussian_stddev(epsilon, data.delta, sensitivity=1.0)
    stddev = max(COUNT_NOISE * num_samples, np.sqrt(20 * ADAPTIVE_STEPS) / mu)
    multiplier = 1 / np.sqrt(mu**2 / ADAPTIVE_STEPS - 1 / stddev**2)
    curvature = 1.0 if data.loss == "squared" else 0.25
    features = on_device(data)[0]
    largest = _largest_eigenvalue(features) / num_samples
    noises = multiplier * 2 / num_samples, stddev / num_samples
    how = keys, 1 / (curvature * largest), *noises, quantile
    steps = {"loss": data.loss, "num_steps": ADAPTIVE_STEPS}
    params = _adapt(*on_device(data), *how, **steps)
    return params, {"num_steps": ADAPTIVE_STEPS, "noise_multiplier": multiplier}


@jax.jit
def _largest_eigenvalue(features):
    def step(_, vector):
        vector = features.T @ (features @ vector)
        return vector / jnp.linalg.norm(vector)

    vector = jax.lax.fori_loop(0, 100, step, jnp.ones(features.shape[1]))
    return jnp.linalg.norm(features.T @ (features @ vector)) / jnp.linalg.norm(vector)


def diffprivlib_linear(data: Problem, key: jax.Array, epsilon: float) -> np.ndarray:
    """The functional mechanism of diffprivlib, with the data's own bounds."""
    models = _diffprivlib()
    num_features = data.shape[1]
    if num_features > 500:
        raise LeftOut("it makes d^2 / 2 noisy coefficients, one call each")
    columns = np.arange(num_features) != data.intercept
    features = data.features[:, columns].astype(np.float64)
    targets = data.targets.astype(np.float64)
    options = {"bounds_X": (features.min(axis=0), features.max(axis=0))}
    options |= {"bounds_y": (targets.min(), targets.max()), "epsilon": epsilon}
    options["random_state"] = int(generator(key).integers(2**31))
    model = models.LinearRegression(fit_intercept=data.intercept is not None, **options)
    _fit_quietly(model, features, targets)
    params = np.zeros(num_features)
    params[columns] = model.coef_
    if data.intercept is not None:
        params[data.intercept] = model.intercept_
    return params


def diffprivlib_logistic(data, key, epsilon, *, row_norm=None) -> np.ndarray:
    """Perturbs the objective, with the bound on rows of the data or a given one."""
    models = _diffprivlib()
    features = data.features.astype(np.float64)
    if row_norm is not None:
        features = scaled_down(features, row_norm)
    longest = float(np.linalg.norm(features, axis=1).max())
    options = {"epsilon": epsilon, "data_norm": row_norm or longest}
    options["random_state"] = int(generator(key).integers(2**31))
    model = models.LogisticRegression(fit_intercept=False, **options)
    _fit_quietly(model, features, data.targets > 0)
    return np.ravel(model.coef_)


def _fit_quietly(model, features, targets) -> None:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        model.fit(features, targets)


def _diffprivlib():
    try:
        from diffprivlib import models
    except ImportError as error:
        raise LeftOut(f"diffprivlib: not installed ({error})") from None
    return models
