"""Private selection: what is run, kept, released and refused; and private scores."""

import dataclasses
import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, NoOpDpEvent

from dpjax import ADD_OR_REMOVE_ONE, accounting, losses, tuning
from dpjax.accounting import PrivacyGuarantee, gaussian_epsilon, tuning_epsilon
from dpjax.solvers import Solution
from dpjax.tuning import _select
from tests.unit.refusals import refused

FREE = PrivacyGuarantee.of(0.0, 0.0, dp_event=NoOpDpEvent())
BUDGET = {"epsilon": 1.0, "delta": 0.0, "mean_trials": 4.0}


def pure(epsilon):
    return PrivacyGuarantee.of(epsilon, 0.0, dp_event=LaplaceDpEvent(1 / epsilon))


def gaussian(multiplier, delta):
    epsilon = gaussian_epsilon(multiplier, delta, sensitivity=1.0)
    return PrivacyGuarantee.of(epsilon, delta, dp_event=GaussianDpEvent(multiplier))


COST = pure(0.1)
BY_DRAW = tuning.Score(lambda params, key: params["draw"], FREE)
OF_PARAMS = tuning.Score(lambda params, key: params, FREE)
RATES = jnp.array([0.1, 1.0, 10.0])


def toy(candidate, key):
    """A run whose parameters are its candidate and a draw of its key."""
    draw = jax.random.uniform(key)
    return Solution({"of": candidate, "draw": draw}, COST, {"twice": 2 * draw})


def select(candidates=RATES, train_fn=toy, **options):
    """Selects by the draws of `toy`, but for the options."""
    options = {"score": BY_DRAW, **BUDGET, **options}
    return tuning.dp_select(train_fn, candidates, **options)


def test_the_best_run_is_released_and_the_number_of_runs_is_not(key):
    solution, law = select(key=key), _select.TrialCount("geometric", 4.0)
    num_runs = _select.draw_count(law, jax.random.fold_in(key, 0))
    draws = []
    for turn in range(1, num_runs + 1):
        index_key, run_key = jax.random.split(jax.random.fold_in(key, turn))
        index = jax.random.randint(index_key, (), 0, 3)
        draws.append((jax.random.uniform(jax.random.split(run_key)[0]), int(index)))
    best, index = max(draws)
    assert solution.params["draw"] == best == solution.stats["score"]
    assert solution.params["of"] == RATES[index]
    assert set(solution.stats) == {"twice", "candidate", "score"}
    assert solution.stats["candidate"] == index
    assert solution.privacy.epsilon == tuning_epsilon(COST, 0.0, mean_trials=4.0)
    assert "about 4 private runs" in str(solution.privacy)
    assert "different" not in str(solution.privacy)


def test_candidates_of_a_list_are_those_of_rows(key):
    assert_same(select(key=jax.random.clone(key)), select(list(RATES), key=key))


def assert_same(*solutions):
    pairs = ((x.params, x.stats) for x in solutions)
    jax.tree.map(np.testing.assert_array_equal, *pairs)


@pytest.mark.parametrize("distribution", ["geometric", "negative_binomial", "binomial"])
def test_the_number_of_runs_has_its_law(distribution):
    law = _select.TrialCount(distribution, 3.0)
    keys = jax.random.split(jax.random.key(1), 400)
    counts = np.array([_select.draw_count(law, each) for each in keys])
    wanted = law.prob(np.arange(12))
    wanted = np.append(wanted, 1 - np.sum(wanted)) * len(counts)
    seen = np.bincount(np.minimum(counts, 12), minlength=13)
    is_rare = wanted <= 5

    def distance(counts):
        pairs = ((np.append(x[~is_rare], x[is_rare].sum())) for x in (counts, wanted))
        counts, expected = pairs
        return np.sum((counts - expected) ** 2 / np.maximum(expected, 1e-9))

    # False alarms: one in a million; a fixed number of runs always fails.
    limit = scipy.stats.chi2.isf(1e-6, np.sum(~is_rare))
    assert distance(seen) < limit < distance(np.where(np.arange(13) == 3, 400, 0))
    if distribution == "geometric":
        law, keys = _select.TrialCount(distribution, 5_000.0), keys[:40]
        counts = [_select.draw_count(law, each) for each in keys]
        assert 0.5 < np.mean(counts) / 5_000 < 2
        assert len(set(counts)) > 35


