"""Centres, scales and labels that are bought: what one record can change, and truth."""

import itertools
import math

import jax
import numpy as np
import pytest

from dpjax.sklearn import _labels, _scales, _tables
from dpjax.sklearn._scales import Standard, buy_scales, scales_share
from tests.replay._replay import seen

MULTIPLIER = 3.0


class Releases:
    """Stands for the noise: what is released, and what a neighbour would release.

    A neighbour's later releases follow the same earlier ones, as adaptive composition
    has it: so it is told the values of the first table.
    """

    def __init__(self):
        self.made, self.told = [], []

    def __call__(self, key, values, stddev):
        self.made.append((np.array(values, np.float64), stddev))
        place = len(self.made) - 1
        return self.told[place][0] if self.told else self.made[place][0]


@pytest.fixture
def releases(monkeypatch):
    stand_in = Releases()
    monkeypatch.setattr(_scales, "released", stand_in)
    return stand_in


def neighbours(num_columns):
    """A table, and rows that replace its first one."""
    rng = np.random.default_rng(num_columns)
    table = np.exp(rng.normal(0, 5, (400, num_columns)))
    table *= rng.random(table.shape) < 0.4  # rows of few cells
    table[:, 0] = 2010 + rng.normal(0, 5, 400)
    full, empty = np.full(num_columns, 1e30), np.zeros(num_columns)
    odd = np.resize([np.nan, np.inf, -np.inf, -1e300, 5e-324, -0.0], num_columns)
    return table, [full, -full, empty, odd, np.full(num_columns, 1e-9)]


@pytest.mark.parametrize("num_columns", [1, 2, 30])
def test_a_record_moves_releases_by_their_sensitivity(releases, num_columns):
    table, rows = neighbours(num_columns)
    shares = _scales._SHARES[1:] if num_columns == 1 else _scales._SHARES
    largest = np.zeros(len(shares))
    for row, other in itertools.permutations(rows, 2):
        releases.told, tables = [], (np.vstack([row, table]), np.vstack([other, table]))
        for rows_of in tables:
            releases.made = []
            buy_scales(jax.random.key(0), rows_of, noise_multiplier=MULTIPLIER)
            releases.told, told = releases.made, releases.told
        assert len(told) == len(releases.told) == len(shares)
        for place, share in enumerate(shares):
            (one, stddev), (two, _) = told[place], releases.told[place]
            moved, unit = np.linalg.norm(one - two), MULTIPLIER / math.sqrt(share)
            largest[place] = max(largest[place], moved * unit / stddev)
    assert (largest <= 1).all()
    assert (largest > 0.5).all(), "the cases come near what is allowed"


@pytest.mark.parametrize(("cells", "most"), [(3, 30.0), (30, 3.0), (30, 30.0)])
def test_sizes_move_by_no_more_than_they_say(releases, cells, most):
    table = np.random.default_rng(0).normal(size=(50, 30))
    one, two = table.copy(), table.copy()
    one[0, cells:], two[0, cells:] = 0.0, 0.0
    two[0, :cells] = 1e6
    for changed in (one, two):
        _scales._sizes(jax.random.key(0), changed, 1.0, most, 0.75)
    (first, stddev), (second, _) = releases.made
    moved = np.linalg.norm(first - second)
    assert moved <= stddev
    if cells >= most:
        assert moved > 0.99 * stddev


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
    standard = buy_scales(jax.random.key(0), columns, noise_multiplier=10.0)
    rows = np.abs(standard.of(columns))
    assert np.isfinite(rows).all()
    spread = np.quantile(rows, 0.995, axis=0)
    assert (spread[:7] > 0.3).all()
    assert (spread[:7] < 12).all()
    assert abs(standard.centers[0] - 2010) < 50
    assert standard.scales[7] == 1.0
    assert (standard.low[7], standard.high[7]) == (-1.0, 1.0)


def test_the_share_of_scales_is_public_and_none_where_none_would_show():
    assert scales_share(100, 50, 3.0, least=0.05) == 0.0
    assert scales_share(10**6, 5, 3.0, least=0.05) == 0.05
    assert 0.05 < scales_share(3_000, 50, 3.0, least=0.05) <= 0.35


def test_held_cells_are_finite():
    standard = Standard.of_ranges(np.array([0.0]), np.array([10.0]))
    cells = np.array([[np.nan], [np.inf], [-np.inf], [3.0]])
    np.testing.assert_array_equal(standard.held(cells)[:, 0], [5.0, 10.0, 0.0, 3.0])


LABELS = [
    np.array(["b", "a", "b"]),
    np.array([2, 1, 2]),
    np.array([2.0, np.nan, 2.0]),
    np.array([True, False, True]),
    np.array(["b", None, 3.5, ("x",), ["no hash"], np.nan], object),
    np.array(["2020-01-01", "NaT"], "datetime64[D]"),
]


