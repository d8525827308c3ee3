"""The benchmark suite: fair methods, targets judged right, records that are whole."""

import importlib.util

import jax
import numpy as np
import pytest

from benchmarks import record
from benchmarks.__main__ import main
from benchmarks.audits.case import Case as AuditCase
from benchmarks.figures import run as figures
from benchmarks.record import Record
from benchmarks.speed import measure, page, peers
from benchmarks.speed.case import Case, Measurement, Method, Target
from benchmarks.speed.measure import results
from benchmarks.speed.models import MODELS
from benchmarks.speed.suites import CASES, SUITES
from benchmarks.utility import page as utility
from dpjax import estimators, robust_grad
from tests.nightly import test_utility

SPEED = {"copies": [{"bytes_per_second": 1000.0}, {"bytes_per_second": 10.0}]}
RUN = {
    **test_utility.RUN,
    "memory_bytes": 2**34,
    "versions": {"dpjax": "0.1.0", "opacus": None},
    "started": "2026-11-20T12:30:45",
    "floor": SPEED,
}


def row(seconds=1.0, **others):
    others = {"package": "dpjax", "repeats": 3} | others
    return {"seconds": seconds, "quartiles": [seconds, seconds], "run": 0, **others}


def measurement(name, seconds=1.0, **others):
    fields = row(seconds, **others)
    return Measurement(name, **{k: v for k, v in fields.items() if k != "run"})


def made_up():
    rows, names = {}, ("gradient-mlp", "gradient-decoder")
    for name in names:
        rows[name, "Clipping"] = row(peak_bytes=2**20)
        rows[name, "Opacus, hooks"] = {"left_out": "not installed", "run": 0}
    return Record((RUN,), {name: {"alone_seconds": 0.8} for name in names}, rows)


@pytest.mark.parametrize(
    ("target", "value", "is_reached", "factor"),
    [
        (Target("a", ["b"], at_most=0.6), 0.5, True, 1.2),
        (Target("b", ["a"], at_most=1.5), 2.0, False, 4 / 3),
        (Target("b", ["a"], at_most=2), 2.0, True, 1.0),
        (Target("a", ["b"], times_faster=2), 2.0, True, 1.0),
        (Target("a", ["b"], times_faster=10), 2.0, False, 5.0),
        (Target("a", ["b", "c", "absent"], times_faster=1), 1.25, True, 1.25),
        (Target("a", ["b"], at_most=2, quantity="peak_bytes"), 4.0, False, 2.0),
        # 100 bytes in a second, where the largest copy moves 10 a second.
        (Target("a", at_least=0.6, quantity="copy_share"), 10.0, True, 10 / 0.6),
        (Target("c", at_least=0.6, quantity="copy_share"), 8.0, True, 8 / 0.6),
    ],
)
def test_targets_are_judged_by_their_ratio(target, value, is_reached, factor):
    methods = [
        measurement("a", 1.0, peak_bytes=8, moved_bytes=100),
        measurement("b", 2.0, peak_bytes=2),
        measurement("c", 1.25, moved_bytes=100),
    ]
    verdict = target.judge(methods, SPEED)
    assert (verdict.value, verdict.factor) == pytest.approx((value, factor))
    assert verdict.is_reached is is_reached
    others = [name for name in target.against if name != "absent"]
    seconds = {one.name: one.seconds for one in methods}
    assert verdict.other == min(others, key=seconds.__getitem__, default="")


@pytest.mark.parametrize("measured", [[], [measurement("a")]])
def test_a_target_without_its_numbers_is_not_judged(measured):
    unknown = [Target(*x, at_most=1) for x in (("absent", ["a"]), ("a", ["absent"]))]
    unknown += [Target("a", ["a"], at_most=1, quantity="peak_bytes")]
    unknown += [Target("a", at_least=1, quantity="copy_share")]
    assert all(target.judge(measured, SPEED) is None for target in unknown)


def test_targets_name_methods_of_their_case():
    for case in CASES.values():
        if case.targets:
            names = {method.name for method in case.build()}
            for target in case.targets:
                assert {target.method, *target.against} <= names


@pytest.fixture
def cpu(tmp_path):
    path = tmp_path / "cpu.json"
    record.write(made_up(), path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]  # nothing else
    return path


def test_a_record_comes_back_as_it_was_written(cpu):
    assert record.read(cpu) == made_up()
    result = results(made_up())["gradient-mlp"]
    assert result.find("Clipping").seconds == 1.0
    assert result.left_out == {"Opacus, hooks": "not installed"}
    assert result.alone_seconds == 0.8


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *(('"format": 2', '"format": 1'), ('"run": 0', '"run": 7')),
        *(('"cores"', '"scores"'), ('"copies"', '"copy"'), ('"repeats"', '"heats"')),
        *(('"seconds": 1.0', f'"seconds": {bad}') for bad in ("NaN", "-1.0", '"1"')),
        *(("2026-11-20", "yesterday"), ("}", ""), ("{", "[")),
    ],
)
def test_a_broken_record_is_refused(cpu, old, new):
    text = cpu.read_text()
    assert old in text
    cpu.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=r"not a record|not of a suite"):
        page.write_from({"cpu": cpu}, cpu.parent / "pages")
    assert not (cpu.parent / "pages").exists()


