"""The problems of the figures: how data are drawn or read, and what is measured.

Synthetic data are drawn anew for each repetition, and scored on the records themselves,
as in the papers; of real ones n are drawn, and test records score.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import scipy.special

from benchmarks.data import load
from benchmarks.figures.panel import Setting
from dpjax import _validate, datasets, losses
from dpjax._types import Key, LossFn
from dpjax.constraints import L1Ball, L2Ball
from dpjax.datasets import LogNormal, Normal, Pareto, StudentT
from dpjax.datasets._laws import Law, LocationScale

# -- Laws of 004 and 001 that figures alone draw from ----------------------------------


class Laplace(LocationScale):
    """Laplace law, of density exp(-|x - location| / scale) / (2 scale); 004, 6.5."""

    def _sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        return self.location + self.scale * jax.random.laplace(key, shape)


class Logistic(LocationScale):
    """Logistic law of location u and scale s of 004, section 6.5."""

    def _sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        return self.location + self.scale * jax.random.logistic(key, shape)


class LogLogistic(LocationScale):
    """Log-logistic law: log x is logistic (001, section 6; 004, section 6.5).

    The law of 004 has location 0 and scale 1/c. From scale 1 on there is no mean.
    """

    def _mean(self) -> float:
        if self.scale >= 1:
            return math.inf
        angle = math.pi * self.scale
        return math.exp(self.location) * angle / math.sin(angle)

    def _sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        return jnp.exp(self.location + self.scale * jax.random.logistic(key, shape))


@dataclass(frozen=True)
class LogGamma(Law):
    """Log-gamma law of density exp(c x - e^x) / Gamma(c), c the concentration.

    The paper (004, section 6.5) prints (e^(c x) - e^x) / Gamma(c), which is no density.
    """

    concentration: float

    def __post_init__(self) -> None:
        _validate.positive(concentration=self.concentration)

    def _mean(self) -> float:
        return float(scipy.special.digamma(self.concentration))

    def _sample(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        return jax.random.loggamma(key, self.concentration, shape)


RIDGE = 1e-3  # the l2 penalty of 001, whose size it does not print


class Sample(NamedTuple):
    """One repetition's (features, targets), and those of the test.

    `true_params` are those that made the data, zeros where nobody knows.
    """

    data: tuple[jax.Array, jax.Array]
    test: tuple[jax.Array, jax.Array]
    true_params: jax.Array


@dataclass(frozen=True)
class ProblemKind:
    """A problem of any size; weights lie in the unit `ball`, "l1" or "l2", if any.

    Public bounds are on the second moment of a gradient's coordinate, and on the fourth
    ones of features and targets.
    """

    draw: Callable[[Key, Setting], Sample]
    loss_fn: LossFn
    l2: float = 0.0
    ball: str | None = None
    moment_bound: float = 1.0
    fourth_moment_bound: float = 1.0
    dataset: str | None = None

    @property
    def penalized(self) -> LossFn:
        """The loss that methods minimise."""
        return _penalized(self.loss_fn, self.l2)

    def project(self, params: Any) -> Any:
        """Maps weights into the ball."""
        if self.ball is None:
            return params
        return (L1Ball(1.0) if self.ball == "l1" else L2Ball(1.0)).project(params)


@cache
def _penalized(loss_fn: LossFn, l2: float) -> LossFn:
    def penalized(params: Any, example: Any) -> jax.Array:
        penalty = optax.tree.norm(params, squared=True)
        return loss_fn(params, example) + 0.5 * l2 * penalty

    return penalized if l2 else loss_fn


def optimum(problem: ProblemKind, sample: Sample) -> jax.Array:
    """Returns the best weights that are known, without privacy.

    Those that made linear data; else where accelerated projected descent arrives.
    """
    if problem.dataset is None and problem.loss_fn is not losses.logistic:
        return sample.true_params
    start = jnp.zeros_like(sample.true_params)
    return _accelerated(problem.penalized, problem.project, start, sample.data)


@partial(jax.jit, static_argnums=(0, 1, 4))
def _accelerated(loss_fn, project, start, data, num_steps=200) -> jax.Array:
    """Beck and Teboulle (2009), with the step size of the largest curvature."""
    features, _ = data

    def power(v, _):
        v = features.T @ (features @ v)
        return v / jnp.maximum(jnp.linalg.norm(v), 1e-30), None

    v, _ = jax.lax.scan(power, jnp.ones_like(start), None, length=20)
    curvature = jnp.mean((features @ v) ** 2) / jnp.maximum(v @ v, 1e-30) + 1e-2
    grad_fn = jax.grad(lambda w: jnp.mean(jax.vmap(loss_fn, (None, 0))(w, data)))

    def step(carry, t):
        params, ahead = carry
        new = project(ahead - grad_fn(ahead) / curvature)
        return (new, new + t / (t + 3) * (new - params)), None

    (params, _), _ = jax.lax.scan(
        step, (start, start), jnp.arange(num_steps, dtype=start.dtype)
    )
    return params


@partial(jax.jit, static_argnums=(0, 1))
def measure(metric, problem, params, best, sample) -> jax.Array:
    """Returns a metric of weights, beside `best`, those of `optimum`.

    "excess risk" is the penalized mean loss less that of `best`; for linear models half
    the mean square of <x, w - w*>, which exists where noise has no variance. "test" is
    of test records, without the penalty, and "estimation error" the distance from
    `best`.
    """
    if metric == "estimation error":
        return jnp.linalg.norm(params - best)
    is_linear_model = problem.dataset is None and problem.loss_fn is losses.squared
    if metric == "excess risk" and is_linear_model:
        return jnp.mean((sample.data[0] @ (params - best)) ** 2) / 2

    # `best` minimises the penalized loss, and others would beat it without the penalty.
    loss_fn = problem.penalized if metric == "excess risk" else problem.loss_fn
    losses_of = jax.vmap(loss_fn, (None, 0))
    data = sample.test if "test" in metric else sample.data
    values = losses_of(params, data)
    if "excess" in metric:  # record by record: they are alike, and may be large
        values -= losses_of(best, data)
    return jnp.mean(values)


def _sparse_params(sparsity: int, key: Key, num_features: int) -> jax.Array:
    """Normal weights of few features, chosen at random, of l2 norm 1 (004, 6.1)."""
    value_key, place_key = jax.random.split(key)
    values = jax.random.normal(value_key, (sparsity,))
    places = jax.random.permutation(place_key, num_features)[:sparsity]
    return jnp.zeros(num_features).at[places].set(values / jnp.linalg.norm(values))


def _synthetic(model: Callable[..., Any], **laws: Any) -> Any:
    @partial(jax.jit, static_argnums=(1, 2, 3))
    def sample(key: Key, num_samples: int, num_features: int, sparsity: int) -> Sample:
        options = {**laws, "num_samples": num_samples, "num_features": num_features}
        if options.pop("is_sparse", False):
            options["params_fn"] = partial(_sparse_params, sparsity)
        problem = model(key, **options)
        return Sample(problem.data, problem.data, problem.true_params)

    def draw(key: Key, setting: Setting) -> Sample:
        sizes = setting.num_samples, setting.num_features, setting.sparsity
        return sample(key, *sizes)

    return draw


@partial(jax.jit, static_argnums=1)
def _student_noise(key: Key, setting: Setting) -> Sample:
    """Noise with moments of order theta, and none of order theta + 0.2.

    Scored on other records: the best of few weights fits its own better than w* does.
    """
    n, law = setting.num_samples, StudentT(setting.moment_order + _EXCESS)
    sizes = {"num_samples": n + _NUM_TEST, "num_features": setting.num_features}
    problem = datasets.linear_model(key, **sizes, noise_law=law)
    features, targets = problem.data
    data, test = (features[:n], targets[:n]), (features[n:], targets[n:])
    return Sample(data, test, problem.true_params)


def logistic_model(key: Key, sign: int = 1, noise_law: Any = None, **given: Any) -> Any:
    """Draws labels, the signs of a linear model as in 004; as in 001 for sign = -1."""
    latent = datasets.linear_model(key, noise_law=noise_law, **given)
    labels = jnp.where(sign * latent.targets > 0, 1, -1).astype(latent.targets.dtype)
    return latent._replace(targets=labels)


@partial(jax.jit, static_argnums=1)
def _in_unit_ball(key: Key, setting: Setting) -> Sample:
    """Two classes; features of heavy tails, scaled down to the unit ball."""
    laws = {"feature_law": StudentT(3.0), "noise_law": Logistic()}
    sizes = {"num_samples": setting.num_samples, "num_features": setting.num_features}
    problem = logistic_model(key, **sizes, **laws)
    norms = jnp.linalg.norm(problem.features, axis=1, keepdims=True)
    data = problem.features / jnp.maximum(norms, 1), problem.targets
    return Sample(data, data, problem.true_params)


@partial(jax.jit, static_argnums=1)
def _pareto(key: Key, setting: Setting) -> Sample:
    """A law with moments of order theta, and none of order theta + 0.2."""
    law = Pareto(setting.moment_order + _EXCESS)
    samples = law.sample(key, (setting.num_samples, setting.num_features))
    data = samples, jnp.zeros(setting.num_samples)
    return Sample(data, data, jnp.full(setting.num_features, law.mean))


@partial(jax.jit, static_argnums=1)
def _student_vectors(key: Key, setting: Setting) -> Sample:
    """A round law with moments of order theta, and none of order theta + 0.2."""
    degrees = setting.moment_order + _EXCESS
    normal_key, length_key = jax.random.split(key)
    shape = setting.num_samples, setting.num_features
    squares = 2 * jax.random.gamma(length_key, degrees / 2, shape[:1])
    lengths = jnp.sqrt(degrees / squares)[:, None]
    samples = jax.random.normal(normal_key, shape) * lengths
    center = jnp.ones(setting.num_features)
    data = samples + center[None], jnp.zeros(setting.num_samples)
    return Sample(data, data, center)


def pareto_moment(setting: Setting) -> float:
    """Returns E x^theta of the Pareto law."""
    return (setting.moment_order + _EXCESS) / _EXCESS


def _real(name: Any) -> Any:
    def draw(key: Key, setting: Setting) -> Sample:
        data = _loaded(name)
        order = jax.random.permutation(key, len(data.targets))[: setting.num_samples]
        train, test = (tuple(map(jnp.asarray, x)) for x in (data.train, data.test))
        drawn = tuple(part[order] for part in train)
        return Sample(drawn, test, jnp.zeros(data.features.shape[1]))

    return draw


_loaded = cache(load)
_EXCESS = 0.2
_NUM_TEST = 100_000
_SKEWED = LogNormal(0.0, 0.6**0.5)  # Lognormal(0, sigma^2) of 004 with sigma^2 = 0.6
_SLIGHT = Normal(scale=0.1**0.5)
_WIDE = Normal(scale=5**0.5)
_LINEAR = partial(_synthetic, datasets.linear_model)
_LOGISTIC = partial(_synthetic, logistic_model)
_CENTERED = LogLogistic(location=0.2, scale=0.2).centered()
_LOG_GAMMA = LogGamma(0.5).centered()


def _sparse_linear(noise_law: Any) -> ProblemKind:
    draw = _LINEAR(feature_law=_WIDE, noise_law=noise_law, is_sparse=True)
    bounds = {"moment_bound": 50.0, "fourth_moment_bound": 75.0}  # E x^4 = 3 * 5^2
    return ProblemKind(draw, losses.squared, ball="l2", **bounds)


def _sparse_logistic(feature_law: Any, noise_law: Any, bound: float) -> ProblemKind:
    draw = _LOGISTIC(feature_law=feature_law, noise_law=noise_law, is_sparse=True)
    return ProblemKind(draw, losses.logistic, RIDGE, "l2", moment_bound=bound)


PROBLEMS = {
    "ridge, log-normal noise": ProblemKind(
        _LINEAR(), losses.squared, RIDGE, moment_bound=20.0
    ),
    "logistic, log-logistic noise": ProblemKind(
        _LOGISTIC(feature_law=Normal(), noise_law=_CENTERED, sign=-1),
        *(losses.logistic, RIDGE),
        moment_bound=0.25,
    ),
    "linear, log-normal features": ProblemKind(
        _LINEAR(feature_law=_SKEWED, noise_law=_SLIGHT),
        # Of 004, E x^4 of Lognormal(0, 0.6): e^(8 * 0.6). Targets are smaller.
        *(losses.squared, 0.0, "l1", 10.0, 121.6),
    ),
    "linear, Student-t features": ProblemKind(
        _LINEAR(feature_law=StudentT(10.0), noise_law=_SLIGHT),
        *(losses.squared, 0.0, "l1", 2.0, 6.25),  # 3 * 10^2 / (8 * 6)
    ),
    "logistic, log-normal features": ProblemKind(
        _LOGISTIC(feature_law=_SKEWED),
        *(losses.logistic, 0.0, "l1", 3.4),  # E x^2 = e^1.2; a derivative is at most 1
    ),
    "sparse linear, log-normal noise": _sparse_linear(
        LogNormal(0.0, 0.5**0.5).centered()
    ),
    "sparse linear, log-logistic noise": _sparse_linear(LogLogistic(0.0, 10.0)),
    "sparse linear, log-gamma noise": _sparse_linear(_LOG_GAMMA),
    "sparse logistic, logistic noise": _sparse_logistic(
        _WIDE, Logistic(scale=0.5), 5.0
    ),
    "sparse logistic, log-gamma noise": _sparse_logistic(
        Laplace(scale=5.0), _LOG_GAMMA, 50.0
    ),
    "linear, noise of order theta": ProblemKind(
        _student_noise, losses.absolute, moment_bound=20.0
    ),
    "logistic, in the unit ball": ProblemKind(
        _in_unit_ball, losses.logistic, RIDGE, moment_bound=0.25
    ),
    "mean of a Pareto law": ProblemKind(_pareto, losses.squared),
    "center of a Student law": ProblemKind(_student_vectors, losses.squared),
}
# Real data: the data set, whether its targets are numbers, and the l2 penalty; without
# one the weights lie in the l1 ball.
for _name, _dataset, _is_linear, _l2 in (
    ("Adult, ridge", "adult", True, RIDGE),
    ("Adult, logistic", "adult", False, RIDGE),
    ("BlogFeedback", "blog_feedback", True, 0.0),
    ("RAND HIE", "rand_hie", True, 0.0),
    ("credit default", "credit_default", False, 0.0),
    ("Adult in the l1 ball", "adult", False, 0.0),
    ("Belgian motor", "belgian_motor", True, 0.0),
):
    _loss, _bound = (losses.squared, 1.0) if _is_linear else (losses.logistic, 0.25)
    _ball = None if _l2 else "l1"
    PROBLEMS[_name] = ProblemKind(
        *(_real(_dataset), _loss, _l2, _ball, _bound), dataset=_dataset
    )
