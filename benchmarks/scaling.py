"""Many devices: what a step costs by a model, by the compiler, and as measured.

`python -m benchmarks scaling` writes SCALING.md. The model counts the bytes that a
device holds and that it sends in a step. The compiler's own numbers stand beside it, on
1, 2, 4 and 8 host devices that were run, and on up to 512 that were compiled for only:
a program for 512 devices can be read without having them.
"""

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import record
from benchmarks.text import number, table
from dpjax._files import check_folder, write_whole

ROOT = Path(__file__).parent
RUN_ON, COMPILED_FOR = (1, 2, 4, 8), (8, 64, 512)
_GIB = 2**30
# Of a device of a large cluster, assumed: arithmetic that a training step sustains, and
# what a device sends to its neighbour in a ring.
_FLOPS, _LINK = 1e14, 5e10


class Job(NamedTuple):
    """A perceptron in -> width -> width -> 1 on records of `inputs` numbers."""

    inputs: int
    width: int
    num_records: int

    @property
    def num_params(self) -> int:
        """p, without biases."""
        return self.width * (self.inputs + self.width + 1)

    @property
    def row_size(self) -> int:
        """Numbers that are made of a record, forward and backward, about."""
        return 4 * (self.inputs + 4 * self.width)

    @property
    def record_bytes(self) -> int:
        """Bytes of a record, in float32."""
        return 4 * (self.inputs + 1)


SMALL = Job(inputs=64, width=256, num_records=4_096)
LARGE = Job(inputs=64, width=10_000, num_records=1_000_000_000)
BATCH = LARGE._replace(num_records=102_400)  # of those


class Model(NamedTuple):
    """What a device holds and sends in one step on all records of a job."""

    job: Job
    num_devices: int

    @property
    def records(self) -> float:
        """Bytes of the device's share of the records."""
        return self.job.num_records / self.num_devices * self.job.record_bytes

    @property
    def num_digits(self) -> int:
        """k: integers in float32 that stand for one sum, so that sums add exactly."""
        from dpjax._sums import digits, fold, plan

        job = self.job
        longest = fold.block_length(job.num_records)
        num_rows = job.num_records // self.num_devices
        sizes = plan.Sizes(job.row_size, job.row_size, job.num_params)
        found = plan.Plan.cached(num_rows, longest, sizes, None, is_large=False)
        num_sums = found.lanes * found.rounds * self.num_devices
        return digits.digit_layout(num_sums, nmant=23).num_digits

    @property
    def summed(self) -> int:
        """Bytes that are added over the devices: k digits for each parameter."""
        return 4 * self.num_digits * self.job.num_params

    @property
    def sending(self) -> float:
        """Seconds of a ring: a device sends 2 (D - 1) / D of the sum."""
        return 2 * (1 - 1 / self.num_devices) * self.summed / _LINK

    @property
    def arithmetic(self) -> float:
        """Seconds for 6 p operations a record."""
        job = self.job
        return 6 * job.num_params * job.num_records / self.num_devices / _FLOPS


def write_page(output: Path | None = None, *, quick: bool = False) -> list[Path]:
    """Measures, and writes SCALING.md and the numbers behind it, whole.

    Args:
        output: folder of the page; by default this one.
        quick: few repeats, and no program for 512 devices.
    """
    output = ROOT if output is None else output
    check_folder("output", output)
    compiled_for = COMPILED_FOR[:1] if quick else COMPILED_FOR
    found = {
        "machine": record.machine(),
        "versions": record.versions(),
        "run": [_child(SMALL, n, repeats=3 if quick else 15) for n in RUN_ON],
        "compiled": [_child(LARGE, n, repeats=0) for n in compiled_for],
    }
    files = {
        output / "results" / "scaling.json": json.dumps(found, indent=1),
        output / "SCALING.md": _page(found),
    }
    for path, text in files.items():
        write_whole(path, text.encode())
    return list(files)


