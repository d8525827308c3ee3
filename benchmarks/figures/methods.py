"""The methods of the figures: a problem and a setting in, weights out.

All have the same epsilon and delta = n^-1.1, but Frank-Wolfe's delta is 0. "tight"
takes the noise that the guarantee needs, "paper" the printed constants (`printed`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from dp_accounting import NoOpDpEvent
from jax.tree_util import Partial

from benchmarks.figures import printed
from benchmarks.figures.panel import Setting
from benchmarks.figures.problems import ProblemKind, Sample, optimum, pareto_moment
from dpjax import losses, parties, solvers
from dpjax._types import Key, Scalar
from dpjax.accounting import PrivacyGuarantee
from dpjax.batching import WithoutReplacement
from dpjax.constraints import L1Ball
from dpjax.estimators import (
    Clipping,
    SmoothedTruncation,
    TrimmedMean,
    Truncation,
    Winsorization,
)
from dpjax.solvers import Solution

_NUM_ROUNDS = 10  # of the parties' descent
_BATCH_SIZE = 1_000  # of 001's stochastic runs
_TRIMMED = 0.05  # m / n of 001's Algorithm 3
_PRIOR = 10.0  # b of its prior [-b, b], so that its kappa = b - a is 20


class Task(NamedTuple):
    """What a method gets: a problem of a size, its data, and a key."""

    problem: ProblemKind
    setting: Setting
    sample: Sample
    key: Key

    @property
    def budget(self) -> dict[str, Any]:
        """The epsilon and the delta of the run."""
        return {"epsilon": self.setting.epsilon, "delta": self.setting.delta}

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, d) of the features."""
        return self.sample.data[0].shape

    @property
    def start(self) -> jax.Array:
        """Weights of zero."""
        return jnp.zeros_like(self.sample.true_params)


@dataclass(frozen=True)
class FigureMethod:
    """A method that takes part in figures; `execution` shows its steps, if any.

    Each repetition keeps the candidate that ends best, a choice that is not private.
    """

    solve: Callable[..., Solution]
    is_private: bool = True
    has_steps: bool = True
    candidates: tuple[Mapping[str, Any], ...] = ({},)


def _zero(task: Task) -> Solution:
    nothing = PrivacyGuarantee.of(0.0, 0.0, dp_event=NoOpDpEvent())
    return Solution(task.start, nothing, {})


def _best(task: Task) -> Solution:
    params = optimum(task.problem, task.sample)
    return Solution(params, PrivacyGuarantee.non_private(), {})


def _descent(
    task, *, is_private=True, is_stochastic=False, is_printed=False, **options
) -> Solution:
    """Gradient descent; by smoothed truncation, unless there is an estimator."""
    num_steps = task.setting.num_steps or options.get("num_steps")
    estimator = options.get("estimator")
    num_samples, num_features = task.shape
    batch_size = min(_BATCH_SIZE, num_samples) if is_stochastic else num_samples
    moment = task.problem.moment_bound
    if estimator is None and (is_printed or not is_private):
        estimator = printed.smoothed_truncation(moment, batch_size)
    elif estimator is None:
        sizes = {"num_samples": batch_size, "num_coordinates": num_features}
        sizes |= {"num_steps": num_steps or 1, **task.budget}
        estimator = SmoothedTruncation.for_moment(moment, **sizes)
    options = {"learning_rate": 0.1, **options}
    options |= {"key": task.key, "estimator": estimator, "num_steps": num_steps}
    options["projection_fn"] = task.problem.project if task.problem.ball else None
    if is_stochastic:
        options |= {"batching": WithoutReplacement(batch_size), "averaging": True}
    solve = solvers.robust_gradient_descent
    if is_private:
        options |= task.budget
        if is_printed:
            steps = num_steps or math.ceil(10 * math.log(num_samples))
            spent = printed.actual_epsilon(estimator, **task.budget, num_steps=steps)
            options["epsilon"] = spent
        solve = solvers.dp_gradient_descent
    return solve(task.problem.penalized, task.start, task.sample.data, **options)


