"""The fold: digits that add exactly, in any chunks; records in order; little memory."""

import itertools
from dataclasses import replace
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax._sums.exact import rounded_sum
from dpjax._sums.fold import _split, block_length, digit_layout
from dpjax._sums.stream import Layout, SampleStream, Sizes
from dpjax.estimators import (
    AdaptiveThreshold,
    Clipping,
    MedianOfMeans,
    Scaled,
    SmoothedTruncation,
    Truncation,
    Winsorization,
)
from dpjax.estimators._adaptive import Counted
from dpjax.gradients import robust_grad
from dpjax.transforms import privatize

AWKWARD = [1, 2, 63, 64, 65, 127, 129, 1000, 4097]
SIZES = [1, 3, 64, 100, 1000]
DEVICES = pytest.mark.devices(4)


def sizes_for(n):
    """Microbatches; those of more than n rows are laid out as those of n."""
    return [None, *sorted({min(size, n) for size in SIZES})]


@pytest.mark.parametrize("nmant", [23, 52])
@pytest.mark.parametrize("num_sums", [1, 2, 3, 64, 1024, 1025, 65_535, 2**20, 2**22])
def test_digits_of_all_sums_add_within_the_mantissa(num_sums, nmant):
    layout = digit_layout(num_sums, nmant)
    exact = 2 ** (nmant + 1)
    largest_carry = num_sums * 2**layout.base_bits // 2 // 2**layout.base_bits + 1
    assert num_sums * 2**layout.high_bits + largest_carry <= exact
    assert num_sums * 2**layout.base_bits // 2 <= exact
    # sensitivity() counts 2^-34 of a block's bound for what sums of rests round: each
    # addition 2^-(nmant + 1) of its result, and one sum has none.
    if num_sums == 1:
        assert layout.num_digits == 1
        return
    before = layout.high_bits + (layout.num_digits - 2) * layout.base_bits
    rest = 2.0 ** -(before + 1)
    roundoff = 2.0 ** -(nmant + 1)
    growth = 1 / (1 - (num_sums - 1) * roundoff)
    assert (num_sums - 1) * roundoff * growth * num_sums * rest <= 2.0 ** -(nmant + 11)


def test_too_many_rows_are_refused():
    with pytest.raises(ValueError, match=r"samples must be at most 2\^22 blocks"):
        digit_layout(2**22 + 1, 23)


def test_a_billion_rows_are_taken():
    # Longer blocks, so that their sums are few enough; the sensitivity counts them.
    assert block_length(2**27) == 64
    assert block_length(2**27 + 1) == block_length(10**9) == 256
    mean = jax.eval_shape(
        Winsorization(1.0), jax.ShapeDtypeStruct((10**9,), jnp.float32)
    )
    assert mean.shape == ()


@pytest.mark.parametrize("num_sums", [1, 1024, 1025, 2**20, 2**22])
def test_digits_stand_for_their_number(num_sums):
    layout = digit_layout(num_sums, 23)
    base = 2.0**layout.base_bits
    high = 2.0**layout.high_bits
    x = np.random.default_rng(0).uniform(-high, high, 10_000).astype(np.float32)
    x[:4] = [high, -high, 0, 0.5]
    digits = [np.asarray(d, np.float64) for d in _split(x, base, layout.num_digits)]
    for i, digit in enumerate(digits):
        if i < layout.num_digits - 1:
            np.testing.assert_array_equal(digit, np.round(digit))
        assert np.abs(digit).max() <= (high if i == 0 else base / 2)
    value = sum(d / base**i for i, d in enumerate(digits))
    np.testing.assert_array_equal(value, x.astype(np.float64))


@pytest.mark.parametrize(
    "make", [Layout.one_by_one, Layout.parallel, partial(Layout.cached, is_large=False)]
)
@pytest.mark.parametrize("num_coordinates", [1, 100, 10**6, 10**9])
def test_plans_cover_all_rows_with_short_blocks(make, num_coordinates):
    sizes = Sizes(num_coordinates, num_coordinates, num_coordinates)
    for n in [*AWKWARD, 100_000, 1_000_003]:
        for size in [None, *SIZES, 5000, 10**7]:
            longest = block_length(n)
            if make == Layout.parallel:
                size = size or 77
            layout = make(n, longest, sizes, size)
            if size and num_coordinates < 2**13:
                assert layout == make(n, longest, sizes, min(size, n))
            covered = layout.size * layout.microbatches * layout.rounds
            assert covered >= n
            # No round is empty, so that the digits have no more sums than needed.
            assert covered - n < layout.size * layout.microbatches
            assert layout.block_length <= longest
            assert layout.width <= n
            if layout.rows > 1:
                assert layout.width == 1 or layout.width * num_coordinates <= 2**22
            assert layout.is_exact == (covered == n)


