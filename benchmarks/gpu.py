"""Robust means and robust gradients on a GPU, beside memory speed and the peers.

    python benchmarks/gpu.py [--output results.json]

First the reduction alone: an estimator's mean of (n, d) samples that lie in memory, in
bytes read per second, as a share of what a plain copy moves. Then robust gradients of
three models, beside the plain gradient, jax_privacy at its best microbatch, and Opacus,
all in one process and taking turns.
"""

import argparse
import json
import platform
import statistics
import time
from functools import partial

import jax
import jax.numpy as jnp
from models import MODELS

import dpjax
from dpjax.estimators import (
    Clipping,
    Mean,
    Rows,
    SmoothedTruncation,
    Truncation,
    Winsorization,
)

ESTIMATORS = {
    "Mean": Mean(),
    "Truncation": Truncation(0.5),
    "Winsorization": Winsorization(0.5),
    "Clipping": Clipping(1.0),
    "SmoothedTruncation, beta 1": SmoothedTruncation(0.5),
    "SmoothedTruncation, beta 9.21": SmoothedTruncation(0.5, 9.21),
}


def milliseconds(functions, repeats=15):
    """Medians, all functions taking turns; one that fails is left out, and named."""
    times = {name: [] for name in functions}
    for name, function in list(functions.items()):
        try:
            jax.block_until_ready(function())
        except Exception as error:
            print(f"left out: {name}: {str(error)[:200]}", flush=True)
            del times[name]
    for _ in range(repeats):
        for name in times:
            start = time.perf_counter()
            jax.block_until_ready(functions[name]())
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def copy_bandwidth():
    """Bytes read and written per second by an elementwise pass over 4 GiB."""
    x = jnp.ones(2**30)
    step = jax.jit(lambda x: x + 1)
    return 8 * x.size / (milliseconds({"copy": lambda: step(x)})["copy"] / 1e3)


def reduction(num_rows, num_coordinates, microbatch_sizes):
    """Bandwidth of the mean of samples in memory, by estimator and microbatch size."""
    samples = jax.random.normal(jax.random.key(0), (num_rows, num_coordinates))
    plain = jax.jit(lambda x: x.sum(axis=0))
    functions = {"jnp.sum": lambda: plain(samples)}
    for name, estimator in ESTIMATORS.items():
        for size in microbatch_sizes:

            def mean(estimator, samples, size=size):
                def read(start, length):
                    part = jax.lax.dynamic_slice_in_dim(samples, start, length)
                    return part, ()

                return estimator.fold(
                    Rows(read, num_rows), normalize_by=num_rows, microbatch_size=size
                )[0]

            run = partial(jax.jit(mean), estimator, samples)
            functions[f"{name}, microbatch {size}"] = run
    size = samples.nbytes
    return {
        name: size / (time / 1e3) for name, time in milliseconds(functions, 7).items()
    }


def gradients(model, batch_size):
    """Times of one private gradient without its noise."""
    loss_fn, params, batch = MODELS[model](batch_size)

    def plain(params, batch):
        losses = jax.vmap(loss_fn, in_axes=(None, 0))
        return jax.grad(lambda params: losses(params, batch).mean())(params)

    methods = {"plain gradient": plain}
    for name, estimator in ESTIMATORS.items():
        methods[f"dpjax, {name}"] = dpjax.robust_grad(loss_fn, estimator)
    try:
        from jax_privacy.clipping import clipped_grad
    except ImportError as error:
        print(f"left out: jax_privacy: {error}")
    else:
        for size in (None, batch_size // 4, batch_size // 16):
            methods[f"jax_privacy, microbatch {size}"] = clipped_grad(
                loss_fn,
                l2_clip_norm=1.0,
                keep_batch_dim=False,
                normalize_by=batch_size,
                microbatch_size=size,
            )
    functions = {
        name: partial(jax.jit(method), params, batch)
        for name, method in methods.items()
    }
    times = milliseconds(functions)
    if model in ("mlp", "convolutional"):
        times |= opacus(model, batch_size)
    return times


def opacus(model, batch_size, repeats=15):
    """The clipped mean of per-sample gradients by Opacus, on the same model."""
    try:
        import torch
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer
    except ImportError as error:
        print(f"left out: Opacus: {error}")
        return {}
    nn = torch.nn
    if model == "mlp":
        net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
        features = torch.randn(batch_size, 784)
    else:
        net = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(7 * 7 * 64, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )
        features = torch.randn(batch_size, 1, 28, 28)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    features = features.to(device)
    labels = torch.randint(0, 10, (batch_size,), device=device)
    net = GradSampleModule(net.to(device))
    optimizer = DPOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.0),
        noise_multiplier=0.0,
        max_grad_norm=1.0,
        expected_batch_size=batch_size,
    )

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(features), labels).backward()
        optimizer.pre_step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(3):
        step()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    return {"Opacus": statistics.median(times)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output")
    parser.add_argument("--scale", type=float, default=1.0, help="shrinks the data")
    parser.add_argument(
        "--batches", type=int, nargs="*", default=[256, 4096], help="of the gradients"
    )
    options = parser.parse_args()
    bandwidth = copy_bandwidth() if options.scale == 1 else 1.0
    results = {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "copy_bytes_per_second": bandwidth,
        "reduction": {},
        "gradients": {},
    }
    print(f"copy {bandwidth / 1e9:.0f} GB/s", flush=True)
    for num_rows, num_coordinates in ((2**20, 1024), (2**14, 2**16), (2**24, 64)):
        num_rows = int(num_rows * options.scale)
        sizes = (None, 2**12, 2**14, 2**16, 2**18, num_rows)
        sizes = dict.fromkeys(
            size for size in sizes if size is None or size <= num_rows
        )
        table = reduction(num_rows, num_coordinates, sizes)
        results["reduction"][f"{num_rows} x {num_coordinates}"] = table
        for name, speed in table.items():
            share = speed / bandwidth
            print(
                f"{num_rows} x {num_coordinates}: {name}: {speed / 1e9:.0f} GB/s, "
                f"{share:.0%}",
                flush=True,
            )
    for model in MODELS:
        for batch_size in options.batches:
            table = gradients(model, batch_size)
            results["gradients"][f"{model}, batch {batch_size}"] = table
            for name, value in table.items():
                print(f"{model} {batch_size}: {name}: {value:.3f} ms", flush=True)
    if options.output:
        with open(options.output, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
