"""The machine's bandwidth: of passes `x <- x/2 + 1` over memory, by its size.

Bytes read plus bytes written in a second, of the whole machine.
"""

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

# Bytes of memory passed over, by platform: within a core's cache, within the chip's
# caches, and beyond.
SIZES = {"cpu": (2**20, 2**24, 2**29), "gpu": (2**22, 2**26, 2**32)}
BYTES_PER_TIMING = 2**32


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


def measure(quick: bool) -> dict[str, Any]:
    """Measures the machine: the fastest of several timings at each size."""
    sizes = SIZES["cpu" if jax.default_backend() == "cpu" else "gpu"]
    sizes = sizes[:2] if quick else sizes
    moved = BYTES_PER_TIMING // (8 if quick else 1)
    return {
        "copies": [
            {"bytes": size, "bytes_per_second": _bandwidth(size, moved)}
            for size in sizes
        ]
    }
