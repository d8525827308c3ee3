"""The budget of a run on a sample: both ways, its limits, and the exact worst case."""

import math
from fractions import Fraction

import mpmath
import pytest
from dp_accounting import UnsupportedDpEvent

from dpjax._types import ADD_OR_REMOVE_ONE, REPLACE_ONE
from dpjax.accounting import (
    PrivacyGuarantee,
    gaussian_event,
    subsample_budget,
    subsample_privacy,
)
from tests.refusals import refused

SIZES = [(10, 3), (7, 7), (10**8, 10**6), (10**15, 1)]


def outer(epsilon, delta, num, size, relation=REPLACE_ONE):
    inner = PrivacyGuarantee.of(
        epsilon, delta, dp_event=gaussian_event(1.0), relation=relation
    )
    return subsample_privacy(inner, num_samples=num, sample_size=size)


@pytest.mark.parametrize("epsilon", [1e-300, 1e-9, 0.3, 1.0, 5.0, 699.0, 800.0, 1e5])
@pytest.mark.parametrize(("num", "size"), SIZES)
def test_both_ways_and_on_the_safe_side(num, size, epsilon):
    sizes = {"num_samples": num, "sample_size": size}
    delta = 1e-3 * size / num
    budget = subsample_budget(epsilon, delta, **sizes)
    with mpmath.workdps(60):
        scale = mpmath.mpf(num) / size
        exact = mpmath.log1p(scale * mpmath.expm1(mpmath.mpf(epsilon)))
        assert exact * (1 - 1e-11) <= budget[0] <= exact
        assert Fraction(budget[1]) * size <= Fraction(delta) * num
        found = outer(*budget, num, size)
        back = mpmath.log1p(mpmath.expm1(mpmath.mpf(budget[0])) / scale)
        assert back <= found.epsilon <= epsilon
    assert delta * (1 - 1e-11) <= found.delta <= delta
    assert isinstance(found.dp_event, UnsupportedDpEvent) == (num > size)
    assert f"any one of the {num:,} records" in found.description


def test_no_smaller_epsilon_would_do():
    # One place of two records: the answer is the record's bit, by randomized response.
    wrong = 1 / (1 + math.exp(1.5))
    ratio = 0.5 / wrong  # of the answer 1, with one of two bits set or none
    assert outer(1.5, 0.0, 2, 1).epsilon == pytest.approx(math.log(ratio))
    assert outer(math.inf, 0.0, 2, 1).epsilon == math.inf
    assert subsample_budget(math.inf, 0.1, num_samples=2, sample_size=1)[0] == math.inf


test_bad_input_is_named = refused(
    lambda call: call(),
    (lambda: subsample_budget(0.0, 0.0, num_samples=4, sample_size=2), "epsilon"),
    (lambda: subsample_budget(1.0, 0.5, num_samples=4, sample_size=2), "delta"),
    (lambda: subsample_budget(1.0, 0.1, num_samples=4, sample_size=5), "sample_s"),
    (lambda: subsample_budget(1.0, 0.1, num_samples=4, sample_size=0), "sample_s"),
    (lambda: outer(1.0, 0.0, 0, 1), "num_samples"),
    (lambda: outer(1.0, 0.0, 9, 1, ADD_OR_REMOVE_ONE), "relation"),
    said="{}.* must be",
)
