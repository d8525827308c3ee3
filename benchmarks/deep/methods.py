"""The methods of the page of deep networks: recipes, and the one loop that runs them.

What a recipe releases is divided by the largest norm of an influence: a step's signal
is 1 at most, and its noise's stddev 2 z / b, of noise multiplier z and batch size b.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from benchmarks.comparison import LARGEST_EXCESS, Suite, key_of, keys_of
from benchmarks.deep import tasks
from benchmarks.deep.tasks import Task
from benchmarks.record import RESULTS, Row, rounded
from benchmarks.utility.hindsight import CHOICE, Setting
from dpjax import PrivateTraining, losses
from dpjax.accounting import Sampling, noise_multiplier, noise_multiplier_to_epsilon
from dpjax.batching import CyclicPoisson, Poisson
from dpjax.batching._batching import Batching
from dpjax.estimators import (
    AdaptiveThreshold,
    Clipping,
    Normalization,
    SmoothedClipping,
)
from dpjax.gradients import streamed_grad
from dpjax.mechanisms import BandedToeplitz
from dpjax.mechanisms._strategy import Strategy
from dpjax.solvers import dp_linear_model
from dpjax.transforms import privatize, scale_by_dp_adam

BATCHES = 16  # expected batches to an epoch
NUM_STEPS = 200
NUM_BANDS = 4
LOWER, UPPER = 1e-4, 1e4  # of thresholds that adapt
FIRST, SPEED = 0.03, 0.3  # the first one; how fast its logarithm moves
LEAST_LONG, MOST_LONG = 0.05, 0.5  # shares of samples that are clipped, by the noise
TAIL = 0.98  # the quantile where the tail of a target must not be lost
PEAK, LEAST_NOISE = 1.3, 0.1  # of rates: one is the other over the noise's norm
ADAM_RATE = 0.03
HEAD_SHARE = 0.4  # of the budget, for the last layer of a regression


@dataclass(frozen=True)
class Recipe:
    """How to train, but for the numbers that hindsight chooses.

    Attributes:
        estimator: from a size to the estimator: the clip norm, scale or offset; of
            thresholds that adapt, the quantile that they follow.
        size: of a task and the norm of the noise; None where hindsight chooses it.
        power: the rate falls by (1 - t / T)^power, after a short rise.
        adam: makes the adam that takes the steps; None are plain steps.
        num_bands: of the noise; 1 is independent noise.
        refits: whether `dp_linear_model` fits the last layer anew in the end.
    """

    name: str
    title: str
    estimator: Callable[[Any], Any]
    size: Callable[[Task, float], float] | None = None
    power: float = 1.0
    adam: Callable[[], optax.GradientTransformation] | None = None
    num_bands: int = 1
    refits: bool = False

    def head_share(self, task: Task) -> float:
        """The last layer's share of the budget: none of classes, for which it loses."""
        return HEAD_SHARE if self.refits and task.loss == "squared" else 0.0


def _adaptive_clipping(quantile):
    options = {"lower": LOWER, "upper": UPPER, "learning_rate": SPEED}
    return AdaptiveThreshold(Clipping(FIRST), quantile=quantile, **options)


def _by_noise(task, noise):
    """The quantile 1 - nu: the more noise, the more samples are clipped."""
    del task
    return 1 - min(MOST_LONG, max(LEAST_LONG, noise))


def _by_loss(task, noise):
    """A high quantile for squared loss, whose gradients have the tail of the target."""
    return TAIL if task.loss == "squared" else _by_noise(task, noise)


def _adaptive(name, words="", size=_by_loss, **options):
    return Recipe(
        name, f"adaptive clipping{words}", _adaptive_clipping, size, **options
    )


def _fixed(name, title, estimator, size, num_bands=1):
    return Recipe(name, title, estimator, lambda *_: size, num_bands=num_bands)


RECIPES = {
    one.name: one
    for one in (
        _adaptive("adaptive_refit", ", last layer anew", refits=True),
        _adaptive("adaptive"),
        _adaptive("adaptive_noise", ", quantile by the noise", _by_noise),
        _adaptive("adaptive_tail", f", quantile {TAIL:g}", lambda *_: TAIL),
        _adaptive("adaptive_adam", ", adam", adam=optax.scale_by_adam),
        _adaptive(
            "adaptive_dp_adam", ", adam without the noise", adam=scale_by_dp_adam
        ),
        _fixed("normalized", "normalization", Normalization, 0.01),
        _fixed(
            *("normalized_correlated", "normalization, correlated noise"),
            *(Normalization, 0.01, NUM_BANDS),
        ),
        _fixed("smoothed", "smoothed clipping at 1", SmoothedClipping, 1.0),
        _fixed("clipping", "clipping at 1", Clipping, 1.0),
        _fixed(
            *("correlated", "clipping at 1, correlated noise", Clipping, 1.0, NUM_BANDS)
        ),
    )
}


