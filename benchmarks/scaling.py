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

from benchmarks import page, record
from benchmarks.page import number
from benchmarks.record import RESULTS, ROOT

PATH = RESULTS / "scaling.json"
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
    """What a device holds and sends in one step on all records of a job.

    Attributes:
        digits: k: integers in float32 that stand for one sum, so that sums add exactly.
    """

    job: Job
    num_devices: int
    digits: int

    @property
    def records(self) -> float:
        """Bytes of the device's share of the records."""
        return self.job.num_records / self.num_devices * self.job.record_bytes

    @property
    def summed(self) -> int:
        """Bytes that are added over the devices: k digits for each parameter."""
        return 4 * self.digits * self.job.num_params

    @property
    def sending(self) -> float:
        """Seconds of a ring: a device sends 2 (D - 1) / D of the sum."""
        return 2 * (1 - 1 / self.num_devices) * self.summed / _LINK

    @property
    def arithmetic(self) -> float:
        """Seconds for 6 p operations a record."""
        job = self.job
        return 6 * job.num_params * job.num_records / self.num_devices / _FLOPS


def num_digits(job: Job, num_devices: int) -> int:
    """Returns how many digits the fold takes today."""
    from dpjax._sums import fold, stream

    longest = fold.block_length(job.num_records)
    num_rows = job.num_records // num_devices
    sizes = stream.Sizes(job.row_size, job.row_size, job.num_params)
    found = stream.Layout.cached(num_rows, longest, sizes, None, is_large=False)
    num_sums = found.width * found.rounds * num_devices
    return fold.digit_layout(num_sums, nmant=23).num_digits


def run(quick: bool = False, out: Path = PATH) -> None:
    """Measures what the page shows, and merges it into the record.

    Args:
        quick: few repeats, and no program for more than 8 devices.
        out: the record.
    """

    def one(place: record.Place) -> record.Found:
        kind, num_devices = place
        job = SMALL if kind == "run" else LARGE
        repeats = 0 if kind == "compiled" else 3 if quick else 15
        row = _child(job, num_devices, repeats=repeats)
        row["digits"] = num_digits(job, num_devices)
        if kind == "compiled":
            row["batch_digits"] = num_digits(BATCH, num_devices)
        return {place: row}, {}

    compiled_for = COMPILED_FOR[:1] if quick else COMPILED_FOR
    places = [*(("run", n) for n in RUN_ON), *(("compiled", n) for n in compiled_for)]
    record.fill(out, places, one, again=True)


def write(output: Path | None = None) -> list[Path]:
    """Writes SCALING.md from the record, and returns its path."""
    return [page.write("SCALING.md", parts(record.read(PATH)), output)]


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


def parts(content: record.Record) -> dict[str, page.Part]:
    """Returns the parts of the page of a record."""
    about = content.runs[0]
    return {
        "cores": about["cores"],
        "processor": about["processor"],
        "jax": about["versions"]["jax"],
        "small_records": SMALL.num_records,
        "small_params": SMALL.num_params,
        "run": _run(content),
        "large_records": LARGE.num_records,
        "large_params": LARGE.num_params,
        "record_bytes": LARGE.record_bytes,
        "batch_records": BATCH.num_records,
        "flops": _FLOPS,
        "link": _LINK,
        "compiled": _compiled(content),
    }


def _run(content: record.Record) -> str:
    rows, one = [], content.rows["run", 1]
    for (kind, num_devices), of in content.rows.items():
        if kind == "run":
            model = Model(SMALL, num_devices, of["digits"])
            others = {k: v for k, v in of["collectives"].items() if k != "all-reduce"}
            rows.append(
                [
                    num_devices,
                    f"{of['seconds'] * 1e3:.0f} ms",
                    of["seconds"] / one["seconds"],
                    f"{model.records + 4 * SMALL.num_params:,.0f}",
                    f"{of['argument_bytes']:,}",
                    f"{model.summed:,}",
                    f"{of['collectives'].get('all-reduce', 0):,}",
                    ", ".join(others) or "none",
                ]
            )
    header = ["D", "step", "over D = 1", "bytes held, model", "compiler"]
    header += ["bytes added, model", "compiler", "other collectives"]
    return page.table(header, rows)


def _compiled(content: record.Record) -> str:
    rows = []
    for (kind, num_devices), of in content.rows.items():
        if kind == "compiled":
            every = Model(LARGE, num_devices, of["digits"])
            batch = Model(BATCH, num_devices, of["batch_digits"])
            rows.append(
                [
                    num_devices,
                    f"{(every.records + 4 * LARGE.num_params) / _GIB:.2f} GiB",
                    f"{of['argument_bytes'] / _GIB:.2f} GiB",
                    f"{of['temporary_bytes'] / _GIB:.1f} GiB",
                    f"{every.digits}: {every.summed / _GIB:.2f} GiB",
                    f"{of['collectives'].get('all-reduce', 0) / _GIB:.2f} GiB",
                    f"{number(every.arithmetic)} s",
                    f"{number(every.sending)} s",
                    f"{number(batch.arithmetic)} s",
                    f"{batch.digits}: {number(batch.sending)} s",
                ]
            )
    header = ["D", "bytes held, model", "compiler", "temporaries, compiler"]
    header += ["digits: bytes added, model", "compiler", "all records: arithmetic"]
    header += ["sending", "a batch: arithmetic", "digits: sending"]
    return page.table(header, rows)


if __name__ == "__main__":
    print(json.dumps(measure(Job(*json.loads(sys.argv[1])), int(sys.argv[2]))))