def _child(job: Job, num_devices: int, *, repeats: int) -> dict[str, Any]:
    """Measures in a process of its own, which has so many devices."""
    flags = f"--xla_force_host_platform_device_count={num_devices}"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scaling", json.dumps([*job]), str(repeats)],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=ROOT.parent,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ValueError(f"{num_devices} devices: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(job: Job, repeats: int) -> dict[str, Any]:
    """Compiles a private step over all devices of this process, and runs it.

    Args:
        job: the model and the records.
        repeats: how often the step is run; 0 compiles it only, for arrays that need not
            fit anywhere.

    Returns:
        What the compiler says (bytes a device, collectives) and the median time.
    """
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    import dpjax
    from dpjax.estimators import Winsorization

    def loss_fn(params, example):
        x, y = example
        hidden = jax.nn.relu(x @ params["w1"])
        return (jax.nn.relu(hidden @ params["w2"]) @ params["w3"] - y) ** 2

    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("records",), axis_types=(AxisType.Auto,))
    by_record = NamedSharding(mesh, PartitionSpec("records"))
    whole = NamedSharding(mesh, PartitionSpec())
    n, width = job.num_records, job.width
    params = {"w1": (job.inputs, width), "w2": (width, width), "w3": (width,)}
    params = {
        name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=whole)
        for name, shape in params.items()
    }
    data = tuple(
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=by_record)
        for shape in ((n, job.inputs), (n,))
    )
    estimator = Winsorization(1.0)
    grad_fn = dpjax.robust_grad(loss_fn, estimator, axis_name="records")
    stddev = 3.7 * estimator.sensitivity(n, job.num_params).l2

    @jax.jit
    def step(params, data, key):
        noisy = dpjax.mechanisms.gaussian(key, grad_fn(params, data), stddev=stddev)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, noisy)

    key = jax.random.key(0)
    start = time.perf_counter()
    compiled = step.lower(params, data, key).compile()
    memory = compiled.memory_analysis()
    found = {
        "num_devices": len(devices),
        "compile_seconds": time.perf_counter() - start,
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "collectives": collectives(compiled.as_text()),
    }
    if not repeats:
        return found
    values = jax.tree.map(
        lambda x: jax.device_put(
            0.05 * jax.random.normal(key, x.shape, x.dtype), x.sharding
        ),
        (params, data),
    )
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*values, key))
        times.append(time.perf_counter() - start)
    return found | {"seconds": sorted(times[1:])[repeats // 2]}


_OPERATION = re.compile(
    r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)"
    r"(?:-start)?\("
)
_SHAPE = re.compile(r"(?:f|s|u|bf)(\d+)\[([\d,]*)\]")


def collectives(program: str) -> dict[str, int]:
    """Returns how many bytes each kind of collective of a compiled program gives.

    Example:
        >>> collectives("%x = (f32[2,3]{1,0}, f32[4]{0}) all-reduce(%a, %b), ...")
        {'all-reduce': 40}
    """
    found: dict[str, int] = {}
    for result, kind in _OPERATION.findall(program):
        sizes = (
            int(bits) // 8 * math.prod(int(x) for x in shape.split(",") if x)
            for bits, shape in _SHAPE.findall(result)
        )
        found[kind] = found.get(kind, 0) + sum(sizes)
    return found


_INTRODUCTION = """\
# Many devices: what a step costs

Written by `python -m benchmarks scaling`. A private step on all records: per-sample
gradients of a perceptron, their robust mean over a mesh of devices, noise, descent.
Records are sharded over D devices, parameters are replicated.

The model: a device holds n/D records and the parameters, and sends nothing but the sums
of its gradients. A sum is k digits for each of p parameters (integers in float32: they
add exactly, in any order), so one all-reduce of 4 k p bytes a step, 2 (D - 1) / D of
that over each link of a ring. Noise is drawn once, for the global mean, from one key;
each device computes the same numbers, so it is never sent. Nothing has n rows.
"""


def _page(found: dict[str, Any]) -> str:
    machine = found["machine"]
    parts = [_INTRODUCTION, "## Run on host devices\n"]
    parts.append(
        f"{machine['cores']} cores of {machine['processor']}, shared by all devices: "
        f"beyond D = {machine['cores']} the time can only grow, by what sharding "
        "costs. "
        f"n = {SMALL.num_records:,}, p = {SMALL.num_params:,}. jax "
        f"{found['versions']['jax']}.\n"
    )
    one = found["run"][0]
    rows = []
    for of in found["run"]:
        model = Model(SMALL, of["num_devices"])
        others = {k: v for k, v in of["collectives"].items() if k != "all-reduce"}
        rows.append(
            [
                of["num_devices"],
                f"{of['seconds'] * 1e3:.0f} ms",
                of["seconds"] / one["seconds"],
                f"{model.records + 4 * SMALL.num_params:,.0f}",
                f"{of['argument_bytes']:,}",
                f"{model.summed:,}",
                f"{of['collectives'].get('all-reduce', 0):,}",
                ", ".join(others) or "none",
            ]
        )
    parts.append(
        table(
            [
                "D",
                "step",
                "over D = 1",
                "bytes held, model",
                "compiler",
                "bytes added, model",
                "compiler",
                "other collectives",
            ],
            rows,
        )
    )
    parts.append(
        "## Compiled, not run: a billion records, a hundred million parameters\n"
    )
    parts.append(
        f"n = {LARGE.num_records:,} records of {LARGE.record_bytes} bytes, "
        f"p = {LARGE.num_params:,}. Temporaries are those of the program for CPU: "
        "accumulators, digits and noise. Times assume "
        f"{_FLOPS:.0e} operations a second that a device sustains, and links of "
        f"{_LINK:.0e} bytes a second; a batch is of {BATCH.num_records:,} records.\n"
    )
    rows = []
    for of in found["compiled"]:
        every, batch = (Model(job, of["num_devices"]) for job in (LARGE, BATCH))
        rows.append(
            [
                of["num_devices"],
                f"{(every.records + 4 * LARGE.num_params) / _GIB:.2f} GiB",
                f"{of['argument_bytes'] / _GIB:.2f} GiB",
                f"{of['temporary_bytes'] / _GIB:.1f} GiB",
                f"{every.num_digits}: {every.summed / _GIB:.2f} GiB",
                f"{of['collectives'].get('all-reduce', 0) / _GIB:.2f} GiB",
                f"{number(every.arithmetic)} s",
                f"{number(every.sending)} s",
                f"{number(batch.arithmetic)} s",
                f"{batch.num_digits}: {number(batch.sending)} s",
            ]
        )
    header = ["D", "bytes held, model", "compiler", "temporaries, compiler"]
    header += ["digits: bytes added, model", "compiler", "all records: arithmetic"]
    header += ["sending", "a batch: arithmetic", "digits: sending"]
    parts.append(table(header, rows))
    parts.append(_LIMITS)
    return "\n".join(parts)


_LIMITS = """\
## What binds

* On all records arithmetic does, and falls with D. On batches of this size the
  all-reduce does from some tens of devices on: it does not fall with D. Larger batches,
  or parameters sharded over a second mesh axis, are the way out; noise is then drawn
  shard by shard.
* Digits make the sum k times as large as a plain float32 sum, which would not have a
  provable sensitivity: a plain sum of many terms moves by more than one term. A fold
  takes at most 2^30 rows, and near that number k is large.
* In float32 the mean of a billion numbers is rounded by thirty times what one record
  moves it: `sensitivity` says so, and the noise follows. Parameters in float64 avoid
  it.
* `Poisson` and `WithoutReplacement` decide on every device which of all n records
  enter, from the same key: some 9 n bytes for coins and their order, 8 GiB for a
  billion records. Rows of a batch travel by one reduce-scatter of the batch's size.
* A step needs every device: one that is lost ends the job, and a checkpoint restarts
  it.
"""


if __name__ == "__main__":
    print(json.dumps(measure(Job(*json.loads(sys.argv[1])), int(sys.argv[2]))))
