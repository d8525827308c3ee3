"""The attack on scores of saved models has power."""

import jax
import numpy as np
import pytest

from benchmarks.audits.catalogue import cases, names_of
from dpjax import mechanisms
from dpjax.tables.models import _scores


@pytest.mark.parametrize("name", names_of("models"))
def test_the_attack_sees_a_score_with_little_noise(name, monkeypatch):
    case = cases()[name]

    def weak(shape, *, stddev, random_bytes):
        stddev = round(0.05 * stddev)
        return mechanisms.discrete_gaussian(
            shape, stddev=stddev, random_bytes=random_bytes
        )

    monkeypatch.setattr(_scores, "discrete_gaussian", weak)
    sides = [
        [float(case.statistic(case.release(jax.random.key(i), x))) for i in range(4)]
        for x in (case.data, case.neighbor)
    ]
    gap = min(sides[1]) - max(sides[0])
    assert gap > np.std(sides[0])
