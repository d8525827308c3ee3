"""The benchmark suite: fair methods, targets judged right, records that are whole."""

import dataclasses
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image, ImageColor

import dpjax
from benchmarks import cost_page, floor, peers, plots, record, report, runner, scaling
from benchmarks.__main__ import main
from benchmarks.case import Case, Method, Target, Work
from benchmarks.models import MODELS
from benchmarks.record import Measurement, Record, Results
from benchmarks.suites import CASES, SUITES
from benchmarks.text import machine, number
from benchmarks.verdict import judge

ROOT = Path(__file__).parents[1]
SPEED = {
    "copies": [
        {"bytes": 100.0, "bytes_per_second": 1000.0},
        {"bytes": 200.0, "bytes_per_second": 10.0},
    ],
    "operations_per_second": 50.0,
    "call_seconds": 1e-6,
}
WORK = {
    "bytes": 100.0,
    "operations": 200.0,
    "resident_bytes": 150.0,
    "bytes_formula": "4*n",
    "operations_formula": "c*n",
    "sizes": {"n": 25, "c": 8},
}


def measurement(name, seconds=1.0, **others):
    others = {"package": "dpjax", "repeats": 3, "compilations": 1} | others
    return Measurement(
        name=name, seconds=seconds, quartiles=[seconds, seconds], **others
    )


def made_up(**changes):
    """A record of every case of the suite, all methods at made-up times."""
    cases = {}
    for case in SUITES["cpu"]:
        if case.axis:
            points = [
                measurement(f"s, {x}", x / 8, series="s", x=float(x), work=WORK)
                for x in (1, 10)
            ]
            cases[case.name] = Results(points)
        else:
            asked = {target.method for target in case.targets}
            asked |= {name for target in case.targets for name in target.against}
            methods = [
                measurement(name, peak_bytes=2**20, work=WORK) for name in sorted(asked)
            ]
            left_out = {"Opacus, hooks": "not installed"}
            cases[case.name] = Results(methods, left_out, alone_seconds=0.8)
    return Record(
        suite="cpu",
        is_quick=False,
        is_whole=True,
        started="2026-11-20T12:30:45",
        seconds=600.0,
        commit="",
        machine={
            "processor": "a processor",
            "cores": 2,
            "memory_bytes": 2**34,
            "accelerator": None,
            "system": "Linux",
            "python": "3.11.7",
        },
        versions={"dpjax": "0.1.0", "opacus": None},
        floor=SPEED,
        cases=cases,
        **changes,
    )


@pytest.mark.parametrize(
    ("target", "value", "is_reached", "factor"),
    [
        (Target("a", ["b"], at_most=0.6), 0.5, True, 1.2),
        (Target("b", ["a"], at_most=1.5), 2.0, False, 4 / 3),
        (Target("b", ["a"], at_most=2), 2.0, True, 1.0),
        (Target("a", ["b"], times_faster=2), 2.0, True, 1.0),
        (Target("a", ["b"], times_faster=10), 2.0, False, 5.0),
        (Target("a", ["b", "c", "absent"], times_faster=1), 1.25, True, 1.25),
        (Target("a", at_most=1, quantity="compilations"), 3.0, False, 3.0),
        (Target("a", ["b"], at_most=2, quantity="peak_bytes"), 4.0, False, 2.0),
        # 100 bytes in a second, where the largest copy moves 10 a second.
        (Target("a", at_least=0.6, quantity="copy_share"), 10.0, True, 10 / 0.6),
        (Target("c", at_least=0.6, quantity="copy_share"), 8.0, True, 8 / 0.6),
    ],
)
def test_targets_are_judged_by_their_ratio(target, value, is_reached, factor):
    results = Results(
        [
            measurement("a", 1.0, peak_bytes=8, compilations=3, work=WORK),
            measurement("b", 2.0, peak_bytes=2),
            measurement("c", 1.25, work=WORK),
        ]
    )
    verdict = judge(target, results, SPEED)
    assert verdict is not None
    assert verdict.value == pytest.approx(value)
    assert verdict.is_reached is is_reached
    assert verdict.factor == pytest.approx(factor)
    others = [name for name in target.against if name != "absent"]
    best = min(others, key=lambda name: results.find(name).seconds, default="")
    assert verdict.other == best


