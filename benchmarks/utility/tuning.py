"""Private tuning beside one untuned run, of the same total budget."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.comparison import Numbers, shown, wins
from benchmarks.page import listed, machines, number, source, table
from benchmarks.record import RESULTS, Record, read
from benchmarks.utility import hindsight, methods
from benchmarks.utility.hindsight import Setting
from benchmarks.utility.methods import LOSSES, Method
from benchmarks.utility.problems import Problem
from dpjax import accounting, solvers, tuning
from dpjax.estimators import Clipping

OURS = "dp_linear_model"
PATH = RESULTS / "tuning.json"
PROBLEMS = ("adult", "rand_hie")
NORMS = (1.0, 3.0, 10.0, 30.0, 100.0)
STEPS = (0.1, 0.3, 1.0, 3.0)
NUM_STEPS = 100
TRIALS = (3, 10, 30)
DISTRIBUTION = "geometric"
HOLDOUT = 0.1  # of the training records, which a search scores its runs on
# Of one record's loss in a score; the loss of zero weights is 0.69 for labels.
LIMITS = {"squared": 20.0, "logistic": 2.0}
_SEED = 2021  # public: which records are held out


def grid() -> list[Setting]:
    """The candidates of the search."""
    return [Setting(*pair, NUM_STEPS) for pair in product(NORMS, STEPS)]


def split(data: Problem) -> tuple[Any, Any]:
    """Returns the records that runs train on, and those that score them."""
    features, targets = data.train
    order = np.random.default_rng(_SEED).permutation(len(targets))
    num_scored = round(HOLDOUT * len(targets))
    parts = order[num_scored:], order[:num_scored]
    return tuple((jnp.asarray(features[i]), jnp.asarray(targets[i])) for i in parts)


def select(data, keys, epsilon, *, mean_trials, limit_factor=1.0):
    """Searches with every key; returns weights (d, keys), and how the budget splits."""
    delta, loss_fn = data.delta, LOSSES[data.loss]
    law = {"mean_trials": mean_trials, "distribution": DISTRIBUTION}
    each = accounting.tuning_budget(epsilon, delta, **law)
    cost = accounting.gaussian_epsilon(each.noise_multiplier, delta, sensitivity=1.0)
    budget = {"epsilon": cost, "delta": delta}
    trained, held_out = split(data)
    limit = limit_factor * LIMITS[data.loss]
    score = tuning.clipped_loss(loss_fn, held_out, limit=limit, **budget)

    def train(candidate, key):
        options = {"learning_rate": candidate.learning_rate, "num_steps": NUM_STEPS}
        options |= {"estimator": Clipping(candidate.l2_clip_norm), "key": key, **budget}
        start = jnp.zeros(data.shape[1])
        return solvers.dp_gradient_descent(loss_fn, start, trained, **options)

    norms, steps, num_steps = np.float32(grid()).T
    candidates = Setting(norms, steps, num_steps)
    law |= {"epsilon": epsilon, "delta": delta, "score": score}
    search = partial(tuning.dp_select, train, candidates, **law)
    params = [np.asarray(search(key=key).params) for key in keys]
    found = {"mean_trials": mean_trials, "epsilon_of_a_run": cost}
    found |= {"num_trained": len(trained[1]), "num_scored": len(held_out[1])}
    return np.stack(params, axis=1), found | {"num_candidates": len(norms)}


def best_of_grid(data, keys, epsilon, *, by_score):
    """Chooses on keys of its own, by the excess or by scores without noise; runs it."""
    own = jax.random.fold_in(keys[0], hindsight.CHOICE)
    own = jax.random.split(own, hindsight.NUM_CHOICE_KEYS)
    if by_score:
        params = hindsight.descend(data, grid(), own, epsilon)
        held_out, limit = split(data)[1], LIMITS[data.loss]

        def score(params):  # what a search adds noise to
            losses = jax.vmap(LOSSES[data.loss], (None, 0))(params, held_out)
            return jnp.mean(jnp.clip(losses, 0.0, limit))

        found = jax.vmap(score)(params.reshape(len(params), -1).T)
        setting = grid()[int(np.argmin(found.reshape(-1, own.size).mean(axis=1)))]
    else:
        setting = hindsight.choose(data, own, epsilon, grid())
    return hindsight.descend(data, [setting], keys, epsilon)[:, 0], setting._asdict()


_NAME = "`dp_select`, {} trials on average"
SEARCHES = (
    *(
        Method(f"select_{mean}", _NAME.format(mean), partial(select, mean_trials=mean))
        for mean in TRIALS
    ),
    Method(
        *("select_10_wide", _NAME.format(10) + ", losses clipped 10 times higher"),
        partial(select, mean_trials=10, limit_factor=10.0),
    ),
)
BESTS = tuple(
    Method(
        *(f"grid_by_{name}", f"the same grid, best by {words}"),
        partial(best_of_grid, by_score=name == "score"),
        is_private=False,
    )
    for name, words in (("score", "its scores without noise"), ("risk", "test risk"))
)
METHODS = {one.name: one for one in (methods.METHODS[OURS], *SEARCHES, *BESTS)}


def parts(path: Path = PATH) -> dict[str, Any]:
    """Returns the parts of the page."""
    numbers = Numbers(content := read(path))
    problems = [name for name in PROBLEMS if name in content.facts]
    facts = [content.facts[name] for name in problems]
    titles = [one["title"] for one in facts]
    rows, won = [], []
    for one in METHODS.values():
        found = (numbers.of(name, one.name, 1.0) for name in problems)
        rows.append([one.title, *map(shown, found)])
    rows.append(["zero weights", *(number(one["zero_excess"]) for one in facts)])
    trials = [f"{mean} trials on average" for mean in TRIALS]
    for one in SEARCHES:
        won.append([one.title, *(_won(content, name, one.name) for name in problems)])
    return {
        "norms": listed(NORMS),
        "steps": listed(STEPS),
        "num_steps": NUM_STEPS,
        "distribution": DISTRIBUTION,
        "holdout": HOLDOUT,
        **LIMITS,
        "tuning_source": source(path),
        "tuning": table(["excess test risk, epsilon 1 in all", *titles], rows),
        "splits": table(["data", *trials, "trained on", "scored on"], _splits(content)),
        "tuning_machines": machines(content),
        "wins": table(["than", *titles], won),
    }


def _splits(content: Record) -> Iterator[list[str]]:
    for name in PROBLEMS:
        places = ((name, f"select_{mean}", 1.0) for mean in TRIALS)
        facts = [row["facts"] for one in places if (row := content.rows.get(one))]
        if len(facts) == len(TRIALS):
            each = (number(one["epsilon_of_a_run"]) for one in facts)
            counts = facts[0]["num_trained"], facts[0]["num_scored"]
            records = (f"{count:,.0f} records" for count in counts)
            yield [content.facts[name]["title"], *each, *records]


def _won(content: Record, problem: str, method: str) -> str:
    """Says in which share of pairs of keys the untuned run is better."""
    ours, other = (content.rows.get((problem, name, 1.0)) for name in (OURS, method))
    return "" if ours is None or other is None else f"{wins(ours, other):.0%}"