def _frank_wolfe(task: Task, *, is_printed: bool) -> Solution:
    args = task.problem.penalized, task.start, task.sample.data
    options: dict[str, Any] = {"key": task.key, "epsilon": task.setting.epsilon}
    options["constraint"] = L1Ball(1.0)
    if is_printed:
        return printed.frank_wolfe(*args, **options)
    moment = task.problem.moment_bound
    return solvers.dp_frank_wolfe(*args, moment_bound=moment, **options)


def _linear_regression(task: Task, *, is_printed: bool, is_sparse: bool) -> Solution:
    options: dict[str, Any] = {"key": task.key, **task.budget}
    if is_sparse:
        options["sparsity"] = task.setting.sparsity
    if is_printed:
        solve = printed.sparse_regression if is_sparse else printed.lasso
        return solve(*task.sample.data, **options)
    solve = solvers.dp_sparse_linear_regression if is_sparse else solvers.dp_lasso
    fourth = task.problem.fourth_moment_bound
    return solve(*task.sample.data, fourth_moment_bound=fourth, **options)


def _hard_thresholding(task: Task, *, is_printed: bool) -> Solution:
    num_samples, num_features = task.shape
    num_steps = max(1, int(math.log(num_samples)))  # T of 004's experiments
    sizes = {"num_samples": num_samples // num_steps, "num_coordinates": num_features}
    moment = task.problem.moment_bound
    estimator = SmoothedTruncation.for_moment(moment, **sizes, **task.budget)
    options = {"key": task.key, "sparsity": task.setting.sparsity, **task.budget}
    options |= {"estimator": estimator, "num_steps": num_steps}
    options["learning_rate"] = 0.5  # eta of 004's experiments
    args = task.problem.penalized, task.start, task.sample.data
    solve = solvers.dp_iterative_hard_thresholding
    return (printed.hard_thresholding if is_printed else solve)(*args, **options)


def _l1_regression(task: Task, *, is_printed: bool) -> Solution:
    _, num_features = task.shape
    options = {"key": task.key, "epsilon": task.setting.epsilon}
    options["moment_order"] = task.setting.moment_order
    options["residual_moment_bound"] = task.problem.moment_bound
    points = scipy.stats.qmc.Halton(num_features, scramble=False).random(4096)
    net = jnp.asarray(2 * points - 1, jnp.float32)
    solve = printed.l1_regression if is_printed else solvers.dp_l1_regression
    return solve(*task.sample.data, candidates=net, **options)


def _mean(task, *, is_printed=False, estimator=None) -> Solution:
    """The private mean by truncation, unless there is an estimator."""
    num_samples, num_features = task.shape
    budget, order = task.budget, task.setting.moment_order
    setting = {"num_samples": num_samples, "num_coordinates": num_features, **budget}
    setting["moment_order"], moment = order, pareto_moment(task.setting)
    if is_printed:
        estimator = Truncation(printed.threshold(moment, **setting))
        budget["epsilon"] = printed.actual_epsilon(estimator, **budget)
    elif estimator is None:
        estimator = Truncation.for_moment(moment, **setting)
    features, _ = task.sample.data
    return solvers.dp_mean(features, key=task.key, **budget, estimator=estimator)


def _untuned_mean(task: Task, *, method: str) -> Solution:
    features, _ = task.sample.data
    return solvers.dp_mean(features, key=task.key, **task.budget, method=method)


def _falling(first: Scalar, num_steps: Scalar, step: jax.Array) -> jax.Array:
    return first * (1 - step / num_steps)


# Steps from the inverse of the curvature: 1 / (4d), where d = 5 features of norm
# one point everywhere alike.
_AMONG_PARTIES: dict[str, Any] = {
    "estimator": Clipping(1.0),
    "learning_rate": partial(_falling, 20.0, _NUM_ROUNDS),
    "num_steps": _NUM_ROUNDS,
}


def _among_parties(task: Task, *, is_trusted: bool) -> Solution:
    """Parties in threads of this process; one may collude with whoever listens."""
    num_parties = task.setting.num_parties
    share = task.setting.num_samples // num_parties
    words = np.asarray(jax.random.key_data(task.key))

    def train(transport: Any) -> Solution:
        mine = slice(transport.party * share, (transport.party + 1) * share)
        data = tuple(part[mine] for part in task.sample.data)
        known = np.random.default_rng([*words, transport.party]).bytes
        options = {"max_colluding": 1, "test_only_random_bytes": known}
        given = {"secure_sum": parties.SecureSum(transport, **options), **task.budget}
        if is_trusted:
            given["regularization"] = task.problem.l2
            return solvers.dp_multiparty_objective_perturbation(*data, **given)
        args = task.problem.penalized, task.start, data
        return solvers.dp_multiparty_gradient_descent(*args, **given, **_AMONG_PARTIES)

    return parties.run_parties(train, num_parties)[0]


@cache
def _moments(problem, num_features, order) -> tuple[float, float]:
    """Returns E sup ||gradient||^order over weights of norm 1, and the smoothness."""
    with jax.ensure_compile_time_eval():
        sample = problem.draw(jax.random.key(123), Setting(100_000, num_features))
        features, targets = map(np.asarray, sample.data)
    lengths = np.linalg.norm(features, axis=1)
    is_squared = problem.loss_fn is losses.squared
    slopes = lengths + np.abs(targets) if is_squared else 1.0
    curvature = np.linalg.eigvalsh(features.T @ features / len(features))[-1]
    moment = np.mean((lengths * slopes) ** order, dtype=np.float64)
    return float(moment), float(curvature) * problem.loss_fn.curvature_bound


def _localized(task, *, is_one_pass, is_pure=False, moment_order) -> Solution:
    """Optimization in the unit ball around zero; zero where the theorem needs more."""
    moment, smoothness = _moments(task.problem, task.shape[1], moment_order)
    given = {"key": task.key, **task.budget, "diameter": 2.0}
    given |= {"moment_bound": moment, "moment_order": moment_order}
    if is_pure:
        given["delta"] = 0.0
    loss, solve = task.problem.loss_fn, solvers.dp_one_pass_sco
    if not is_one_pass:
        loss, solve = task.problem.penalized, solvers.dp_localized_sco
        given["smoothness"] = smoothness
    try:
        return solve(loss, task.start, task.sample.data, **given)
    except ValueError as error:
        if "enough records" not in str(error):
            raise
        return _zero(task)


def _linear_model(task: Task, **options: Any) -> Solution:
    loss = "squared" if task.problem.loss_fn is losses.squared else "logistic"
    options |= {"key": task.key, "intercept": None, **task.budget}
    return solvers.dp_linear_model(loss, task.sample.data, **options)


def _empirical_mean(task: Task) -> Solution:
    params = jnp.mean(task.sample.data[0], axis=0)
    return Solution(params, PrivacyGuarantee.non_private(), {})


def _inverse_root(first: Scalar, step: jax.Array) -> jax.Array:
    return first / jnp.sqrt(step + 1)  # 1 / sqrt(t) of 001, t = 1, 2, ...


def _falling_descent(task: Task, *, first: float = 1.0, **options: Any) -> Solution:
    """The usual descent, with steps that fall from the first one to zero."""
    num_steps = task.setting.num_steps or 25
    steps = Partial(_falling, first, num_steps)  # another one compiles nothing
    return _descent(task, learning_rate=steps, num_steps=num_steps, **options)


def _stochastic_descent(task: Task, *, first: float = 1.0, **options: Any) -> Solution:
    steps = Partial(_inverse_root, first)
    return _descent(task, learning_rate=steps, is_stochastic=True, **options)


# A user has to guess a scale, and a step. With one guess for all problems an estimator
# would lose where it is bad, which says nothing of it. Where a norm hardly clips, steps
# from 1 may be too long. A coordinate gets a fifth of a vector's norm.
_NORMS_AND_FIRST_STEPS = ((0.1, 1.0), (1.0, 1.0), (5.0, 1.0), (25.0, 1.0), (25.0, 0.1))


def _best_of(kind: type[Any], parts: int, solve=_falling_descent) -> FigureMethod:
    pairs = ((kind(norm / parts), first) for norm, first in _NORMS_AND_FIRST_STEPS)
    candidates = ({"estimator": one, "first": first} for one, first in pairs)
    return FigureMethod(solve, candidates=tuple(candidates))


def _by_orders(**options: Any) -> FigureMethod:
    candidates = tuple({"moment_order": order} for order in (2.0, 4.0, 8.0))
    solve = partial(_localized, **options)
    return FigureMethod(solve, has_steps=False, candidates=candidates)


# A mean takes no steps, and Pareto's tail wants long ones.
_CLIPPED_MEANS = tuple({"estimator": Clipping(5.0**power)} for power in range(5))
_TRIMMED_MEAN = TrimmedMean(_TRIMMED, -_PRIOR, _PRIOR)

# Solvers with iterates to show, and their options; then those without.
_WITH_STEPS: dict[str, tuple[Callable[..., Solution], Any]] = {
    "clipped DP-GD, one curator": (_descent, _AMONG_PARTIES),
    "parties, transcript seen": (_among_parties, {"is_trusted": False}),
    "parties, aggregator trusted": (_among_parties, {"is_trusted": True}),
    "mean, nothing to set": (_untuned_mean, {"method": "clipped"}),
    "geometric median": (_untuned_mean, {"method": "geometric_median"}),
    "RGD": (_descent, {"is_private": False}),
    "stochastic RGD": (_stochastic_descent, {"is_private": False}),
    "Algorithm 3": (_descent, {"estimator": _TRIMMED_MEAN, "learning_rate": 0.01}),
    "Algorithm 4, tight": (_descent, {}),
    "Algorithm 4, paper": (_descent, {"is_printed": True}),
    "stochastic Algorithm 4, tight": (_stochastic_descent, {}),
    **{
        f"{name}, {constants}": (solve, {"is_printed": constants == "paper"})
        for name, solve in {
            "Frank-Wolfe": _frank_wolfe,
            "LASSO": partial(_linear_regression, is_sparse=False),
            "sparse regression": partial(_linear_regression, is_sparse=True),
            "hard thresholding": _hard_thresholding,
            "l1 regression": _l1_regression,
            "private mean": _mean,
        }.items()
        for constants in ("tight", "paper")
    },
}
METHODS: dict[str, FigureMethod] = {
    "zero": FigureMethod(_zero, has_steps=False),
    "not private": FigureMethod(_best, is_private=False, has_steps=False),
    "empirical mean": FigureMethod(_empirical_mean, is_private=False, has_steps=False),
    "nothing to set": FigureMethod(_linear_model, has_steps=False),
    "mean, best clipping": FigureMethod(_mean, candidates=_CLIPPED_MEANS),
    "stochastic DP-GD, best clipping": _best_of(Clipping, 1, _stochastic_descent),
    "DP-GD, best clipping": _best_of(Clipping, 1),
    "DP-GD, best truncation": _best_of(Truncation, 5),
    "DP-GD, best winsorization": _best_of(Winsorization, 5),
    "DP-GD, best smoothed truncation": _best_of(SmoothedTruncation, 5),
    "localized": _by_orders(is_one_pass=False),
    "one pass": _by_orders(is_one_pass=True),
    "one pass, delta = 0": _by_orders(is_one_pass=True, is_pure=True),
}
for _name, (_solve, _options) in _WITH_STEPS.items():
    _is_private = _options.get("is_private", True)
    METHODS[_name] = FigureMethod(partial(_solve, **_options), is_private=_is_private)