def test_a_target_without_its_numbers_is_not_judged():
    results = Results([measurement("a")])
    for target in (
        Target("absent", ["a"], at_most=1),
        Target("a", ["absent"], at_most=1),
        Target("a", ["a"], at_most=1, quantity="peak_bytes"),
        Target("a", at_least=1, quantity="copy_share"),
    ):
        assert judge(target, results, SPEED) is None
        assert judge(target, None, SPEED) is None


@pytest.mark.parametrize(
    "bounds",
    [{}, {"at_most": 1, "times_faster": 2}, {"at_most": 0}, {"times_faster": 2}],
)
def test_a_target_has_one_bound(bounds):
    with pytest.raises(ValueError, match=r"bound|compares"):
        Target("a", **bounds)


def test_targets_name_methods_of_their_case():
    for case in CASES.values():
        if case.targets:
            names = {method.name for method in case.build(False)}
            for target in case.targets:
                assert {target.method, *target.against} <= names
                assert target.binds


def test_the_least_time_takes_the_bandwidth_of_what_is_touched():
    least = floor.least(SPEED, WORK)
    assert least == (10.0, 10.0, 4.0)
    assert least.binds == "memory"
    small = floor.least(SPEED, WORK | {"resident_bytes": 100.0})
    assert small == (4.0, 0.1, 4.0)
    assert small.binds == "arithmetic"
    assert floor.bandwidth_at(SPEED, 1e9) == 10.0
    work = Work("4*n*d", "(2 + c)*n*d", "4*d", {"n": 3, "d": 5, "c": 2})
    assert work.count(work.operations) == 60.0


@pytest.fixture
def folder(tmp_path):
    path = record.write(made_up(), tmp_path)
    assert path.name == "20261120-123045-cpu.json"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]  # nothing else
    return tmp_path


def test_a_record_comes_back_as_it_was_written(folder):
    path = record.latest("cpu", folder)
    assert record.read(path) == made_up()
    assert record.latest("gpu", folder) is None
    quick = dataclasses.replace(made_up(), is_quick=True, started="2027-01-01T00:00:00")
    record.write(quick, folder)
    assert record.latest("cpu", folder) == path  # a quick run is not shown


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"format": 1', '"format": 0'),
        lambda text: text.replace('"suite"', '"sweet"'),
        lambda text: text.replace('"cores"', '"scores"'),
        lambda text: text.replace('"copies"', '"copy"'),
        lambda text: text.replace('"repeats"', '"heats"', 1),
        lambda text: text.replace('"seconds": 1.0', '"seconds": NaN', 1),
        lambda text: text.replace('"seconds": 1.0', '"seconds": -1.0', 1),
        lambda text: text.replace('"seconds": 1.0', '"seconds": "1"', 1),
        lambda text: text.replace("2026-11-20", "yesterday"),
    ],
)
def test_a_broken_record_is_refused(folder, change):
    path = record.latest("cpu", folder)
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text))
    with pytest.raises(ValueError, match="not a record of a run"):
        record.read(path)
    with pytest.raises(ValueError, match="not a record of a run"):
        report.write_pages([path], folder / "pages")
    assert not (folder / "pages").exists()