def test_no_run_releases_the_default():
    law = {"mean_trials": 0.01, "distribution": "poisson"}
    default = {"of": 1.0, "draw": 0.0}
    solution = select(key=jax.random.key(0), default=default, **law)
    assert solution.params == default
    assert solution.stats == {"candidate": -1, "score": -math.inf}
    assert 0.1 < solution.privacy.epsilon < 0.11


def test_a_score_that_is_no_number_counts_as_worst(key):
    progress = _select.Progress(3).with_run(0, math.nan, 1.0)
    assert (progress.candidate, progress.num_done) == (0, 1)  # rather than none
    progress = progress.with_run(1, math.nan, 2.0)
    assert progress.candidate == 0
    progress = progress.with_run(2, -5.0, 3.0)
    assert (progress.candidate, progress.leaves[0]) == (2, 3.0)
    assert progress.with_run(1, math.nan, 4.0).candidate == 2
    assert progress.with_run(1, -5.0, 4.0).candidate == 2  # the first of a tie
    nothing = tuning.Score(lambda params, key: jnp.nan, FREE)
    assert select(key=key, score=nothing).stats["score"] == -math.inf


def test_a_list_holds_candidates_of_any_kind():
    def train(candidate, key):
        name, cost = candidate
        return Solution(jnp.zeros(3 if name == "large" else 2), pure(cost), {})

    largest = tuning.Score(lambda params, key: float(params.size), FREE)
    candidates = [("small", 0.05), ("large", 0.2)]
    solution = select(candidates, train, key=jax.random.key(3), score=largest)
    assert solution.stats["candidate"] == solution.params.size - 2
    # Whatever was drawn.
    assert solution.privacy.epsilon == tuning_epsilon(0.2, 0.0, mean_trials=4.0)
    assert "different amounts, of which the largest counts" in str(solution.privacy)


def test_candidates_whose_profiles_cross_cost_more_than_each_alone(key):
    """Half of the runs are pure, half Gaussian, and alone each kind costs the same.

    What is likelier on a neighbor among pure runs, on top, makes it unlikely there
    that a lower run is the best. Of these the Gaussian ones have the larger ratios.
    """
    delta, mean, of_pure, multiplier = 1e-6, 10.0, 0.81, 3.0
    guarantees = [pure(of_pure), gaussian(multiplier, delta)]
    options = {"epsilon": 10.0, "delta": delta, "mean_trials": mean, "key": key}
    run = lambda index, key: Solution(jnp.zeros(()), guarantees[index], {})  # noqa: E731
    epsilon = select([0, 1], run, score=OF_PARAMS, **options).privacy.epsilon
    cells = np.r_[-np.inf, np.linspace(-9, 9, 4_001), np.inf]
    law, neighbor = (
        np.diff(scipy.special.ndtr(cells - mu))[::-1] / 2 for mu in (1 / multiplier, 0)
    )
    top = 0.3
    masses = (
        np.r_[top, 2 * law, 1 - top] / 2,
        np.r_[top * math.exp(of_pure), 2 * neighbor, 1 - top * math.exp(of_pure)] / 2,
    )
    at_most = [1 - np.r_[0.0, np.cumsum(mass)] for mass in masses]
    best = [x / mean / (1 - (1 - 1 / mean) * x) for x in at_most]
    chosen, on_neighbor = (-np.diff(x) for x in best)

    def attacked(epsilon):
        return np.maximum(chosen - math.exp(epsilon) * on_neighbor, 0).sum()

    alone = [tuning_epsilon(x, delta, mean_trials=mean) for x in guarantees]
    assert attacked(max(alone)) > 100 * delta
    assert attacked(epsilon) <= delta