@dataclass(frozen=True)
class Plan:
    """What a budget makes of a recipe: public numbers, found before any data.

    Attributes:
        noise: the strategy; None is independent noise.
        multiplier: z, of the noise that the strategy correlates.
        stddev: of a step's mean; of independent noise that moves all steps' sum alike.
        head_epsilon: of the last layer, at the same delta; 0 where it is not refitted.
    """

    batching: Batching
    num_steps: int
    noise: Strategy | None
    multiplier: float
    stddev: float
    head_epsilon: float = 0.0


@cache
def plan(num_samples, epsilon, delta, num_steps, num_bands=1, head_share=0.0) -> Plan:
    """Returns the plan for a budget, whatever the data."""
    size = num_samples // BATCHES
    # The same for all budgets, and so their programs; `init` refuses too few.
    capacity = size + math.ceil(8 * math.sqrt(size))
    if num_bands == 1:
        batching, strategy, relative = Poisson(size, capacity), None, 1.0
    else:
        batching = CyclicPoisson(size, cycle_length=num_bands, capacity=capacity)
        strategy = BandedToeplitz.square_root(num_steps, num_bands)
        row = np.linalg.solve(strategy.matrix().T, np.ones(num_steps))
        relative = np.linalg.norm(row) / math.sqrt(num_steps)
    batching.init(  # refuses a capacity that is too small for this budget
        jax.random.key(0), num_samples, num_steps, epsilon=epsilon, delta=delta
    )
    head_epsilon, fields = 0.0, {"strategy": strategy}
    if strategy is None:
        fields, once = {"other_multiplier": math.inf}, Sampling(num_steps=1)
        if head_share:
            alone = noise_multiplier(epsilon, delta, once) / math.sqrt(head_share)
            head_epsilon = noise_multiplier_to_epsilon(alone, delta, once)
            # What dp_linear_model takes at that epsilon.
            fields["other_multiplier"] = noise_multiplier(head_epsilon, delta, once)
    sampling = batching.sampling(num_samples, num_steps, **fields)
    multiplier = noise_multiplier(epsilon, delta, sampling)
    stddev = float(2 * multiplier / size * relative)
    return Plan(batching, num_steps, strategy, multiplier, stddev, head_epsilon)


def settings(recipe: Recipe, how: Plan, task: Task) -> tuple[float, float]:
    """Returns size and largest rate by the norm of a step's noise, sqrt(d) stddev."""
    noise = math.sqrt(task.num_params) * how.stddev
    rate = ADAM_RATE if recipe.adam else PEAK / (LEAST_NOISE + noise)
    return recipe.size(task, noise), rate


def train_all(task, recipe, how, sizes, learning_rates, keys) -> np.ndarray:
    """Returns test losses (keys, settings) after training with sizes and rates."""
    kind = task, recipe.estimator, recipe.adam, how.batching, how.noise
    numbers = how.num_steps, recipe.power, how.multiplier
    grid = (jnp.asarray(x, float) for x in (sizes, learning_rates))
    params = _train_all(kind, numbers, *grid, keys)
    if how.head_epsilon:
        params = _refit_all(task, how.head_epsilon, params, keys)
    return np.asarray(jax.jit(jax.vmap(jax.vmap(task.test_loss)))(params), float)


