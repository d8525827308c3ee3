"""What `describe` and `plan` print, beside the same numbers without privacy."""

import jax
import numpy as np
import pandas as pd
import pytest

import dpjax
from dpjax.datasets import Categorical, Numeric

NUM, EXACT = 4_000, 1e6
LIMITS = {"income": (0.0, 20_000.0), "age": (0.0, 100.0)}
SCHEMA = {
    "free": None,
    "income": Numeric(10_000, 10_000, limit=1),
    "age": Numeric(50, 50, limit=1),
    "town": Categorical(("Ghent", "Lier", "Nowhere")),
    "owns": Categorical(("true",)),
}
PLANNED = """\
columns.x = {center = 40, scale = 10, limit = 3}
columns.job = {categories = ["cook", "smith"]}
"""


def table(num=NUM):
    """Returns a table with skewed incomes, missing cells and an undeclared town."""
    rng = np.random.default_rng(0)
    income = rng.lognormal(np.log(17_400), 0.7, num)
    frame = {
        "free": rng.normal(3e3, 2.0, num),
        "income": np.where(rng.random(num) < 0.2, np.nan, income),
        "age": rng.integers(18, 95, num).astype(float),
        "town": rng.choice(["Ghent", "Lier", "Mol"], num, p=[0.5, 0.4, 0.1]),
        "owns": rng.choice(["true", "false"], num),
    }
    return pd.DataFrame(frame)


def described(frame, *, epsilon=EXACT, seed=0, **options):
    given = {"key": jax.random.key(seed), "epsilon": epsilon, "delta": 1e-6}
    return dpjax.describe(frame, SCHEMA, **given, **options)


def right(frame, edges, by):
    """Yields each number that a description states, by its place."""
    names = {"free": None, **LIMITS}
    town = frame["town"].where(frame["town"] != "Mol", "(other)")
    for name in SCHEMA:
        is_whole = by is None or name == by
        groups = ["(all)"] if is_whole else ["Ghent", "Lier", "Nowhere", "(other)"]
        for group in groups:
            own = frame[name] if is_whole else frame[name][town == group]
            if name in names:
                known = own.dropna()
                known = known if names[name] is None else known.clip(*names[name])
                yield (name, group, "count", ""), len(known)
                yield (name, group, "missing", ""), len(own) - len(known)
                if len(known):
                    yield (name, group, "mean", ""), [known.mean()] * 2
                    for place, share in ("median", 0.5), ("quantile 0.9", 0.9):
                        ends = "lower", "higher"
                        ends = [known.quantile(share, interpolation=x) for x in ends]
                        yield (name, group, place, ""), ends
                inner = np.asarray(edges[name][1:-1], np.float32)
                bins = np.searchsorted(inner, known.astype(np.float32), side="left")
                for index, count in enumerate(np.bincount(bins, minlength=20)):
                    yield (name, group, "histogram", index), count
                continue
            categories = SCHEMA[name].categories
            cells = own.where(own.isin(categories), "(other)")
            for of in (*categories, "(other)"):
                number = int((cells == of).sum())
                yield (name, group, "count", of), number
                if len(own):
                    yield (name, group, "share", of), number / len(own)


def places_of(rows):
    """Returns rows by column, group, statistic and category, or index of the bin."""
    found, bins = {}, {}
    for row in rows:
        of, where = row.of, (row.column, row.group)
        if row.statistic == "histogram":
            of = bins[where] = bins.get(where, -1) + 1
        found[*where, row.statistic, of] = row
    return found


def assert_right(rows, truths):
    found = places_of(rows)
    for place, truth in truths:
        row = found[place]
        assert row.low <= row.value <= row.high, place
        if place[2] in ("count", "missing", "histogram", "share"):
            assert row.value == pytest.approx(truth, abs=1e-9), place
        else:  # between two samples, to steps and rounding
            step = 3e-5 * max(map(abs, truth))
            assert truth[0] - step <= row.value <= truth[1] + step, place
            assert row.low <= sum(truth) / 2 <= row.high, place


def assert_possible(rows, num, by, total=None):
    """Asserts that numbers are possible ones, and agree."""
    found, sizes = places_of(rows), {}
    for (name, group, statistic, _), row in found.items():
        low, high = {"share": (0, 1)}.get(statistic, (0, num))
        if statistic in ("mean", "median", "quantile 0.9"):
            low, high = LIMITS.get(name, (-np.inf, np.inf))
        assert low <= row.low <= row.value <= row.high <= high, row
        assert row.low < row.high, row
        if statistic in ("count", "missing"):
            sizes[name, group] = sizes.get((name, group), 0) + row.value
    groups = {group for _, group in sizes} - {"(all)"}
    for name in SCHEMA:
        for group in ["(all)"] if by is None or name == by else groups:
            cells = {k: r.value for k, r in found.items() if k[:2] == (name, group)}
            shares = [value for k, value in cells.items() if k[2] == "share"]
            assert not shares or sum(shares) == pytest.approx(1.0, abs=1e-9)
            if by is None:
                size = total or sizes["age", group]
            else:
                size = num if name == by else found[by, "(all)", "count", group].value
            assert sizes[name, group] == pytest.approx(size), (name, group)
            if name in ("free", *LIMITS):
                bins = [value for k, value in cells.items() if k[2] == "histogram"]
                assert sum(bins) == pytest.approx(cells[name, group, "count", ""])


@pytest.mark.quick(1)
@pytest.mark.parametrize("by", ["town", None])
def test_numbers_of_a_description(by):
    frame = table()
    found = described(frame, by=by)
    assert_right(found.rows, right(frame, found.edges, by))
    for seed, epsilon in enumerate((0.5, EXACT)):
        noisy = described(frame, by=by, epsilon=epsilon, seed=seed)
        assert_possible(noisy.rows, NUM, by, NUM)
        if epsilon < EXACT:  # intervals of 95 per cent, of noise and of sampling
            places, truths = places_of(noisy.rows), [*right(frame, noisy.edges, by)]
            missed = [
                place
                for place, truth in truths
                if not places[place].low <= np.mean(truth) <= places[place].high
            ]
            assert len(missed) <= 0.08 * len(truths), missed