@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_labels_are_numbered_and_found_again(labels):
    distinct, codes = _labels.numbered(labels)
    for label, code in zip(labels, codes, strict=True):
        if code >= 0:
            assert distinct[code] in (label, (label,))
        else:
            assert label is None or label == ["no hash"] or label != label
    first = [codes.tolist().index(code) for code in range(len(distinct))]
    classes = _labels._sorted(labels[first])
    found = _labels.indices(labels, classes)
    assert (found >= 0).tolist() == (codes >= 0).tolist()
    for label, place in zip(labels, found, strict=True):
        assert place < 0 or classes[place] == label


def test_labels_match_where_they_are_equal():
    classes = _labels.declared([0, 1])
    assert _labels.indices(np.array([1.0, 0.0, 2.0]), classes).tolist() == [1, 0, -1]
    assert _labels.indices(np.array([True, False]), classes).tolist() == [1, 0]
    assert _labels.indices(np.array(["1", "0"]), classes).tolist() == [-1, -1]


@pytest.mark.parametrize("classes", ["ab", [1], [1, 1], [1.0, np.nan], [[1, 2]], 3])
def test_classes_that_are_refused(classes):
    with pytest.raises(ValueError, match="classes"):
        _labels.declared(classes)


def test_labels_of_one_record_are_shown_as_rarely_as_said(key):
    probability, shown = 0.02, 0
    labels = np.array([f"label of one {i}" for i in range(400)])
    for run_key in jax.random.split(key, 25):
        bought = _labels.buy_labels(
            run_key, labels, noise_multiplier=2.0, log_probability=math.log(probability)
        )
        shown += np.count_nonzero(np.char.startswith(bought, "label"))
    # 10,000 draws: mean 200, standard deviation 14. The text of none is not shown.
    assert 130 < shown < 270


def test_labels_of_many_records_are_bought_and_no_text_but_theirs(key):
    labels = np.array(
        ["yes"] * 500 + ["no"] * 300 + ["a very long label of one record"]
    )
    bought = _labels.buy_labels(
        key, labels, noise_multiplier=10.0, log_probability=-12.0
    )
    assert bought.tolist() == ["no", "yes"]
    assert bought.dtype == "<U3"
    few = _labels.buy_labels(
        jax.random.key(1), labels[-1:], noise_multiplier=10.0, log_probability=-12.0
    )
    assert few.tolist() == [0]


# One record's label, and the type that readers give to the whole column for it.
CONTAINERS = [
    lambda labels, one: np.array([*labels, one], object),
    lambda labels, one: np.array([*labels, one], np.float64),
    lambda labels, one: np.array([one, *map(float, labels)], object),
    lambda labels, one: np.array([True, *labels, one], object),
    lambda labels, one: np.array([*labels, "text"], object),
    lambda labels, one: np.array([*labels, None], object),
    lambda labels, one: np.array([*labels, b"1"], object),
    lambda labels, one: np.array([*labels, (1,)], object),
    lambda labels, one: np.array([np.bool_(True), *labels, 10**400], object),
    lambda labels, one: [*labels, "text"],
]


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("one", [0.5, 1.0, 2**53 + 1, np.nan])
def test_the_type_of_released_labels_is_theirs_alone(key, container, one):
    held = _tables.as_column(container([0] * 300 + [1] * 500, one))
    bought = _labels.buy_labels(key, held, noise_multiplier=5.0, log_probability=-12.0)
    assert seen(bought) == seen(np.array([0, 1]))
    assert _labels.indices(held, bought).tolist().count(1) >= 500


@pytest.mark.parametrize(
    ("labels", "bought"),
    [
        ([1.5] * 300 + [1] * 300, np.array([1.0, 1.5])),
        (["a\0"] * 300 + [b"b"] * 300, np.array(["a", "b"])),
        (["1"] * 300 + [1] * 300, np.array([1, "1"], object)),
    ],
)
def test_released_labels_have_one_form(key, labels, bought):
    held = _tables.as_column(labels)
    found = _labels.buy_labels(key, held, noise_multiplier=5.0, log_probability=-12.0)
    assert seen(found) == seen(bought)


def test_counts_are_held_to_what_float32_counts():
    # One record more moved the float of the next even number by two.
    counts = np.array([2.0**24, 2.0**24 + 1, 2.0**24 + 2])
    found = _scales.released(jax.random.key(0), counts, 1e-9)
    assert np.ptp(found) == 0


def test_noise_has_the_stddev_that_is_asked():
    noise = _scales.released(jax.random.key(0), np.zeros(4_000), 3.0)
    np.testing.assert_allclose(noise.std(), 3.0, rtol=0.05)
