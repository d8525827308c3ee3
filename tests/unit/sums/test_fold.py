"""The fold: digits that add exactly, in any chunks; records in order; little memory."""

import itertools
from dataclasses import replace
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import estimators, transforms
from dpjax._sums.fold import block_length, digit_layout, proven_divisor, rounded_sum
from dpjax._sums.stream import SampleStream

SIZES = [None, 3, 100]
CLIPPING = estimators.Clipping(2.0)
ADAPTIVE = estimators.AdaptiveThreshold(CLIPPING, lower=1e-3, upper=1e3)
EACH = [CLIPPING, estimators.Truncation(0.5), estimators.MedianOfMeans(CLIPPING, 3)]
EACH += [estimators.Scaled(CLIPPING, 2.0).measured, ADAPTIVE.counting]


def test_digits_of_all_sums_add_within_the_mantissa():
    numbers = [2, 3, 64, 1024, 1025, 65_535, 2**20, 2**22]
    for num_sums, nmant in itertools.product(numbers, [23, 52]):
        high_bits, base_bits, num_digits = digit_layout(num_sums, nmant)
        exact = 2 ** (nmant + 1)
        largest_carry = num_sums * 2**base_bits // 2 // 2**base_bits + 1
        assert num_sums * 2**high_bits + largest_carry <= exact
        assert num_sums * 2**base_bits // 2 <= exact
        # sensitivity() counts 2^-34 of a block's bound for what sums of rests round:
        # each addition 2^-(nmant + 1) of its result.
        before = high_bits + (num_digits - 2) * base_bits
        rest = 2.0 ** -(before + 1)
        roundoff = 2.0 ** -(nmant + 1)
        growth = 1 / (1 - (num_sums - 1) * roundoff)
        rounded = (num_sums - 1) * roundoff * growth * num_sums * rest
        assert rounded <= 2.0 ** -(nmant + 11)
    assert digit_layout(1, 23)[2] == digit_layout(1, 52)[2] == 1
    with pytest.raises(ValueError, match=r"must be fewer: at most 2\^22 blocks"):
        digit_layout(2**22 + 1, 23)


def test_a_billion_rows_are_taken():
    # Longer blocks, so that their sums are few enough; the sensitivity counts them.
    assert block_length(2**27) == 64
    assert block_length(2**27 + 1) == block_length(10**9) == 256
    rows = jax.ShapeDtypeStruct((10**9,), jnp.float32)
    assert jax.eval_shape(estimators.Winsorization(1.0), rows).shape == ()


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, float])
def test_a_traced_divisor_is_raised_to_what_is_proven(dtype):
    with jax.enable_x64(dtype is float):
        for n in (4609, 5000, 2**24 + 3):
            raised = jax.jit(partial(proven_divisor, n))(jnp.asarray(1, dtype))
            assert n / 1.125 <= float(raised) <= n / 1.125 * (1 + 2**-22)


@pytest.mark.quick(2)
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 127, 129, 1000, 4097])
def test_mean_and_records_do_not_depend_on_plan_or_microbatch_size(plan, n):
    # Blocks of K float32 additions of values up to 1 err by K (K + 1) u / 2 each; then
    # sums are exact, and the mean is rounded once.
    rows = np.random.default_rng(n).standard_cauchy((n, 3)).astype(np.float32)
    expected = np.clip(rows.astype(np.float64), -1, 1).mean(axis=0)
    error = 1.01 * (block_length(n) + 1) / 2 * 2**-24 + 2**-24
    for size in SIZES:
        mean, records = folded(estimators.Winsorization(1.0), size)(rows)
        np.testing.assert_allclose(mean, expected, rtol=0, atol=error)
        check_records(records, rows)


def folded(estimator, microbatch_size):
    """A function of rows, and of which count for nothing: their mean, and records."""

    def make_samples(_, part):
        return part, {"double": 2 * part, "pair": jnp.stack([part, -part], axis=1)}

    @jax.jit
    def fold(rows, mask=None):
        stream = SampleStream(make_samples, (), rows, microbatch_size, None, mask)
        return estimator.with_aux(stream, normalize_by=len(rows))

    return fold


def check_records(records, rows):
    np.testing.assert_array_equal(records["double"], 2 * rows)
    np.testing.assert_array_equal(records["pair"], np.stack([rows, -rows], 1))


