"""`--max-records` with curves: the noise is that of the sample's own budget."""

import json

import pytest

from dpjax.accounting import noise_multiplier
from tests.unit.cli.command import done, invoke


def test_curves_of_a_sample(folder):
    lines = [f"{i / 500 - 1},{i}" for i in range(1000)]
    (folder / "data.csv").write_text("\n".join(["x,y", *lines]))
    words = ["train", "data.csv", "--schema", "schema.toml", "--loss", "squared"]
    words += ["--model", "additive", "--epsilon", 80, "--max-records", 600]
    done(invoke(*words, "--output", "out"))
    report = json.loads((folder / "out" / "report.json").read_text())
    own = report["sample"]["budget_of_sample"]
    assert report["method"] == "DP additive model"
    assert report["num_samples"] == 600
    multiplier = noise_multiplier(own["epsilon"], own["delta"], num_steps=1)
    assert report["stats"]["noise_multiplier"] == pytest.approx(multiplier, rel=1e-6)
    assert 0.999 * 80 < report["privacy"]["epsilon"] <= 80
    assert "any one of the 1,000 records" in report["privacy"]["description"]