@partial(jax.jit, static_argnums=0)
def _train_all(kind, numbers, sizes, rates, keys):
    # One program for all budgets, lengths and schedules: compiling takes most time.
    task, estimator_fn, adam, batching, noise = kind
    num_steps, power, multiplier = numbers
    data = jax.tree.map(jnp.asarray, task.train)
    grad_fn = streamed_grad(task.loss_fn)

    def shape(step):  # of the rate
        now, end = (jnp.asarray(count, jnp.float32) for count in (step, num_steps))
        rises = jnp.minimum(1, (now + 1) / (0.1 * end))
        return jnp.where(power > 0, rises * (1 - now / end) ** power, 1)

    def run(size, learning_rate, key):
        init_key, batch_key, noise_key = jax.random.split(key, 3)
        estimator = estimator_fn(size)
        options = {"normalize_by": batching.divisor(task.num_samples, NUM_STEPS)}
        options |= {"noise_multiplier": multiplier, "noise": noise, "key": noise_key}
        optimizer = dpjax.chain(
            privatize(estimator, **options),
            *([adam()] if adam else []),
            optax.scale_by_schedule(lambda step: -learning_rate * shape(step)),
        )

        def step(_, carry):
            params, state, batches = carry
            batch, is_padding, batches = batching.draw(batches, data)
            limit = 1.0 if adam else _limit(estimator, state)
            updates, state = optimizer.update(
                grad_fn(params, batch), state, params, is_padding_example=is_padding
            )
            updates = jax.tree.map(lambda x: x / limit, updates)
            return optax.apply_updates(params, updates), state, batches

        params = task.init(init_key)
        # The plan has checked the capacity, for the run's own budget.
        batches = batching.init(
            batch_key, task.num_samples, NUM_STEPS, epsilon=1.0, delta=1e-4
        )
        start = (params, optimizer.init(params), batches)
        return jax.lax.fori_loop(0, num_steps, step, start)[0]

    run_all = jax.vmap(run, in_axes=(0, 0, None))
    return jax.lax.map(lambda key: run_all(sizes, rates, key), keys)


@partial(jax.jit, static_argnums=(0, 1))
def _refit_all(task, epsilon, params, keys):
    """Returns params with the last layer fitted anew, for all keys and settings."""

    def refit(params, key):
        key = jax.random.fold_in(key, 1)  # run's keys are split from it
        options = {"epsilon": epsilon, "delta": task.delta, "intercept": -1, "key": key}
        weights = dp_linear_model("squared", task.head_data(params), **options).params
        return params | {"w_head": weights[:-1, None], "b_head": weights[-1:]}

    return jax.vmap(jax.vmap(refit, in_axes=(0, None)))(params, keys)


def _limit(estimator, state):
    """Returns the largest norm of an influence, with the thresholds of now."""
    if isinstance(estimator, AdaptiveThreshold):
        return estimator.at(optax.tree.get(state, "thresholds")).estimator.limit
    return estimator.limit


# -- Fixed clipping with its settings chosen in hindsight: the bar of the page ---------

