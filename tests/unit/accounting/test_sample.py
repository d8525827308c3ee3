"""The budget of a run on a sample: both ways, its limits, and the exact worst case."""

import copy
import math
from fractions import Fraction

import dp_accounting as dpa
import mpmath
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent

from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE, accounting

SIZES = [(10, 3), (7, 7), (10**8, 10**6), (10**15, 1)]


def outer(epsilon, delta, num, size, relation=REPLACE_ONE):
    inner = accounting.PrivacyGuarantee.of(
        epsilon, delta, dp_event=GaussianDpEvent(1.0), relation=relation
    )
    return accounting.Sample(num, size).privacy(inner)


@pytest.mark.parametrize("epsilon", [1e-300, 1e-9, 0.3, 1.0, 5.0, 699.0, 800.0, 1e5])
@pytest.mark.parametrize(("num", "size"), SIZES)
def test_budget_and_price_of_a_sample_are_inverse_on_the_safe_side(num, size, epsilon):
    delta = 1e-3 * size / num
    budget = accounting.Sample(num, size).budget(epsilon, delta)
    with mpmath.workdps(60):
        scale = mpmath.mpf(num) / size
        exact = mpmath.log1p(scale * mpmath.expm1(mpmath.mpf(epsilon)))
        assert exact * (1 - 1e-11) <= budget[0] <= exact
        assert Fraction(budget[1]) * size <= Fraction(delta) * num
        stated = outer(*budget, num, size)
        back = mpmath.log1p(mpmath.expm1(mpmath.mpf(budget[0])) / scale)
        assert back <= stated.epsilon <= epsilon
    assert delta * (1 - 1e-11) <= stated.delta <= delta
    assert (stated.dp_event == GaussianDpEvent(1.0)) == (num == size)
    assert f"any one of the {num:,} records" in stated.description


def test_no_smaller_epsilon_would_do():
    # One place of two records: the answer is the record's bit, by randomized response.
    wrong = 1 / (1 + math.exp(1.5))
    ratio = 0.5 / wrong  # of the answer 1, with one of two bits set or none
    assert outer(1.5, 0.0, 2, 1).epsilon == pytest.approx(math.log(ratio))
    assert outer(math.inf, 0.0, 2, 1).epsilon == math.inf
    assert accounting.Sample(2, 1).budget(math.inf, 0.1)[0] == math.inf


def release(multiplier=4.0, delta=1e-6):
    epsilon = accounting.gaussian_epsilon(multiplier, delta, sensitivity=1.0)
    event = GaussianDpEvent(multiplier)
    return accounting.PrivacyGuarantee.of(epsilon, delta, dp_event=event)


def test_a_second_release_of_a_sample_is_refused_wherever_it_is_counted():
    drawn, one = accounting.Sample(1000, 10), release()
    first, second = drawn.privacy(one), drawn.privacy(release(9.0))
    table = accounting.PrivacyFilter(9.0, 0.1).spend(first)
    # Of the same sizes, another draw; and without a sample.
    table = table.spend(accounting.Sample(1000, 10).privacy(one)).spend(one)
    nested = drawn.privacy(accounting.Sample(10, 5).privacy(one))
    copies = [copy.deepcopy(drawn).privacy(one), second.for_groups(2), nested]
    for again in (first, second, *copies):
        with pytest.raises(ValueError, match="samples from which nothing was released"):
            table.spend(again)
    with pytest.raises(ValueError, match="samples from which nothing was released"):
        accounting.PrivacyFilter(9.0, 0.1).spend(first, second)
    sampled = dpa.PoissonSampledDpEvent(0.1, first.dp_event)
    for event in (
        dpa.ComposedDpEvent((first.dp_event, second.dp_event)),
        dpa.SelfComposedDpEvent(first.dp_event, 2),
        dpa.ComposedDpEvent((first.dp_event, sampled)),
    ):
        with pytest.raises(ValueError, match="dp_event must be of one release per sam"):
            accounting.PrivacyGuarantee.of(1.0, 0.1, dp_event=event)
    with pytest.raises(ValueError, match="dp_event must be of one release per sample"):
        accounting.Sample(10**6, 1000).privacy(first, second)
    with pytest.raises(ValueError, match=r"base must be .* share a sample"):
        accounting.tuning_epsilon(first, 1e-4, mean_trials=3)
    # All records are no sample.
    every = accounting.Sample(10, 10)
    table.spend(every.privacy(one)).spend(every.privacy(one))


def test_releases_of_a_sample_are_composed_before_they_are_amplified():
    # Of records 0, with or without one 1, one is drawn and released twenty times: the
    # 1 is there with probability q, in all releases or in none. So the delta of epsilon
    # is q times that of Gaussian noise, at log(1 + (e^epsilon - 1) / q).
    q, number, drawn, each = 1e-4, 20, accounting.Sample(10_000, 1), release()
    together, apart = drawn.privacy(*[each] * number), drawn.privacy(each)

    def truth(epsilon):
        event = SelfComposedDpEvent(GaussianDpEvent(4.0), number)
        return q * accounting.delta_of(event, math.log1p(math.expm1(epsilon) / q))

    assert 0.99 * together.delta < truth(together.epsilon) <= together.delta
    # As releases of twenty samples, their sum was counted, and does not hold.
    assert truth(number * apart.epsilon) > 10 * number * apart.delta
    # Composed by their events, not by their epsilons.
    assert together.epsilon < drawn.privacy(release(0.5)).epsilon
    nobody = accounting.PrivacyGuarantee.non_private()
    assert drawn.privacy(each, nobody).epsilon == math.inf
    pure = accounting.PrivacyGuarantee.of(0.1, 0.0, dp_event=dpa.GaussianDpEvent(1.0))
    amplified = math.log1p(1e-4 * math.expm1(0.2))
    assert drawn.privacy(pure, pure).epsilon == pytest.approx(amplified)
    with pytest.raises(ValueError, match=r"releases.* must be"):
        drawn.privacy()
    with pytest.raises(ValueError, match=r"relation.* must be"):
        outer(1.0, 0.0, 9, 1, ADD_OR_REMOVE_ONE)
