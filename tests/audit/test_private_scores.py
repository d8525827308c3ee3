"""Attacks on private scores: their claims hold, and too little noise is seen."""

import jax
import numpy as np
import pytest

from dpjax.audit import _private_scores
from dpjax.mechanisms import discrete_gaussian
from dpjax.models import _noisy_counts

each = pytest.mark.parametrize("name", _private_scores.BUILDERS)


@each
def test_the_record_is_of_the_claim(name, key, recorded):
    case = _private_scores.BUILDERS[name]()
    assert case.name == name
    assert recorded[name].is_of(case), "run `python -m benchmarks guarantees --audit`"
    found = case.release(key, case.data)
    assert np.isfinite(float(case.statistic(found)))


@pytest.mark.audit
@each
def test_all_releases_do_not_refute_the_claim(name, key):
    case = _private_scores.BUILDERS[name]()
    claim, shown = case.privacy.epsilon, case.audit(key=key).epsilon
    assert 0.2 * claim <= shown <= claim


@each
def test_the_attack_sees_a_release_with_little_noise(name, monkeypatch):
    case = _private_scores.BUILDERS[name]()

    def weak(shape, *, stddev, random_bytes):
        stddev = round(0.05 * stddev)
        return discrete_gaussian(shape, stddev=stddev, random_bytes=random_bytes)

    monkeypatch.setattr(_noisy_counts, "discrete_gaussian", weak)
    sides = [
        [float(case.statistic(case.release(jax.random.key(i), x))) for i in range(4)]
        for x in (case.data, case.neighbor)
    ]
    gap = min(sides[1]) - max(sides[0])
    assert gap > np.std(sides[0])
