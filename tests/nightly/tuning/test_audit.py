"""Attacks on private selection, sound and with two faults planted."""

import math

import jax
import numpy as np
import pytest
from dp_accounting import LaplaceDpEvent, NoOpDpEvent

from benchmarks.audits.case import Case
from dpjax import accounting, solvers, tuning
from dpjax.tuning import _select

COST = 2.0
LAW = {"mean_trials": 3.0, "distribution": "negative_binomial"}
PRIVACY = accounting.PrivacyGuarantee.of(COST, 0.0, dp_event=LaplaceDpEvent(1 / COST))
FREE = accounting.PrivacyGuarantee.of(0.0, 0.0, dp_event=NoOpDpEvent())
PRICE = accounting.tuning_epsilon(COST, 0.0, **LAW)
CLAIM = accounting.PrivacyGuarantee.of(PRICE, 0.0, dp_event=NoOpDpEvent())


def uniform(key):
    return (int(np.asarray(jax.random.key_data(key))[0]) + 0.5) / 2**32


def select(key, train_fn, score):
    return tuning.dp_select(
        train_fn, [None], key=key, epsilon=10.0, delta=0.0, score=score,
        privacy=PRIVACY, **LAW,
    )  # fmt: skip


def case(release):
    return Case(release, np.float32(0), np.float32(1), CLAIM, vectorize=False)


def fixed_number_of_trials(is_planted):
    """Runs answer with a bit by randomised response; one is the better answer."""
    truth = 1 / (1 + math.exp(-COST))
    score = tuning.Score(lambda params, key: params, FREE)

    def release(key, bit):
        def train(candidate, key):
            is_true = uniform(key) < truth
            return solvers.Solution(float(bit if is_true else 1 - bit), PRIVACY, {})

        with pytest.MonkeyPatch.context() as patch:
            if is_planted:
                patch.setattr(_select, "draw_count", lambda law, key: int(law.mean))
            return np.float32(select(key, train, score).params)

    return case(release)


def score_without_noise(is_planted):
    """Runs know nothing; their score, which is released, is a bit with noise."""

    def release(key, bit):
        def fn(params, key):
            sign, size = np.sign(uniform(key) - 0.5), abs(2 * uniform(key) - 1)
            noise = 0 if is_planted else -sign * math.log(1 - size) / COST
            return float(bit) + noise

        def train(candidate, key):
            return solvers.Solution(0.0, PRIVACY, {})

        return np.float32(select(key, train, tuning.Score(fn, PRIVACY)).stats["score"])

    return case(release)


FAULTS = {fixed_number_of_trials: 2_000, score_without_noise: 1_600}


@pytest.mark.parametrize("build", FAULTS, ids=lambda build: build.__name__)
def test_a_planted_fault_is_caught_and_the_sound_selection_is_not(build):
    for is_planted in (True, False):
        num = FAULTS[build]
        audit = build(is_planted).audit(key=jax.random.key(11), num_releases=num)
        assert (audit.epsilon > PRICE) == is_planted, audit
        assert audit.epsilon > 0.1  # it sees something of the sound one too