@pytest.mark.quick(1)
@pytest.mark.parametrize("n", AWKWARD)
def test_mean_and_records_do_not_depend_on_plan_or_microbatch_size(plan, n):
    # Blocks of K float32 additions of values up to 1 err by K (K + 1) u / 2 each; then
    # sums are exact, and the mean is rounded once.
    rows = np.random.default_rng(n).standard_cauchy((n, 3)).astype(np.float32)
    expected = np.clip(rows.astype(np.float64), -1, 1).mean(axis=0)
    error = 1.01 * (block_length(n) + 1) / 2 * 2**-24 + 2**-24
    for size in sizes_for(n):
        mean, records = folded(Winsorization(1.0), size)(rows)
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


@pytest.mark.quick(1)
def test_whole_numbers_have_the_same_mean_in_all_chunks(plan):
    # No addition rounds, so neither the chunks nor the digits may move a bit.
    rows = np.random.default_rng(0).integers(-8, 9, 100_003).astype(np.float32)
    exact = np.float32(rows.astype(np.int64).sum() / 2**17)
    for size in (None, *SIZES):
        mean, _ = jax.jit(
            lambda x, size=size: Winsorization(8.0).with_aux(
                replace(SampleStream.of(x), microbatch_size=size), normalize_by=2**17
            )
        )(rows)
        assert mean == exact


def nearest(number):
    """Returns the float32 nearest to a fraction."""
    found = np.float32(float(number))
    near = [found, *np.nextafter(found, np.float32([-np.inf, np.inf]))]
    return min(near, key=lambda x: abs(Fraction(float(x)) - number))


def test_three_floats_are_rounded_once():
    rng, num = np.random.default_rng(0), 4_000
    a, wide = rng.integers(-(2**24), 2**24, (2, num))
    a[::2] = 2 ** rng.integers(0, 24, num // 2)  # and what is about half a place of it
    b = np.spacing(np.float32(a)) * rng.choice([0.5, -0.5, 0.25, 1.0], num)
    c = np.where(
        rng.random(num) < 0.5, wide * 2.0**-24, b * 2.0 ** rng.integers(-60, 1)
    )
    terms = np.float32([a, b, c])
    exact = [nearest(sum(map(Fraction, x))) for x in terms.T.astype(float)]
    for order in itertools.permutations(terms):
        np.testing.assert_array_equal(jax.jit(rounded_sum)(*order), exact)
    assert (terms.sum(axis=0) != exact).any()


@pytest.mark.parametrize("num_devices", [1, pytest.param(4, marks=DEVICES)])
def test_noise_is_added_to_the_exact_mean(num_devices, key):
    # Whole numbers, of which blocks add exactly: their sums have 32 bits.
    n, limit = 2**14, 2**18
    rows = np.random.default_rng(0).integers(0, limit, (n, 300))
    mesh = jax.make_mesh((num_devices,), ("n",), devices=jax.devices()[:num_devices])
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("n"))
    estimator = Winsorization(float(limit))

    @jax.jit
    def means(key, rows):
        released = []
        for samples in rows, jnp.zeros_like(rows):
            transform = privatize(
                estimator, noise_multiplier=1e-4, key=key, axis_name="n"
            )
            released.append(transform.update(samples, transform.init(rows))[0])
        return *released, estimator(rows, axis_name="n")

    with jax.debug_key_reuse(False):
        noisy, noise, mean = means(key, jax.device_put(np.float32(rows), place))
    exact = [Fraction(int(total), n) for total in rows.sum(axis=0)]
    np.testing.assert_array_equal(mean, [nearest(x) for x in exact])
    pairs = zip(exact, np.float64(noise), strict=True)
    once = np.float32([nearest(x + Fraction(z)) for x, z in pairs])
    np.testing.assert_array_equal(noisy, once)
    assert np.mean(mean + noise != once) > 0.1  # as the mean of floats would be


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "estimator",
    [MedianOfMeans(Truncation(1.0), 1), MedianOfMeans(Clipping(1.0), 7)],
    ids=["one-group", "seven-groups"],
)
@pytest.mark.parametrize("n", [7, 65, 129, 1000])
def test_records_come_back_in_order(plan, estimator, n):
    rows = np.arange(n, dtype=np.float32)
    for size in sizes_for(n):
        _, records = folded(estimator, size)(rows, np.arange(n) % 5 == 2)
        # Of masked rows too: they count for nothing, but they are there.
        check_records(records, rows)


