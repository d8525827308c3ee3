"""Pages and pictures are those of their records: written anew, and compared."""

import importlib
import re

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from benchmarks import coverage, intervals, plots, record, winners
from benchmarks.audits import catalogue
from benchmarks.comparison import Numbers
from benchmarks.conformance import adapter
from benchmarks.conformance import command as conformance
from benchmarks.deep import page as deep
from benchmarks.figures import page as figures
from benchmarks.speed import page as speed
from benchmarks.speed.measure import results
from benchmarks.utility import page as utility
from benchmarks.utility import predictions, untuned
from tests.nightly.test_docs import DOCS, PAGES, ROOT


def content(path):
    """A page's text, or the digest of what a picture was drawn from, in its file."""
    if path.suffix == ".png":
        with Image.open(path) as image:
            return image.text["Description"]
    text = path.read_text()
    return re.search("description>(.*?)<", text)[1] if path.suffix == ".svg" else text


def test_pages_and_pictures_are_of_their_records(tmp_path, monkeypatch):
    monkeypatch.setattr(Figure, "draw", lambda *_: None)  # what it shows will do
    (tmp_path / "results").symlink_to(record.RESULTS)
    written = [*speed.write(tmp_path), *figures.write(tmp_path)]
    written += utility.write(tmp_path / "UTILITY.md")
    written += untuned.write(tmp_path / "UNTUNED.md")
    written += deep.write(tmp_path / "DEEP.md")
    written += coverage.write(tmp_path / "COVERAGE.md")
    written += conformance.write(tmp_path / "CONFORMANCE.md")
    files = {record.ROOT / path.relative_to(tmp_path): path for path in written}
    drawn = plots.write(tmp_path)
    files |= {DOCS / "plots" / path.name: path for path in drawn}
    for old, new in files.items():
        assert content(old) == content(new), "run `python -m benchmarks report`"
    pictures = [*(DOCS / "plots").iterdir(), *(record.ROOT / "plots").rglob("*.png")]
    assert set(pictures) == {path for path in files if path.suffix != ".md"}
    assert sum(path.stat().st_size for path in pictures) < 2_150_000
    for light, dark in zip(drawn[::2], drawn[1::2], strict=True):
        assert content(light) == content(dark)
    shown = "".join(path.read_text() for path in PAGES)
    for path in drawn:
        assert f"plots/{path.name}\n:class: only-{path.stem[-5:].strip('-')}\n" in shown


def test_a_picture_of_other_numbers_has_another_digest():
    def digest(y=(1, 2), bars=(1, 2), name="a", title="one"):
        figure = Figure()
        axes = figure.subplots()
        axes.fill_between([1, 2], [0, 0], y)
        axes.plot([1, 2], [3, 4], label=name)
        axes.barh([0, 1], bars)
        axes.set_title(title, loc="left")
        return plots.drawn(figure)

    changes = {"y": (1, 2.01)}, {"bars": (1, 3)}, {"name": "b"}, {"title": "two"}
    assert len({digest(), digest(), *(digest(**change) for change in changes)}) == 5


def test_numbers_of_the_readme_are_those_of_the_records():
    numbers = utility.Numbers(record.read(utility.PATH))
    real = numbers.names(is_real=True)
    ours, wide = (
        numbers.geometric_mean(real, "dp_linear_model", 1.0, bar)
        for bar in ("hindsight", "hindsight_wide")
    )
    assert (ours[1], wide[1]) == (5, 5)
    case = results(record.read(record.RESULTS / "cpu.json"))["gradient-mlp"]
    clipping = case.find("Clipping")
    optax = case.find("optax differentially_private_aggregate")
    best, opacus = (
        min(x.seconds for x in case.methods if x.package.startswith(package))
        for package in ("jax_privacy", "opacus")
    )
    audits = catalogue.read(record.RESULTS / "audits.json")
    most = max(one.num_releases for one in audits.values())
    shares = {name: 100 * one.epsilon / one.claim for name, one in audits.items()}
    closest = max(shares.values())
    assert closest < 100
    losses = Numbers(record.read(predictions.PATH))
    curves, trees, line, rival = (
        f"{losses.of('credit_default', name, 1.0).mean:.3f}"
        for name in ("dp_additive_model", "trees", "dp_linear_model", "dp_ebm")
    )
    readme = " ".join((ROOT / "README.md").read_text().split())
    sizes = [f"{x.peak_bytes / 2**20:.0f} MiB" for x in (clipping, optax)]
    seconds = clipping.seconds, optax.seconds, best, opacus
    times = [f"{1e3 * x:.0f} ms" for x in seconds]
    for text in (
        *(f"is {curves}. Boosted", f"have {trees}, the linear model {line}, and the"),
        *(f"InterpretML {rival}.", f"excess test risk is {ours[0]:.2f} times"),
        *(f"more settings, {wide[0]:.2f} times", f"takes {times[0]} and {sizes[0]} on"),
        f"optax's takes {times[1]} and {sizes[1]}, jax_privacy's {times[2]} at",
        f"{len(audits)} releases were attacked, with up to {most:,} draws each",
        *(f"Opacus' {times[3]} in", f"closest attack proved {closest:.0f} percent"),
        f"the steps of `dp_linear_model` proved {int(shares['dp_linear_model'])} "
        f"percent, and {int(shares['dp_linear_model_features'])} with chosen features",
    ):
        assert text in readme, text


def test_adapters_stand_for_what_peers_have(tmp_path):
    for package in conformance.SUITES:
        importlib.import_module(f"benchmarks.conformance.of_{package}")
    for module, _, name in (x.rpartition(".") for x in adapter.ADAPTERS):
        if importlib.util.find_spec(module.split(".")[0]):
            assert hasattr(importlib.import_module(module), name)
    conformance.conform(tmp_path, out := tmp_path / "conformance.json")
    assert not out.exists()  # skipped, without archives
    rows = record.read(conformance.PATH).rows.values()
    assert sum(row["passed"] for row in rows) >= 350
    assert not any(row["failed"] for row in rows)


def test_winners_are_measured(tmp_path, monkeypatch):
    sizes = {"NUM_SAMPLES": 200, "NUM_FEATURES": (2,), "TAIL_INDICES": (3.0,)}
    for name, value in (sizes | {"REPETITIONS": 2}).items():
        monkeypatch.setattr(winners, name, value)
    methods = {"zero": [winners.METHODS["zero"].solve]}
    monkeypatch.setattr(winners, "_methods", lambda num_features: methods)
    winners.run(tmp_path / "winners.json")
    ((place, row),) = record.read(tmp_path / "winners.json").rows.items()
    assert place == (3.0, 2, "zero")
    np.testing.assert_allclose(row["excess"], [0.5, 0.5], rtol=1e-6)


def test_intervals_are_measured(tmp_path, monkeypatch):
    sizes = {"NUM_SAMPLES": 4_000, "EPSILONS": (20.0,), "REPETITIONS": 4, "AT_ONCE": 2}
    for name, value in sizes.items():
        monkeypatch.setattr(intervals, name, value)
    intervals.run(tmp_path / "intervals.json")
    rows = record.read(tmp_path / "intervals.json").rows
    plain, ours = (rows[20.0, one] for one in (intervals.PLAIN, intervals.OURS))
    assert len(rows) == 3
    assert sum(plain["held"]) > 0.8 * sum(plain["finite"]) == 0.8 * 44
    assert ours["finite"] == [4] * 11
    assert sum(ours["held"]) > 0.8 * 44
