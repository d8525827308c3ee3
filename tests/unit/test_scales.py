"""Centers and scales that are released: what one record can change, and truth."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.solvers import dp_center_and_scale
from dpjax.solvers.statistics import _scales


class Releases:
    """Stands for the noise: what is released, and what a neighbor would release.

    A neighbor's later releases follow the same earlier ones, as adaptive composition
    has it: so it is told what was released of the first table.
    """

    def __init__(self, noisy):
        self.made, self.told = [], []
        self.draw, self.noisy = noisy, lambda key, values, *_: values.high

    def __call__(self, key, values, stddevs):
        if self.told:
            noisy = self.told[len(self.made)][2]
        else:
            noisy = self.noisy(key, values, stddevs)
        exact = np.add(*np.asarray(values, np.float64))
        self.made.append((exact, float(stddevs[0]), noisy))
        return noisy

    def of_both(self, tables, weights=(None, None), *, seed=0, **noise):
        """Returns values, scales and outcomes of a table, and then of its neighbor."""
        self.told, both = [], []
        for table, counted in zip(tables, weights, strict=True):
            self.made = []
            key = jax.random.key(seed)
            _scales.release_scales(key, table, weights=counted, **noise)
            both.append(self.made)
            self.told = both[0]
        assert len(both[0]) == len(both[1])
        return both


@pytest.fixture
def releases(monkeypatch):
    stand_in = Releases(_scales.gaussian_of_padded)
    monkeypatch.setattr(_scales, "gaussian_of_padded", stand_in)
    return stand_in


def neighbors(num_columns):
    """A table, and rows that replace its first one."""
    rng = np.random.default_rng(num_columns)
    table = np.exp(rng.normal(0, 5, (400, num_columns)))
    table *= rng.random(table.shape) < 0.4  # rows of few cells
    table[:, 0] = 2010 + rng.normal(0, 5, 400)
    full, empty = np.full(num_columns, 1e30), np.zeros(num_columns)
    odd = np.resize([np.nan, np.inf, -np.inf, -1e300, 5e-324, -0.0], num_columns)
    return table, [full, -full, empty, odd, np.full(num_columns, 1e-9)]


@pytest.mark.parametrize("num_columns", [1, 2, 30])
@pytest.mark.parametrize("weight", [None, 0.0])
def test_a_record_moves_releases_by_their_sensitivity(releases, num_columns, weight):
    """Also if one of two records has no weight."""
    table, rows = neighbors(num_columns)
    ones = np.ones(len(table) + 1)
    weights = (None, None) if weight is None else (ones, np.append(weight, ones[1:]))
    shares = _scales._SHARES[1:] if num_columns == 1 else _scales._SHARES
    largest = np.zeros(len(shares))
    for row, other in itertools.permutations(rows, 2):
        tables = np.vstack([row, table]), np.vstack([other, table])
        both = releases.of_both(tables, weights, noise_multiplier=3.0)
        assert len(both[0]) == len(shares)
        for place, (share, first, second) in enumerate(zip(shares, *both, strict=True)):
            (one, scale, _), (two, _, _) = first, second
            moved = np.linalg.norm(np.ravel(one - two))
            unit = 3.0 / np.sqrt(share)
            largest[place] = max(largest[place], moved * unit / scale)
    assert (largest <= 1).all()
    nearly = 0.5 if weight is None else 0.45
    assert (largest > nearly).all(), "the cases come near what is allowed"


def test_neighbors_are_told_apart_by_no_more_than_the_price(releases):
    """The best attack on all that is released: the log likelihood ratio."""
    releases.noisy = releases.draw
    table, rows = neighbors(30)
    tables = [np.vstack([row, table]) for row in (rows[0], rows[4])]
    ratios = np.zeros(150)
    for i in range(len(ratios)):
        tables.reverse()
        both = releases.of_both(tables, noise_multiplier=1.0, seed=i)
        for (own, scale, noisy), (other, _, _) in zip(*both, strict=True):
            squares = (noisy - other) ** 2 - (noisy - own) ** 2
            ratios[i] += np.sum(squares) / (2 * scale**2)
    # With mu = 1 its mean is a half, and its standard deviation one.
    assert 0.25 < ratios.mean() < 0.5 + 4 / np.sqrt(len(ratios))


@pytest.mark.parametrize(("cells", "most"), [(3, 30.0), (30, 3.0), (30, 30.0)])
def test_sizes_move_by_no_more_than_they_say(cells, most):
    """The exact counts of a record's exponents; a share is rounded down to a unit."""
    table = np.random.default_rng(0).normal(size=(50, 30)).astype(np.float32)
    table[0, cells:] = 0.0
    both = []
    for _ in range(2):
        columns, scales = _scales._start(table, None)
        scales = scales._replace(most_cells=jnp.float32(most))
        entries, stddevs = _scales._exponents(columns, None, scales, 1.0)
        both.append(np.add(*np.asarray(entries, np.float64)))
        table[0, :cells] = 1e6
    moved = np.linalg.norm(both[0] - both[1])
    assert moved <= stddevs[0]
    assert moved > 0.99 * stddevs[0] or cells < most