def test_whole_numbers_have_the_same_mean_in_all_chunks(plan):
    # No addition rounds, so neither the chunks nor the digits may move a bit.
    rows = np.random.default_rng(0).integers(-8, 9, 100_003).astype(np.float32)
    exact = np.float32(rows.astype(np.int64).sum() / 2**17)

    @partial(jax.jit, static_argnums=1)
    def mean(rows, size):
        stream = replace(SampleStream.of(rows), microbatch_size=size)
        return estimators.Winsorization(8.0)(stream, normalize_by=2**17)

    assert [mean(rows, size) for size in SIZES] == [exact] * 3


def nearest(number):
    """Returns the float32 nearest to a fraction."""
    rounded = np.float32(float(number))
    near = [rounded, *np.nextafter(rounded, np.float32([-np.inf, np.inf]))]
    return min(near, key=lambda x: abs(Fraction(float(x)) - number))


def test_three_floats_are_rounded_once():
    rng, n = np.random.default_rng(0), 4_000
    a, wide = rng.integers(-(2**24), 2**24, (2, n))
    a[::2] = 2 ** rng.integers(0, 24, n // 2)  # and what is about half a place of it
    b = np.spacing(np.float32(a)) * rng.choice([0.5, -0.5, 0.25, 1.0], n)
    c = np.where(rng.random(n) < 0.5, wide * 2.0**-24, b * 2.0 ** rng.integers(-60, 1))
    terms = np.float32([a, b, c])
    exact = [nearest(sum(map(Fraction, x))) for x in terms.T.astype(float)]
    for order in itertools.permutations(terms):
        np.testing.assert_array_equal(jax.jit(rounded_sum)(*order), exact)
    assert (terms.sum(axis=0) != exact).any()


def test_noise_is_added_to_the_exact_mean(key):
    # Whole numbers, of which blocks add exactly: their sums have 32 bits.
    n, limit = 2**14, 2**18
    rows = np.random.default_rng(0).integers(0, limit, (n, 300))
    estimator = estimators.Winsorization(float(limit))
    transform = transforms.privatize(estimator, noise_multiplier=1e-4, key=key)

    @jax.jit
    def means(rows):
        released = [
            transform.update(samples, transform.init(None))[0]
            for samples in (rows, jnp.zeros_like(rows))
        ]
        return *released, estimator(rows)

    with jax.debug_key_reuse(False):
        noisy, noise, mean = means(np.float32(rows))
    exact = [Fraction(int(total), n) for total in rows.sum(axis=0)]
    np.testing.assert_array_equal(mean, [nearest(x) for x in exact])
    pairs = zip(exact, np.float64(noise), strict=True)
    once = np.float32([nearest(x + Fraction(z)) for x, z in pairs])
    np.testing.assert_array_equal(noisy, once)
    assert np.mean(mean + noise != once) > 0.1  # as the mean of floats would be


@pytest.mark.quick(1)
@pytest.mark.parametrize("n", [59, 60, 1000])
def test_group_means_are_those_of_public_index_ranges(plan, n):
    rows = np.random.default_rng(n).normal(size=(n, 2)).astype(np.float32)
    clipped = np.clip(rows.astype(np.float64), -2, 2)
    # Masked rows count for nothing, but their records come back in order too.
    clipped[np.arange(n) % 5 == 2] = 0
    for num_groups, size in zip((1, 2, 7, 59), (None, 100, 3, None), strict=True):
        estimator = estimators.MedianOfMeans(estimators.Winsorization(2.0), num_groups)
        means = [g.mean(axis=0) for g in np.array_split(clipped, num_groups)]
        mean, records = folded(estimator, size)(rows, np.arange(n) % 5 == 2)
        np.testing.assert_allclose(mean, np.median(means, axis=0), atol=1e-5)
        check_records(records, rows)


def many_leaves(num_rows, sizes):
    rng, dtypes = np.random.default_rng(0), ("float32", "float16")
    return {
        f"{i}": rng.normal(size=(num_rows, 3, size)).astype(dtypes[i % 2])
        for i, size in enumerate(sizes)
    }


@pytest.mark.quick(1)
@pytest.mark.parametrize("estimator", EACH, ids=lambda x: type(x).__name__)
def test_many_leaves_of_one_shape_are_summed_as_one(estimator):
    samples = many_leaves(300, [2] * 150)
    samples["0"][0] = np.nan
    mean = jax.jit(estimator).lower(samples)
    assert mean.as_text().count("is_finite") < 10
    actual = mean.compile()(samples)
    expected = estimator(np.stack([np.float32(x) for x in samples.values()], 1))
    if hasattr(actual, "short"):
        np.testing.assert_array_equal(actual.short, expected.short)
        actual, expected = actual.mean, expected.mean
    for i, x in enumerate(samples):
        np.testing.assert_allclose(actual[x], expected[i], atol=1e-6)
