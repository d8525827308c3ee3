"""A description of a sample speaks for the table."""

import numpy as np

from dpjax.datasets import Categorical, Numeric
from tests.unit.test_describe import described

NUM = 20_000


def test_a_sample_counts_for_all():
    rng = np.random.default_rng(1)
    frame = {"x": rng.normal(3.0, 1.0, NUM), "owns": rng.random(NUM) < 0.3}
    schema = {"x": Numeric(3, 5, limit=1), "owns": Categorical(("true",))}
    truths = {
        ("x", "count", ""): NUM,
        ("x", "mean", ""): frame["x"].mean(),
        ("x", "median", ""): np.median(frame["x"]),
        ("owns", "count", "true"): frame["owns"].sum(),
        ("owns", "share", "true"): frame["owns"].mean(),
        ("x", "histogram", "3 to 3.5"): np.sum((frame["x"] > 3) & (frame["x"] <= 3.5)),
    }
    missed, wide, runs = dict.fromkeys(truths, 0), 0.0, 40
    for key in range(runs):
        found = described(frame, schema, key=key, delta=1e-5, max_records=2_000)
        rows = {(row.column, row.statistic, row.of): row for row in found.rows}
        for place, truth in truths.items():
            missed[place] += not rows[place].low <= truth <= rows[place].high
        row = rows["owns", "count", "true"]
        wide += (row.high - row.low) / 2 / 1.96 / runs
    # A truth of the table is in each interval with a probability of 95 % or more: eight
    # of 40 are out with one of less than 4e-4.
    assert max(missed.values()) < 8, missed
    # And they are no wider than sampling and noise, by which 200 would be out alone.
    assert 200 < wide < 300
    assert (found.num_samples, found.sample_size) == (NUM, 2_000)
    assert 0.999 * 3 < found.privacy.epsilon <= 3
    assert 0.999e-5 < found.privacy.delta <= 1e-5
    assert "20,000 records" in found.privacy.description
    assert all(cost.epsilon < 3 for cost in found.costs)