def test_counts_are_exact_beyond_float32():
    for count in (2**31 - 1, 2**24 + 1, 4095, 0):
        entries, _ = _scales._entries(jnp.full(3, count, "int32"), 2**7, 1.0, 1.0)
        assert np.add(*np.asarray(entries, np.float64))[2] == count / 2**7


def test_centers_and_scales_suit_raw_units():
    rng = np.random.default_rng(1)
    n = 20_000
    columns = np.stack(
        [
            rng.normal(2010, 5, n),
            rng.lognormal(10, 1, n),
            -rng.lognormal(-9, 0.5, n),
            rng.random(n) < 0.2,
            rng.random(n) < 0.95,
            np.where(rng.random(n) < 0.5, 40.0, rng.normal(40, 10, n)),
            np.where(rng.random(n) < 0.1, rng.lognormal(8, 1, n), 0.0),
            np.full(n, np.nan),
        ],
        axis=1,
    )
    standard = _scales.release_scales(jax.random.key(0), columns, noise_multiplier=10.0)
    rows = np.abs(standard.of(columns))
    assert np.isfinite(rows).all()
    spread = np.quantile(rows, 0.995, axis=0)
    assert (spread[:7] > 0.3).all()
    assert (spread[:7] < 12).all()
    assert abs(standard.centers[0] - 2010) < 5
    assert standard.scales[7] == 1.0
    assert (standard.low[7], standard.high[7]) == (-1.0, 1.0)
    assert standard.is_known.tolist() == [True] * 7 + [False]


def test_a_mean_that_is_large_beside_the_spread_hides_no_scale():
    spread = np.random.default_rng(0).normal(size=(20_000, 1))
    for mean, multiplier in ((10.0, 10.0), (-1e4, 10.0), (1e5, 1.0)):
        for key in jax.random.split(jax.random.key(0), 3):
            standard = _scales.release_scales(
                key, mean + spread, noise_multiplier=multiplier
            )
            assert abs(standard.centers[0] - mean) < 3
            assert 0.5 < standard.scales[0] < 8


def test_noise_alone_moves_no_scale_far_out():
    # A bin that stands out by chance, once in a thousand fits, may make a scale of 1e9.
    columns = np.random.default_rng(1).normal(45, 15, (3_000, 1))
    for seed in range(100, 200):
        standard = _scales.release_scales(
            jax.random.key(seed), columns, noise_multiplier=20.0
        )
        assert 10 < standard.scales[0] < 200


def test_a_size_shows_where_enough_records_have_it():
    noise, num_samples = 2.0, 20_000
    least, seen = _scales.least_seen(3, noise), []
    for seed in range(20):
        columns = np.zeros((num_samples, 3))
        columns[: int(1.5 * least), 0], columns[: int(least / 4), 1] = 5.0, 5.0
        key = jax.random.key(seed)
        standard = _scales.release_scales(key, columns, noise_multiplier=noise)
        seen.append(standard.is_known)
    assert np.sum(seen, axis=0).tolist() == [20, 0, 0]


def test_the_share_of_scales_is_public_and_none_where_none_would_show():
    assert _scales.scales_share(100, 50, 3.0, least=0.05) == 0.0
    assert _scales.scales_share(10**6, 5, 3.0, least=0.05) == 0.05
    assert 0.05 < _scales.scales_share(3_000, 50, 3.0, least=0.05) <= 0.35


def test_noise_is_added_to_what_float32_counts_with_the_stddev_that_is_asked():
    # One record more moved the float of the next even number by two.
    counts = np.array([2.0**24, 2.0**24 + 1, 2.0**24 + 2])
    assert np.ptp(_scales.released(jax.random.key(0), counts, 1e-9)) == 0
    noisy = _scales.released(jax.random.key(0), np.zeros(4_000), 6.0)
    np.testing.assert_allclose(noisy.std(), 6.0, rtol=0.05)


def test_the_public_function_is_the_release_of_the_estimators():
    columns = 5 + np.random.default_rng(0).normal(size=(4_000, 3))
    columns[:, 1] *= np.arange(4_000) % 20 == 0
    key = jax.random.key(0)
    solution = dp_center_and_scale(columns, key=key, epsilon=2.0, delta=1e-6)
    stats = solution.stats
    noise, key = stats["noise_multiplier"], jax.random.clone(key)
    standard = _scales.release_scales(key, columns, noise_multiplier=noise)
    np.testing.assert_array_equal(solution.params, standard[:2])
    np.testing.assert_array_equal(stats["is_known"], standard.is_known)
    assert stats["least_seen"] == _scales.least_seen(3, noise)
    assert (solution.privacy.epsilon, solution.privacy.delta) == (2.0, 1e-6)
