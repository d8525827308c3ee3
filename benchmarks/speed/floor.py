"""The machine's own speed, and the least time that a piece of work takes on it.

    least time = max(bytes / bandwidth, operations / rate)

The bandwidth is that of passes `x <- x/2 + 1` over memory, bytes read plus bytes
written, at the size that the work keeps touching; the rate is that of a float32 matrix
product, a multiplication and an addition counted as two. Both are of the whole machine:
a method that runs on one core of two cannot come nearer than twice the least time.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# Bytes of memory passed over, by platform: within a core's cache, within the chip's
# caches, and beyond.
SIZES = {"cpu": (2**20, 2**24, 2**29), "gpu": (2**22, 2**26, 2**32)}
BYTES_PER_TIMING = 2**32
MATRIX = {"cpu": 2048, "gpu": 8192}


class Least(NamedTuple):
    """The least time of a piece of work, and what it is made of.

    Attributes:
        seconds: the larger one of the two below.
        memory_seconds: bytes / bandwidth.
        arithmetic_seconds: operations / rate.
    """

    seconds: float
    memory_seconds: float
    arithmetic_seconds: float

    @property
    def binds(self) -> str:
        """Which of the two it is."""
        is_memory = self.memory_seconds >= self.arithmetic_seconds
        return "memory" if is_memory else "arithmetic"


@partial(jax.jit, static_argnums=1, donate_argnums=0)
def _passes(x, count):
    return jax.lax.fori_loop(0, count, lambda _, x: x * 0.5 + 1, x)


def _bandwidth(size: int, moved: int) -> float:
    count = max(moved // (2 * size), 2)
    x = jnp.ones(size // 4)
    times = []
    for _ in range(8):
        jax.block_until_ready(x)
        start = time.perf_counter()
        x = jax.block_until_ready(_passes(x, count))
        times.append(time.perf_counter() - start)
    return 2 * size * count / min(times[1:])  # the first compiles


def _fastest(function: Callable[[], Any], repeats: int) -> float:
    jax.block_until_ready(function())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - start)
    return min(times)


def measure(quick: bool) -> dict[str, Any]:
    """Measures the machine: the fastest of several timings of each kind."""
    platform = "cpu" if jax.default_backend() == "cpu" else "gpu"
    sizes = SIZES[platform][:2] if quick else SIZES[platform]
    size = MATRIX["cpu" if quick else platform] // (2 if quick else 1)
    matrix = jnp.ones((size, size))
    product = jax.jit(partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST))
    seconds = _fastest(lambda: product(matrix, matrix), 9)
    nothing, zero = jax.jit(lambda x: x + 1), jnp.zeros(())
    calls = []
    for _ in range(200):
        start = time.perf_counter()
        nothing(zero).block_until_ready()
        calls.append(time.perf_counter() - start)
    return {
        "copies": [
            {
                "bytes": size,
                "bytes_per_second": _bandwidth(
                    size, BYTES_PER_TIMING // (8 if quick else 1)
                ),
            }
            for size in sizes
        ],
        "operations_per_second": 2 * size**3 / seconds,
        "call_seconds": statistics.median(calls[1:]),
    }


def bandwidth_at(floor: Mapping[str, Any], resident: float) -> float:
    """Returns the bandwidth measured at the least size that holds `resident` bytes."""
    for copy in floor["copies"]:
        if resident <= copy["bytes"]:
            return copy["bytes_per_second"]
    return floor["copies"][-1]["bytes_per_second"]


def least(floor: Mapping[str, Any], work: Mapping[str, Any]) -> Least:
    """Returns the least time of a measurement's work."""
    memory = work["bytes"] / bandwidth_at(floor, work["resident_bytes"])
    arithmetic = work["operations"] / floor["operations_per_second"]
    return Least(max(memory, arithmetic), memory, arithmetic)
