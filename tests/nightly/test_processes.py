"""Several processes train as one does; one that is killed ends the job, unreleased."""

import json
import re
import runpy
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import estimators, losses, solvers
from dpjax.batching import Poisson, WithoutReplacement
from dpjax.solvers import Checkpoint, Execution
from dpjax.tables.io._sample import Tags, order_of
from tests.parties import free_port, run_processes

WORKER = Path(__file__).parent / "processes" / "worker.py"
LAUNCH = Path(__file__).parents[2] / "benchmarks" / "launch"
# Optimized programs of one process are the comparison.
OPTIONS = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
OPTIONS |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
N = 64
RNG = np.random.default_rng(0)
FEATURES = RNG.standard_t(3, (N, 3)).astype(np.float32)
TARGETS = (FEATURES @ np.array([1.0, -1.0, 0.5])).astype(np.float32)
WORDS = np.array([3, 20261122], np.uint32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    write(folder)
    return folder


def write(folder):
    np.save(folder / "features.npy", FEATURES)
    np.save(folder / "targets.npy", TARGETS)
    np.save(folder / "odd.npy", np.arange(11.0))


def job(folder, num_processes, *tasks):
    """Runs the processes; their results, or after a kill also exit codes and errors."""
    place = f"127.0.0.1:{free_port(0)}", num_processes
    commands = [[WORKER, *place, i, folder, *tasks] for i in range(num_processes)]
    codes, lines, _, errors = run_processes(commands, [OPTIONS] * num_processes)
    results = [json.loads(line) for one in lines for line in one]
    if "kill" in tasks:
        return codes, errors, results
    assert codes == [0] * len(results) == [0] * num_processes, errors
    return results


def train(key=None, **options):
    options |= {"epsilon": 0.1, "delta": 1e-2, "learning_rate": 0.3, "num_steps": 5}
    options["key"] = jax.random.key(1) if key is None else key
    options["estimator"] = estimators.SmoothedTruncation(3.0)
    problem = losses.squared, jnp.zeros(3), (FEATURES, TARGETS)
    return solvers.dp_gradient_descent(*problem, **options)


@pytest.fixture(scope="module")
def of_two(folder):
    tasks = "undisturbed", "read_by_batch", "unshared", "saved", "sampled"
    return job(folder, 2, *tasks)


@pytest.fixture(scope="module")
def of_four(folder):
    return job(folder, 4, "undisturbed")


@pytest.fixture(params=["of_two", "of_four"])
def results(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize(
    ("name", "options"), [("full", {}), ("poisson", {"batching": Poisson(16.0)})]
)
def test_several_processes_train_as_one_does(name, options, results):
    first, solution = results[0][name], train(**options)
    assert all(result[name] == first for result in results)  # bit for bit
    np.testing.assert_allclose(first["params"], solution.params, rtol=1e-5, atol=1e-6)
    assert first["privacy"] == repr(vars(solution.privacy))
    assert first["stats"] == {k: float(x) for k, x in solution.stats.items()}


@pytest.mark.parametrize("batching", [Poisson(6.0), WithoutReplacement(7)])
def test_each_reads_its_part_of_a_batch(batching, of_two):
    state = batching.init(jax.random.key(5), len(TARGETS), 2, epsilon=1.0, delta=1e-5)
    data = jnp.asarray(FEATURES), jnp.asarray(TARGETS)
    for step in range(2):
        (features, targets), mask, state = batching.draw(state, data)
        parts = [part for r in of_two for part in r[f"batches {batching}"][step]]
        assert len(parts) == 2
        _, *columns = zip(*sorted(parts), strict=True)
        fill = [(0, len(targets) % 2)]
        expected = np.pad(features, [*fill, (0, 0)]), np.pad(targets, fill)
        expected += (np.pad(mask, fill, constant_values=True),)
        for column, x in zip(columns, expected, strict=True):
            np.testing.assert_array_equal(np.concatenate(column), x)


def test_processes_draw_one_sample_of_all_their_records(of_two):
    assert of_two[0]["sampled"] == of_two[1]["sampled"]  # bit for bit
    for size, total, drawn in of_two[0]["sampled"]:
        assert total == 70  # of 50 and 20
        keys = [jax.random.fold_in(jax.random.key(size), i) for i in range(2)]
        tags = [Tags(keys[0]).following(50), Tags(keys[1]).following(20)]
        least = order_of(np.concatenate(tags))[:size] if size < 70 else np.arange(70)
        assert drawn["number"] == least.tolist()
        np.testing.assert_array_equal(drawn["pair"], np.stack([least, -least], 1) / 2)


def test_refuses_to_sample_what_differs_between_processes(of_two):
    for result in of_two:
        refused = result["not sampled"]
        assert "arrays without Python objects" in refused.pop("objects")
        for what, error in refused.items():
            name = what if what in ("key", "size") else "chunks"
            assert f"{name} must be the same in all processes" in error, what


def test_records_that_do_not_fall_evenly_are_left_out(results):
    assert {r["odd"] for r in results} == {11 - 11 % len(results)}


def test_refuses_what_differs_between_processes(results):
    others = list(range(1, len(results)))
    shown = others if len(results) == 2 else [1, 3]
    for key, source in (result["errors"] for result in results):
        for error, name, where in ((key, "key", others), (source, "source", shown)):
            assert f"{name} must be the same in all processes" in error
            assert f"another value in processes {where}" in error


def test_refuses_a_folder_that_not_all_see(of_two):
    for result in of_two:
        assert "checkpoint must be a folder that all processes" in result["unshared"]


def test_a_killed_process_stops_the_job_and_the_job_goes_on(folder, of_two, tmp_path):
    write(tmp_path)
    codes, errors, results = job(tmp_path, 2, "saved", "kill")
    assert codes[1] == -signal.SIGKILL, errors
    assert codes[0] != 0
    assert not results  # nothing is released
    assert "heartbeat" in errors or "closed by peer" in errors, errors
    states = tmp_path / "states"
    assert [path.name for path in states.iterdir() if path.name.isdigit()] == ["2"]
    assert states.stat().st_mode & 0o777 == 0o700
    resumed = job(tmp_path, 2, "saved")
    for result, expected in zip(resumed, of_two, strict=True):
        assert result["saved"] == expected["saved"]  # bit for bit
    assert [path.name for path in states.iterdir()] == ["5"]


def test_refuses_the_state_of_another_number_of_processes(folder, of_two):
    del of_two
    with pytest.raises(ValueError, match="another number of processes or devices"):
        train(execution=Execution(checkpoint=Checkpoint(folder / "states", every=2)))


def launched(folder, program, *options):
    WORDS.tofile(folder / "key")
    # A job's number tells its processes the port of the first.
    port = free_port(*range(61440, 65536))
    slurm = {"SLURM_JOB_ID": str(port - 61440), "SLURM_STEP_NODELIST": "127.0.0.1"}
    slurm |= {"SLURM_STEP_NUM_NODES": "1", "SLURM_NTASKS": "2"}
    ranks = [{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)} for i in range(2)]
    command = [LAUNCH / program, "--folder", folder, *options]
    environments = [OPTIONS | slurm | rank for rank in ranks]
    codes, _, out, err = run_processes([command] * 2, environments)
    assert codes == [0, 0], err
    return out


def test_the_launcher_trains_under_slurm(tmp_path):
    write(tmp_path)
    files = ["--features", tmp_path / "features.npy"]
    files += ["--targets", tmp_path / "targets.npy"]
    numbers = "--epsilon 0.1 --delta 0.01 --scale 3 --learning-rate 0.3 --steps 5"
    options = *files, *numbers.split(), "--save-every", "2"
    out = launched(tmp_path, "train.py", *options)
    solution = train(key=jax.random.wrap_key_data(WORDS, impl="threefry2x32"))
    released = np.load(tmp_path / "params.npy")
    np.testing.assert_allclose(released, solution.params, rtol=1e-5, atol=1e-6)
    assert (tmp_path / "privacy.txt").read_text() == f"{solution.privacy}\n"
    assert [str(solution.privacy) in text for text in out] == [True, False]


def test_each_process_fits_its_own_files(tmp_path):
    pa, parquet = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    names = ["a", "b", "c"]
    parts = [slice(0, 30), slice(30, 49), slice(49, N)]  # of the first, the second, ...
    for i, part in enumerate(parts):
        columns = dict(zip(names, FEATURES[part].T, strict=True)) | {"y": TARGETS[part]}
        table = pa.table(columns).select(["b", "y", "a", "c"])
        parquet.write_table(table, tmp_path / f"{i}.parquet", row_group_size=8)
    numbers = "--target y --max-records 100 --epsilon 3000 --delta 0.01"
    files = tmp_path / "*.parquet"
    out = launched(tmp_path, "fit.py", "--files", files, *numbers.split())
    order, ones = np.r_[0:30, 49:N, 30:49], np.ones((N, 1), np.float32)
    data = np.c_[FEATURES[:, [1, 0, 2]], ones][order], TARGETS[order]
    _, key = jax.random.split(jax.random.wrap_key_data(WORDS, impl="threefry2x32"))
    # All records are used: sampling adds nothing.
    options = {"key": key, "epsilon": 3000.0, "delta": 0.01, "intercept": 3}
    solution = solvers.dp_linear_model("squared", data, **options)
    released = json.loads((tmp_path / "model.json").read_text())
    assert list(released["weights"]) == ["b", "a", "c", "intercept"]
    weights = [*released["weights"].values()]
    np.testing.assert_allclose(weights, solution.params, rtol=1e-3, atol=1e-4)
    assert (released["records"], released["used"]) == (N, N)
    assert [f"for {N} records" in text for text in out] == [True, False]


def test_the_launcher_refuses_text_and_a_used_key(tmp_path, monkeypatch):
    pa, parquet = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    program = runpy.run_path(LAUNCH / "fit.py")
    parquet.write_table(pa.table({"a": [1], "b": ["secret"]}), tmp_path / "t.parquet")
    with pytest.raises(SystemExit, match="b must be of numbers, is string") as refused:
        next(program["rows_of"](str(tmp_path / "t.parquet"), ["a", "b"]))
    assert "secret" not in str(refused.value)
    (tmp_path / "model.json").write_text("{}")
    options = "--files x --target y --max-records 9 --epsilon 1 --delta 0.01 --folder"
    monkeypatch.setattr("sys.argv", ["fit.py", *options.split(), str(tmp_path)])
    with pytest.raises(SystemExit, match="its key was used"):
        program["main"]()


@pytest.mark.parametrize(
    ("name", "program"),
    [
        *[(name, "train.py") for name in ("slurm.sh", "kubernetes.yaml", "README.md")],
        ("README.md", "fit.py"),
    ],
)
def test_the_launcher_knows_the_options_that_are_shown(name, program):
    shown = (LAUNCH / name).read_text().rsplit(program, 1)[1]
    shown = shown.partition("\n\n")[0]
    options = set(re.findall(r"--((?!nodes)[a-z][a-z-]+)", shown))
    known = re.findall(r'"(?:--)?([a-z-]+)"', (LAUNCH / program).read_text())
    assert {"folder", "epsilon"} <= options <= set(known)


EXCHANGE = """
import os, sys, jax
party, address = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(
    address, 3, party, initialization_timeout=30, heartbeat_timeout_seconds=5
)
from dpjax.parties import SecureSum
transport = SecureSum().transport
everything = transport.exchange(bytes([party]) * 5, 5)
gaps = transport.exchange(b"" if party == 1 else b"ab" * (1 + party), 2)
# They may also await different sizes.
own = transport.exchange(b"abc" if party == 1 else b"de", 2 + (party == 1))
if sys.argv[3] == "die" and party == 1:
    os._exit(7)
print("RESULT", everything, gaps, own, transport.exchange(b"z", 1), flush=True)
"""


def run(script, *arguments):
    address = f"127.0.0.1:{free_port(0)}"
    commands = [["-c", script, i, address, *arguments] for i in range(3)]
    return run_processes(commands, timeout=120)[:2]


def test_processes_exchange_over_jax():
    codes, results = run(EXCHANGE, "live")
    assert codes == [0, 0, 0]
    everything = [bytes([party]) * 5 for party in range(3)]
    most, second = [b"de", None, b"de"], [None, b"abc", None]
    assert results == [
        [f"{everything} {[b'ab', None, None]} {own} {[b'z'] * 3}"]
        for own in (most, second, most)
    ]


def test_a_process_that_dies_ends_the_job():
    codes, results = run(EXCHANGE, "die")
    assert codes[1] == 7
    assert 0 not in codes
    assert results == [[], [], []]