@pytest.mark.quick(1)
@pytest.mark.parametrize("n", [59, 60, 1000])
def test_group_means_are_those_of_public_index_ranges(plan, n):
    rows = np.random.default_rng(n).normal(size=(n, 2)).astype(np.float32)
    for num_groups in (1, 2, 7, 30, 59):
        estimator = MedianOfMeans(Winsorization(2.0), num_groups)
        clipped = np.clip(rows.astype(np.float64), -2, 2)
        means = [g.mean(axis=0) for g in np.array_split(clipped, num_groups)]
        mean, _ = jax.jit(
            lambda x, e=estimator: e.with_aux(SampleStream.of(x), normalize_by=n)
        )(rows)
        np.testing.assert_allclose(mean, np.median(means, axis=0), atol=1e-5)


def network(params, example):
    features, label = example
    hidden = jnp.tanh(features @ params[0])
    return -jax.nn.log_softmax(hidden @ params[1])[label]


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator", [Clipping(1.0), SmoothedTruncation(1.0)], ids=["clipping", "smoothed"]
)
def test_memory_does_not_grow_with_the_batch(estimator):
    params = (
        jax.ShapeDtypeStruct((784, 256), jnp.float32),
        jax.ShapeDtypeStruct((256, 10), jnp.float32),
    )

    def temporary_bytes(n):
        batch = (
            jax.ShapeDtypeStruct((n, 784), jnp.float32),
            jax.ShapeDtypeStruct((n,), jnp.int32),
        )
        grad_fn = jax.jit(robust_grad(network, estimator))
        compiled = grad_fn.lower(params, batch).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    # Samples are never written out, however costly the influence is. One block, as up
    # to 64 rows are, needs its sum, activations and finite inputs; several need digits
    # too, one more only for 16 times as many.
    one_gradient = 4 * (784 * 256 + 256 * 10)
    few, block, several, many, most = (
        temporary_bytes(n) for n in (16, 64, 4096, 8192, 16384)
    )
    assert few < 0.2 * one_gradient
    assert block < 1.8 * one_gradient
    assert several < 4.5 * one_gradient
    assert max(many, most) < 1.1 * several


def many_leaves(num_rows, sizes):
    rng = np.random.default_rng(0)
    return {
        f"{i}": rng.normal(size=(num_rows, 3, size)).astype(dtype)
        for i, (size, dtype) in enumerate(
            zip(sizes, itertools.cycle(("float32", "float16")), strict=False)
        )
    }


@pytest.mark.parametrize("estimator", [Clipping(1.0), Truncation(0.5)], ids=str)
def test_many_shapes_are_summed_without_a_loop(estimator):
    # A loop that carries a sum for each of 2,000 leaves would compile for minutes.
    samples = many_leaves(16, range(1, 71))
    assert "while" not in jax.jit(estimator).lower(samples).as_text()


@pytest.mark.parametrize(
    "estimator",
    [
        Clipping(2.0),
        Truncation(0.5),
        MedianOfMeans(Clipping(2.0), 3),
        Scaled(Clipping(2.0), 2.0).measured,
        AdaptiveThreshold(Clipping(2.0), lower=1e-3, upper=1e3).counting,
    ],
    ids=lambda x: type(x).__name__,
)
def test_many_leaves_of_one_shape_are_summed_as_one(estimator):
    samples = many_leaves(300, [2] * 150)
    samples["0"][0] = np.nan
    mean = jax.jit(estimator).lower(samples)
    assert mean.as_text().count("is_finite") < 10
    actual = mean.compile()(samples)
    expected = estimator(np.stack([np.float32(x) for x in samples.values()], 1))
    if isinstance(actual, Counted):
        np.testing.assert_array_equal(actual.short, expected.short)
        actual, expected = actual.mean, expected.mean
    for i, x in enumerate(samples):
        np.testing.assert_allclose(actual[x], expected[i], atol=1e-6)