def test_what_cannot_be_written_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(OSError, match=r"record .* could not be written to"):
        record.write(made_up(), file)

    def fail(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        record.write(made_up(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_pages_are_written_from_a_record(folder):
    path = record.latest("cpu", folder)
    files = report.write_pages([path], folder / "pages")
    assert {file.suffix for file in files} == {".md", ".png"}
    assert all(file.stat().st_size < 200_000 for file in files)
    readme, cost = files[0].read_text(), files[1].read_text()
    assert path.name in readme
    assert path.name in cost
    assert "opacus not installed" in readme
    assert "There is no recorded run of it yet" in readme
    assert "Left out: Opacus, hooks (not installed)" in readme
    assert "its time in turns is 1.25 to 1.25 times that alone" in readme
    # All times are alike, so that nothing is twice as fast, and 1.5 times is held.
    row = "| gradient-mlp | Clipping takes at most 1.5 times plain gradient | 1 | "
    assert f"{row}reached | 1.5 " in readme
    assert "| 1 | **missed** | 10 times |" in readme
    assert "where memory binds (10,000 ms of memory, 4,000 ms of arithmetic)" in readme
    assert "| s | 10.0 | 1,250 | 10,000 | memory | 0.125 |" in cost
    assert "Quick" not in readme
    for case in SUITES["cpu"]:
        assert f"## {case.title}\n" in (cost if cost_page.is_cost(case) else readme)


@pytest.mark.slow
def test_a_page_that_cannot_be_written_stays(folder, monkeypatch):
    path, pages = record.latest("cpu", folder), folder / "pages"
    files = report.write_pages([path], pages)
    before = {file: file.read_bytes() for file in files}

    def fail(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        report.write_pages([path], pages)
    found = (file for file in pages.rglob("*") if file.is_file())
    assert {file: file.read_bytes() for file in found} == before


def test_plots_keep_their_colours(folder):
    record_of_all = record.read(record.latest("cpu", folder))
    methods = [measurement(name, package=name) for name in plots.PACKAGES]
    record_of_all.cases["estimators"] = Results(methods)
    path = folder / "plot.png"
    assert plots.compare(
        path, record_of_all, [CASES["estimators"]], lambda one: one.seconds, "s"
    )
    pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3)
    pixels = set(map(tuple, np.unique(pixels, axis=0).tolist()))
    for color, _ in plots.PACKAGES.values():
        assert ImageColor.getrgb(color) in pixels
    assert not plots.compare(path, record_of_all, [], lambda one: None, "s")


def test_a_quick_page_says_so():
    quick = dataclasses.replace(made_up(), is_quick=True)
    assert "**Quick: data are smaller than headings say" in machine(quick)
    assert "Quick" not in machine(made_up())


def test_numbers_have_three_digits():
    numbers = (0.0, 1.0, 0.012345, 99.96, 999.4, 999.6, 12345.0, -2e6)
    shown = ("0", "1", "0.0123", "100", "999", "1,000", "12,300", "-2,000,000")
    assert tuple(map(number, numbers)) == shown


def test_a_case_runs_and_leaves_out_what_fails():
    x = np.ones((64, 4), np.float32)

    def broken():
        raise RuntimeError("out of memory\nand more")

    work = Work("4*n", "n", "4*n", {"n": 256})
    case = Case(
        name="small",
        title="small",
        text="",
        yardstick="ours",
        build=lambda quick: [
            Method(
                "ours",
                lambda: (jax.jit(dpjax.estimators.Truncation(1.0)), (x,)),
                work=lambda: work,
                count=64,
            ),
            Method("NumPy", lambda: (x.mean, (0,)), "numpy"),
            Method("peer", lambda: (x.mean, (0,)), "no_such_package"),
            Method("broken", broken),
        ],
    )
    results = runner.run_case(case, quick=True, effort=runner.Effort(0.1, 4, 4))
    assert results.left_out == {
        "peer": "ModuleNotFoundError: no_such_package is not installed",
        "broken": "RuntimeError: out of memory",
    }
    ours, host = results.methods
    assert (ours.name, host.name) == ("ours", "NumPy")
    for one in (ours, host):
        assert one.repeats == 4
        assert 0 < one.quartiles[0] <= one.seconds <= one.quartiles[1]
    assert results.alone_seconds > 0
    assert ours.compilations == 1
    assert ours.compile_seconds > 0
    assert ours.work["bytes"] == 1024.0
    assert (host.compile_seconds, host.temporary_bytes, host.compilations) == (
        None,
        None,
        0,
    )


def sorted_leaves(tree):
    """All numbers of a gradient in order, whatever shapes and places they have."""
    leaves = [np.asarray(leaf).ravel() for leaf in jax.tree.leaves(tree)]
    return np.sort(np.concatenate(leaves))


def result_of(made):
    function, arguments = made
    return sorted_leaves(function(*arguments))


@pytest.mark.quick(1)
@pytest.mark.parametrize("model", ["mlp", "small_convolutional"])
def test_numpy_and_torch_compute_our_gradient(model):
    setting = MODELS[model](4)
    loss_fn, params, batch = setting
    clipped = dpjax.robust_grad(loss_fn, dpjax.estimators.Clipping(1.0))
    expected = sorted_leaves(jax.jit(clipped)(params, batch))
    assert np.abs(expected).max() > 0.01
    if model == "mlp":
        plain = sorted_leaves(
            dpjax.robust_grad(loss_fn, dpjax.estimators.Mean())(params, batch)
        )
        assert result_of(peers.plain(*setting)) == pytest.approx(plain, abs=1e-5)
        truncated = dpjax.robust_grad(loss_fn, dpjax.estimators.Truncation(0.01))
        by_hand = peers.numpy_mlp(params, batch, threshold=0.01)
        expected_by_hand = sorted_leaves(truncated(params, batch))
        assert result_of(by_hand) == pytest.approx(expected_by_hand, abs=1e-5)
    if importlib.util.find_spec("opacus") is not None:
        for is_ghost in (False, True):
            made = peers.opacus(params, batch, model=model, is_ghost=is_ghost)
            assert result_of(made) == pytest.approx(expected, abs=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["jax_privacy", "optax_aggregate"])
def test_the_jax_peers_compute_our_gradient(name):
    if name == "jax_privacy":
        pytest.importorskip("jax_privacy")
    setting = MODELS["linear"](16, 5)
    loss_fn, params, batch = setting
    clipped = dpjax.robust_grad(loss_fn, dpjax.estimators.Clipping(1.0))
    expected = sorted_leaves(clipped(params, batch))
    options = {"microbatch_size": 4} if name == "jax_privacy" else {}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        result = result_of(getattr(peers, name)(*setting, **options))
    assert result == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_the_command_writes_one_record(tmp_path):
    folder = tmp_path / "results"
    arguments = ["run", "--quick", "--case", "sweep", "--output", str(folder)]
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    (path,) = folder.iterdir()
    assert path.name.endswith("-cpu-quick-part.json")
    (sweep,) = record.read(path).cases["sweep"].methods
    assert sweep.compilations == 1
    assert json.loads(path.read_text())["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--case", "none"], r"case = 'none': must be one of"),
        (
            ["run", "--output", __file__],
            "output must be a folder that can be",
        ),
        (["report", "absent.json"], "not a record of a run"),
    ],
)
def test_the_command_names_a_wrong_argument(arguments, message):
    with pytest.raises(SystemExit, match=message):
        main(arguments)


