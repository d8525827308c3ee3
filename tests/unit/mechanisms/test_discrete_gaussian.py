"""The discrete Gaussian: its law, its tails, and exactness where floats give up."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy.stats

from dpjax.mechanisms import _discrete_gaussian, discrete_gaussian

FALSE_ALARM = 1e-6


def seeded(seed):
    return np.random.default_rng(seed).bytes


def fit(draws, stddev):
    """The p-value of a chi-squared test against the law with this stddev."""
    weights = np.exp(-(np.arange(-20 * stddev, 20 * stddev + 1) ** 2) / 2 / stddev**2)
    middle = weights[16 * stddev : 24 * stddev + 1] / weights.sum()
    expected = np.append(middle, 1 - middle.sum()) * draws.size
    counts = [np.sum(draws == end) for end in range(-4 * stddev, 4 * stddev + 1)]
    counts.append(draws.size - sum(counts))
    return scipy.stats.chisquare(counts, expected).pvalue


@pytest.mark.parametrize("stddev", [1, 2, 6])
def test_draws_have_their_law_on_every_integer(stddev):
    draws = discrete_gaussian(200_000, stddev=stddev, random_bytes=seeded(stddev))
    assert fit(draws, stddev) > FALSE_ALARM
    if stddev == 6:
        assert max(fit(draws, other) for other in (4, 9)) < FALSE_ALARM


@pytest.mark.parametrize("stddev", [1000, 2**24 + 12_345, 2**26])
def test_large_scales_look_normal(stddev):
    draws = discrete_gaussian(100_000, stddev=stddev, random_bytes=seeded(1))
    assert scipy.stats.kstest(draws / stddev, "norm").pvalue > FALSE_ALARM
    for factor in (2 / 3, 3 / 2):
        scaled = draws / (stddev * factor)
        assert scipy.stats.kstest(scaled, "norm").pvalue < FALSE_ALARM


def test_exact_comparisons_agree_with_those_in_floats(monkeypatch):
    for stddev in (1, 7, 2**24):
        fast = discrete_gaussian(300, stddev=stddev, random_bytes=seeded(stddev))
        with monkeypatch.context() as patch:
            patch.setattr(_discrete_gaussian, "_MARGIN", 2.0)  # nothing is in floats
            exact = discrete_gaussian(300, stddev=stddev, random_bytes=seeded(stddev))
        np.testing.assert_array_equal(fast, exact)


@pytest.mark.parametrize(
    "exponent", [Fraction(1), Fraction(1, 3), Fraction(1001, 7), Fraction(40)]
)
def test_comparison_with_exp_is_right_next_to_it(exponent):
    def never(count):
        raise AssertionError("the bits at hand decide")

    with mpmath.workdps(300):
        value = mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator)
        bits = 53 + int(exponent * 3 / 2)  # enough to see the value
        word = int(mpmath.floor(value * 2**bits))
    compare = _discrete_gaussian._is_below_exp
    assert compare(word - 1, bits, exponent, never)
    assert not compare(word + 1, bits, exponent, never)
    # The word of the value itself is decided by the bits that follow.
    ones, zeros = (lambda count: b"\xff" * count), (lambda count: bytes(count))
    assert compare(word, bits, exponent, zeros)
    assert not compare(word, bits, exponent, ones)


def test_an_event_of_probability_one_always_happens():
    for word in (0, 2**53 - 1):
        assert _discrete_gaussian._is_below_exp(word, 53, Fraction(0), seeded(0))


def test_entropy_is_the_systems_own_unless_given():
    first, second = (discrete_gaussian(50, stddev=2**20) for _ in range(2))
    assert np.any(first != second)
    same = [discrete_gaussian(50, stddev=9, random_bytes=seeded(5)) for _ in range(2)]
    np.testing.assert_array_equal(*same)


def test_draws_are_int64_of_any_shape():
    for shape in [(), (0,), 5, (2, 3), (4, 0)]:
        draws = discrete_gaussian(shape, stddev=3)
        assert (draws.shape, draws.dtype) == (np.empty(shape).shape, np.int64)