# Norm, rate and number of steps are the best of a grid by the very test loss that the
# page reports, on keys of their own, which is not private. An update is the rate times
# the noisy mean over the norm. All settings of one key share batches and noise.
NORMS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
RATES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
STEPS = (NUM_STEPS // 4, NUM_STEPS)
NUM_CHOICE_KEYS = 2
_FALLING = Recipe("hindsight_falling", "the same, rates that fall", Clipping)
BARS = {
    "hindsight": Recipe("hindsight", "clipping, in hindsight", Clipping, power=0.0),
    "hindsight_falling": _FALLING,
}


def grid_losses(task: Task, bar: Recipe, epsilon: float, key: jax.Array):
    """Returns the mean test loss of every setting over keys of the choice."""
    keys = jax.random.split(jax.random.fold_in(key, CHOICE), NUM_CHOICE_KEYS)
    pairs, found = list(product(NORMS, RATES)), {}
    for num_steps in STEPS:
        how = plan(task.num_samples, epsilon, task.delta, num_steps)
        found_losses = train_all(task, bar, how, *zip(*pairs, strict=True), keys)
        means = np.nan_to_num(found_losses.mean(axis=0), nan=np.inf)
        for pair, mean in zip(pairs, means, strict=True):
            found[Setting(*pair, num_steps)] = float(mean)
    return found


# -- Methods with nothing to set, and one with the kind of the loss --------------------

UNTUNED = {
    "private_training": "PrivateTraining, nothing set",
    "classes": "PrivateTraining, the 0.9 quantile",
    "last_layer": "dp_linear_model as the last layer, nothing set",
}


def measured(task, method, epsilon, keys) -> dict[str, np.ndarray]:
    """Returns test losses, and of classes accuracies, of shape (keys,)."""
    how = {} if method == "private_training" else {"estimator": _adaptive_clipping(0.9)}
    train = _last_layer if method == "last_layer" else partial(_trained, **how)
    found = train(task, {"epsilon": epsilon, "delta": task.delta}, keys)
    measures = {"loss": task.test_loss, "accuracy": task.accuracy}
    if task.loss == "squared":
        del measures["accuracy"]
    return {
        name: np.array([float(jax.jit(measure)(params)) for params in found])
        for name, measure in measures.items()
    }


def _trained(task, budget, keys, **how):
    how |= budget | {"num_samples": task.num_samples, "relation": task.relation}
    run = PrivateTraining(task.loss_fn, **how)

    @jax.jit
    def train(key, data):
        init_key, key = jax.random.split(key)
        one = lambda _, state: run.step(state, data)[0]  # noqa: E731
        state = run.init(task.init(init_key), key)
        return jax.lax.fori_loop(0, run.num_steps, one, state).params

    return [train(key, jax.tree.map(jnp.asarray, task.train)) for key in keys]


def _last_layer(task, budget, keys):
    """Fits the features of the network before any step."""

    def fit(key):
        init_key, key = jax.random.split(key)
        params = task.init(init_key)
        data, num_outputs = task.head_data(params), params["b_head"].size
        loss = losses.softmax(num_outputs) if task.loss != "squared" else "squared"
        solution = dp_linear_model(loss, data, key=key, intercept=-1, **budget)
        weights = solution.params.reshape(-1, num_outputs)
        return params | {"w_head": weights[:-1], "b_head": weights[-1]}

    return [fit(key) for key in keys]


# -- What `python -m benchmarks deep` runs; a row's excess is the test loss itself -----

PATH = RESULTS / "deep.json"
EPSILONS = (1.0, 3.0, 8.0)
METHODS = {**BARS, **RECIPES}
TITLES = {name: one.title for name, one in METHODS.items()} | UNTUNED
SEED = 23


def run_named(problem, method, epsilon, repetitions) -> tuple[Row, dict[str, Any]]:
    """Returns the row and the facts of the task."""
    task = tasks.task(problem)
    return run_one(task, method, epsilon, repetitions), facts(task)


def run_one(task: Task, method: str, epsilon: float, repetitions: int) -> Row:
    """Trains a method's repetitions, with keys that depend on all that is run."""
    key = key_of(SEED, task.name, method, epsilon)
    start, keys = time.perf_counter(), keys_of(key, repetitions)
    if method in UNTUNED:
        found = measured(task, method, epsilon, keys)
        return _row(found.pop("loss"), start, {k: v.mean() for k, v in found.items()})
    recipe, budget = METHODS[method], (task.num_samples, epsilon, task.delta)
    if method in BARS:
        found = grid_losses(task, recipe, epsilon, key)
        size, learning_rate, num_steps = min(found, key=lambda one: found[one])
        how = plan(*budget, num_steps)
        taken = {"norm": size, "rate": learning_rate, "num_steps": num_steps}
    else:
        how = plan(*budget, NUM_STEPS, recipe.num_bands, recipe.head_share(task))
        size, learning_rate = settings(recipe, how, task)
        taken = {"size": size, "rate": learning_rate, "stddev": how.stddev}
    losses = train_all(task, recipe, how, [size], [learning_rate], keys)[:, 0]
    return _row(losses, start, taken)


def _row(losses, start: float, taken: dict[str, Any]) -> Row:
    losses = np.minimum(np.nan_to_num(losses, nan=LARGEST_EXCESS), LARGEST_EXCESS)
    seconds = round(time.perf_counter() - start, 3)
    facts = {name: rounded(value, 4) for name, value in taken.items()}
    return {"excess": [rounded(x) for x in losses], "seconds": seconds, "facts": facts}


def facts(task: Task) -> dict[str, Any]:
    """What the page says of a task."""
    names = "title", "model", "loss", "delta", "constant_loss"
    known = {name: getattr(task, name) for name in names}
    known |= {"n": task.num_samples, "d": task.num_params}
    known |= {"num_test": len(task.test[1]), "is_made": task.name in tasks.MADE_NAMES}
    return known | {"noiseless_loss": noiseless_loss(task)}


@cache
def noiseless_loss(task: Task) -> float:
    """The test loss by adam without noise, where hardly a gradient is clipped."""
    recipe = Recipe("", "", Clipping, adam=optax.scale_by_adam)
    how = plan(task.num_samples, 1.0, task.delta, NUM_STEPS)
    how = dataclasses.replace(how, multiplier=0.0)
    keys = jax.random.split(jax.random.key(SEED), 1)
    return float(train_all(task, recipe, how, [1e4], [ADAM_RATE], keys)[0, 0])


PARTS = {
    "run": Suite(
        *(run_named, TITLES, tasks.NAMES, EPSILONS, 4, PATH, ("optax",)),
        others=(*tasks.MADE_NAMES, *tasks.PUBLISHED_NAMES),
    )
}
