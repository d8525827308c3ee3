"""`dpjax parties`: four processes from one command, and what it refuses."""

import functools
import json
import subprocess
import sys

import numpy as np
import pytest

from dpjax.accounting import PrivacyGuarantee, gaussian_event
from dpjax.cli import _parties
from dpjax.cli._made_records import made_records
from dpjax.cli._schema import Schema
from dpjax.datasets import Numeric
from dpjax.solvers import Solution
from tests.cli.command import done, invoke, refusals, refused, words_of


@pytest.mark.slow
def test_one_command_starts_four_parties(tmp_path):
    command = [sys.executable, "-m", "dpjax.cli", "parties", "rand-hie"]
    options = ["--epsilon", "1", "--steps", "3", "--output", str(tmp_path / "out")]
    result = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
    rounds = [x for x in result.stderr.splitlines() if x.startswith("round")]
    assert [x.split(":")[0] for x in rounds] == [f"round {i}/3" for i in (1, 2, 3)]
    assert "any 1 of the parties" in " ".join(result.stdout.split())
    assert sorted(x.name for x in (tmp_path / "out").iterdir()) == [
        "model.npz",
        "report.json",
    ]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["privacy"]["epsilon"] == 1.0
    assert report["num_parties"] == report["num_live"] == 4
    assert f"{report['num_samples']:,} records" in report["privacy"]["description"]
    with np.load(tmp_path / "out" / "model.npz") as file:
        assert file["params"].shape == (29,)
        assert np.all(np.isfinite(file["params"]))


@pytest.mark.slow
def test_a_party_that_fails_is_named_and_nothing_is_written(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    settings = _parties.PartySettings(
        source="rand_hie", num_parties=2, epsilon=1.0, output=folder
    )
    start = _parties._start

    def start_all_but_one(settings, party, coordinator, errors):
        process = start(settings, party, coordinator, errors)
        if party == 1:
            process.kill()
        return process

    monkeypatch.setattr(_parties, "_start", start_all_but_one)
    with pytest.raises(ChildProcessError, match="party 1"):
        _parties.train_with_parties(settings)
    assert not folder.exists()


@pytest.mark.parametrize(("loss", "score"), [("squared", "error"), ("logistic", "acc")])
def test_what_parties_trained_has_a_report(tmp_path, loss, score):
    schema = Schema({"x": Numeric(0.0, 1.0)}, None)
    data = made_records(schema, 50, loss, tail=3.0, signal=0.5, seed=0)
    options = {"source": "adult", "epsilon": 1.0, "num_parties": 3, "max_colluding": 2}
    settings = _parties.PartySettings(**options)
    noise = {"num_steps": 50, "noise_multiplier": 3.7306}
    noise |= {"num_parties": 3, "num_live": 3, "num_samples": 50}
    privacy = PrivacyGuarantee.of(
        1.0, 1e-5, dp_event=gaussian_event(3.7306), num_samples=50
    )
    solution = Solution(np.ones(2), privacy, noise)
    for name, content in _parties._files(settings, data, solution).items():
        (tmp_path / name).write_bytes(content)
    done(invoke("report", tmp_path, "--format", "md"))
    text = words_of((tmp_path / "report.md").read_text().replace("\\", ""))
    for words in (
        "The table is a public data set",
        "holds against any 2 of the other parties too",
        "Measured on public test records.",
        "dpjax parties made records --epsilon 1 --delta",
        "--num-parties 3, with",
        score,
    ):
        assert words in text


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory, in which no party starts."""
    monkeypatch.setattr(_parties, "_start", None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


test_bad_options_are_named_before_anything_starts = refusals(
    """
foo --epsilon 1 => DATA must be one of adult, rand_hie
adult --epsilon 0 => --epsilon must be positive and finite, got 0
adult --epsilon 1 --delta 1 => --delta must be strictly between 0 and 1, got 1
adult --epsilon 1 --num-parties 1 => --num-parties must be 2 or more, got 1
adult --epsilon 1 --steps 0 => --steps must be an integer of at least 1, got 0
adult --epsilon 1 --clip-norm -1 => --clip-norm must be positive
adult --epsilon 1 --learning-rate -1 => --learning-rate must be positive
adult --epsilon 1 --max-dropouts 3 => max_dropouts must be
adult --epsilon 1 --output /dev/null => --output must be a folder
""",
    run=functools.partial(invoke, "parties"),
)


@pytest.mark.parametrize(
    ("name", "is_there", "message"),
    [
        ("adult", False, 'Parties need cryptography: pip install "dpjax[parties]"'),
        ("winnipeg", True, "is not on this machine"),
    ],
)
def test_extras_and_files_are_checked_before_anything_starts(
    name, is_there, message, monkeypatch, folder
):
    monkeypatch.setenv("DPJAX_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    if not is_there:
        monkeypatch.setattr(_parties.importlib.util, "find_spec", lambda name: None)
    refused(invoke("parties", name, "--epsilon", 1), message)
    assert not [*folder.iterdir()]