def test_a_score_is_paid(key):
    for records, cost in (("holdout", 0.15), ("training", 0.25)):
        score = dataclasses.replace(BY_DRAW, privacy=pure(0.15), records=records)
        epsilon = select(key=jax.random.clone(key), score=score).privacy.epsilon
        expected = tuning_epsilon(cost, 0.0, mean_trials=4.0)
        assert epsilon == pytest.approx(expected, rel=1e-9)
    both = _select._both(gaussian(6.0, 1e-5), gaussian(8.0, 1e-5))
    both = tuning_epsilon(both, 1e-5, mean_trials=4)
    exact = tuning_epsilon(GaussianDpEvent(4.8), 1e-5, mean_trials=4)
    assert both == pytest.approx(exact, rel=1e-4)  # events compose as they do


def test_a_function_that_cannot_be_traced_states_its_guarantee(key):
    def train(candidate, key):
        return Solution(np.float32(float(candidate)), COST, {})

    search = partial(select, train_fn=train, score=OF_PARAMS, key=key)
    with pytest.raises(ValueError, match=r"traceable .* got Concr.* as a list, whose"):
        search()
    with pytest.raises(ValueError, match="Else give privacy, the guarantee of a run"):
        search([1], train_fn=lambda _, key: train(jax.random.normal(key), key))
    solution = search(privacy=COST)
    assert solution.params == RATES[solution.stats["candidate"]]
    with pytest.raises(ValueError, match="privacy must be the guarantee of every run"):
        search(privacy=pure(0.05))


def test_a_search_that_was_killed_goes_on_and_runs_nothing_twice(tmp_path):
    options = {"epsilon": 2.0, "mean_trials": 12.0}
    law, root = _select.TrialCount("geometric", 12.0), jax.random.key(0)
    keys = (jax.random.fold_in(root, i) for i in itertools.count())
    runs = ((_select.draw_count(law, jax.random.fold_in(x, 0)), x) for x in keys)
    one = next(key for num_runs, key in runs if num_runs == 8)
    expected, folder = select(key=one, **options), tmp_path / "search"

    def search(allowed, **others):
        left = iter(range(allowed))

        def train(candidate, key):  # notes its runs, and is killed after the last
            if not isinstance(key, jax.core.Tracer) and next(left, None) is None:
                raise KeyboardInterrupt
            return toy(candidate, key)

        arguments = {"key": one, "checkpoint": folder, **options, **others}
        return select(train_fn=train, **arguments), len(list(left))

    with pytest.raises(KeyboardInterrupt):
        search(3)
    assert folder.stat().st_mode & 0o77 == 0
    resumed, unused = search(5)
    assert unused == 0
    assert_same(resumed, expected)
    assert_same(search(0)[0], expected)  # finished: the same release
    twice = dataclasses.replace(BY_DRAW, fn=lambda params, key: 2 * params["draw"])
    for other in {"key": jax.random.key(7)}, {"mean_trials": 11.0}, {"score": twice}:
        with pytest.raises(ValueError, match="checkpoint must be new or of this run"):
            search(0, **other)
    with pytest.raises(ValueError, match="privacy must be None with a checkpoint"):
        search(0, privacy=COST)


def test_other_data_are_another_search(tmp_path):
    def search(values):
        mean = jax.jit(lambda x: x * jnp.asarray(values).mean())
        train = lambda candidate, key: Solution(mean(candidate), COST, {})  # noqa: E731
        options = {"key": jax.random.key(0), "checkpoint": tmp_path / "search"}
        select(train_fn=train, score=OF_PARAMS, **options)

    values = np.arange(4.0, dtype=np.float32)
    search(values)
    search(values.copy())
    with pytest.raises(ValueError, match="it is of another function or data"):
        search(values[::-1] + 1)