def test_a_run_replaces_its_cases_and_goes_on(cpu, monkeypatch):
    monkeypatch.setattr(measure, "floor", lambda: SPEED)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    name = "gradient-decoder"
    measured = {(name, "Clipping"): row(5.0)}, {name: {"alone_seconds": None}}
    seen = []
    monkeypatch.setattr(measure, "run_case", lambda x: seen.append(x.name) or measured)
    main(["run", "--case", name, "--out", str(cpu)])
    after = results(record.read(cpu))
    assert after[name].find("Clipping").seconds == 5.0
    assert len(record.read(cpu).runs) == 2
    assert after["gradient-mlp"] == results(made_up())["gradient-mlp"]
    main(["run", "--out", str(cpu)])  # it goes on where the first one ended
    assert seen == sorted((x.name for x in SUITES["cpu"]), key=lambda x: x != name)


def test_a_case_runs_and_leaves_out_what_fails():
    def broken():
        raise RuntimeError("out of memory\nand more")

    x = np.ones((64, 4), np.float32)
    mean, host = jax.jit(estimators.Truncation(1.0)), lambda: (x.mean, (0,))
    methods = [
        Method("ours", lambda: (mean, (x,)), moved_bytes=1024),
        Method("NumPy", host, "numpy"),
        Method("peer", host, "no_such_package"),
        Method("broken", broken),
    ]
    case = Case("small", "small", lambda: methods, (), "ours", has_peak=False)
    rows, facts = measure.run_case(case, (0.1, 4, 4))
    rows = {place: {**one, "run": 0} for place, one in rows.items()}
    result = results(Record((RUN,), facts, rows))["small"]
    assert result.left_out == {
        "peer": "ModuleNotFoundError: no_such_package is not installed",
        "broken": "RuntimeError: out of memory",
    }
    ours, host = result.methods
    assert (ours.name, host.name) == ("ours", "NumPy")
    for one in (ours, host):
        assert one.repeats == 4
        assert 0 < one.quartiles[0] <= one.seconds <= one.quartiles[1]
    assert min(result.alone_seconds, ours.compile_seconds) > 0
    assert ours.moved_bytes == 1024
    assert host.compile_seconds is host.temporary_bytes is None


def result_of(made):
    function, arguments = made
    leaves = jax.tree.leaves(function(*arguments))
    return np.sort(np.concatenate([np.asarray(leaf).ravel() for leaf in leaves]))


def gradient_of(setting, estimator):
    loss_fn, *arguments = setting
    return result_of((jax.jit(robust_grad(loss_fn, estimator)), arguments))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("model", ["mlp", "convolutional"])
def test_the_peers_compute_our_gradient(model):
    setting = MODELS[model](4)
    clipped = gradient_of(setting, estimators.Clipping(1.0))
    assert np.abs(clipped).max() > 0.01
    cases = [(peers.optax_aggregate, {}, clipped)]
    if model == "mlp":
        cases.append((peers.plain, {}, gradient_of(setting, estimators.Mean())))
    if importlib.util.find_spec("jax_privacy") is not None:
        cases.append((peers.jax_privacy, {"microbatch_size": 2}, clipped))
    if importlib.util.find_spec("opacus") is not None:
        for is_ghost in (False, True):
            options = {"model": model, "is_ghost": is_ghost}
            cases.append((peers.opacus, options, clipped))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for peer, options, expected in cases:
            made = peer(*setting, **options)
            tolerance = 1e-4 if peer is peers.opacus else 1e-5
            assert result_of(made) == pytest.approx(expected, abs=tolerance)


WRONG = {
    "--methods none": "method = 'none': must be one of",
    "--problems none": "problem = 'none': must be one of",
    "--epsilons 0": "epsilon = 0.0: must be positive",
    "--repetitions 1": "repetitions = 1: must be at least 2",
    "--out x.txt": "--out must be a file",
}
PARTS = *(f"utility {part}" for part in utility.PARTS), "deep run"
WRONG = {f"{part} {x}": words for part in PARTS for x, words in WRONG.items()} | {
    "run --case none": "case = 'none': must be one of",
    "run --out cpu.txt": "--out must be a file that ends in",
    "report none": "page = 'none': must be one of",
    "figures run 004-12": "NAME must be one that",
    "figures run 001-1x": "NAME must be one that",
    "figures run 001-11": "NAME must be one that",
    "figures run 004-1b --repeats 0": "--repeats must be",
    "figures run 004-1b --seed -1": "--seed must be",
    "figures run 004-1b --out file": "--out must be a folder",
    "figures run 004-1b --out taken": "--out must be a folder",
    "figures report here": "must hold tables of figures",
    "audit nothing": "NAME must be list, or one of gaussian, laplace,",
    "audit laplace --releases 99": "--releases must be at least 100, got 99",
    "audit laplace --seed -1": "--seed must be from 0 to 2.32 - 1, got -1",
    "audit laplace --output plot.pdf": "--output must be a file that ends in",
    "audit laplace --output link/plot.png": "--output must be a file that",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_a_command_names_a_wrong_argument(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "here").mkdir()
    (tmp_path / "taken/004-1b.csv").mkdir(parents=True)
    (tmp_path / "link").symlink_to("nowhere")
    before = sorted(tmp_path.rglob("*"))
    for owner, name in (measure, "floor"), (figures, "run_panel"), (AuditCase, "audit"):
        monkeypatch.setattr(owner, name, None)
    with pytest.raises(SystemExit, match=WRONG[arguments]):
        main(arguments.split())
    assert not capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before