@pytest.mark.slow
def test_the_model_of_many_devices_is_what_the_compiler_says():
    job = scaling.Job(inputs=4, width=8, num_records=512)
    for num_devices in (1, 8):
        found = scaling._child(job, num_devices, repeats=1)
        model = scaling.Model(job, num_devices)
        assert found["collectives"] == {"all-reduce": model.summed}  # and no others
        key, alignment = 8, 64
        held = model.records + 4 * job.num_params + key
        assert held <= found["argument_bytes"] <= held + 8 * alignment
        assert found["seconds"] > 0


def test_the_page_of_many_devices(tmp_path, monkeypatch):
    def measured(job, num_devices, *, repeats):
        model = scaling.Model(job, num_devices)
        return {
            "num_devices": num_devices,
            "argument_bytes": 123_456_789,
            "temporary_bytes": 1,
            "collectives": {"all-reduce": model.summed},
            "seconds": 0.25 * num_devices,
        }

    monkeypatch.setattr(scaling, "_child", measured)
    page, numbers = sorted(scaling.write_page(tmp_path), key=lambda path: path.suffix)[
        ::-1
    ]
    assert {page.name, numbers.name} == {"SCALING.md", "scaling.json"}
    text = page.read_text()
    assert "| 8 | 2000 ms | 8 |" in text
    assert "| 512 | " in text
    assert "123,456,789" in text