def costly(privacy):
    return lambda candidate, key: Solution({"draw": 0.0}, privacy, {})


OF_OTHERS = costly(dataclasses.replace(COST, relation=ADD_OR_REMOVE_ONE))
FREE_OF_OTHERS = dataclasses.replace(FREE, relation=ADD_OR_REMOVE_ONE)
ADDED = dataclasses.replace(BY_DRAW, privacy=FREE_OF_OTHERS)
DRAWN = costly(accounting.Sample(100, 10).privacy(COST))
ROWS = tuning.Score(lambda params, key: RATES, FREE)
test_bad_searches_are_refused = refused(
    lambda options: select(**{"key": jax.random.key(0)} | options),
    ({"candidates": []}, "candidates must be at least one"),
    ({"candidates": jnp.zeros((0, 2))}, "candidates must be arrays with at least"),
    ({"train_fn": costly(PrivacyGuarantee.non_private())}, "finite: the best of"),
    ({"epsilon": 0.2}, "epsilon must be at least 0.2"),
    ({"train_fn": OF_OTHERS}, "the relation of a run"),
    ({"train_fn": DRAWN}, "base must be the guarantee of runs that do not"),
    ({"train_fn": DRAWN, "privacy": COST}, "privacy must be the guarantee of"),
    ({"train_fn": OF_OTHERS, "score": ADDED}, "the relation of a score on a h"),
    ({"train_fn": lambda candidate, key: candidate}, "what train_fn returns must"),
    ({"distribution": "poisson"}, "default must be given with distribution 'poisson'"),
    ({"score": toy}, "score must be a dpjax.tuning.Score"),
    ({"score": ROWS}, r"score.fn\(...\) must be a scalar"),
)


# -- Scores: their noise, and how far a record moves them ------------------------------
DATA = jnp.ones((50, 2)), jnp.full(50, 3.0)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_the_noise_of_a_score_is_there_and_has_its_scale(delta):
    budget, sensitivity = {"epsilon": 0.5, "delta": delta}, 2.0 / 50
    score = tuning.clipped_loss(losses.squared, DATA, limit=2.0, **budget)
    keys = jax.random.split(jax.random.key(0), 4_000)
    scores = jax.vmap(score.fn, (None, 0))(jnp.ones(2), keys)
    if delta == 0:
        law = scipy.stats.laplace(-0.5, sensitivity / 0.5)
        assert score.privacy.dp_event == LaplaceDpEvent(2.0)
    else:
        stddev = accounting.gaussian_stddev(**budget, sensitivity=sensitivity)
        law = scipy.stats.norm(-0.5, stddev)
        assert tuning_epsilon(score.privacy, delta, mean_trials=1) <= 0.5 * (1 + 1e-6)
    noise = np.asarray(scores) + 0.5
    for factor in (1, 2 / 3, 3 / 2, 0):  # another scale, or none, is found out
        pvalue = scipy.stats.kstest(factor * noise - 0.5, law.cdf).pvalue
        assert (pvalue > 1e-6) == (factor == 1)


def test_no_record_moves_a_score_by_more():
    def score(values):
        options = {"limit": 2.0, "epsilon": 1e9, "delta": 0.0}
        made = tuning.clipped_loss(lambda params, x: x, values, **options)
        return float(made.fn(None, jax.random.key(1)))

    values = jnp.linspace(0.0, 3.0, 21)
    for bad in (jnp.nan, jnp.inf, -jnp.inf, 1e38, -1.0, 0.0):
        moved = abs(score(values.at[0].set(bad)) - score(values.at[0].set(2.0)))
        assert moved <= 2.0 / 21 * (1 + 1e-5)
    assert score(jnp.full(21, jnp.nan)) == pytest.approx(-2.0, abs=1e-5)
