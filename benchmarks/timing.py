"""Times jitted functions side by side: interleaved, warmed up, median of several."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


def milliseconds(
    functions: Mapping[str, Callable[[], Any]], repeats: int = 7
) -> dict[str, float]:
    """Median wall time of each function, all of them taking turns in every round."""
    times = {name: [] for name in functions}
    for function in functions.values():
        jax.block_until_ready(function())  # compiles
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(function())
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def temporary_bytes(function: Callable[..., Any], *args: Any) -> int:
    """Scratch memory of the compiled program, as the compiler states it."""
    compiled = jax.jit(function).lower(*args).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def compile_seconds(function: Callable[..., Any], *args: Any) -> float:
    """Time to trace, lower and compile."""
    jax.clear_caches()
    start = time.perf_counter()
    jax.jit(function).lower(*args).compile()
    return time.perf_counter() - start


def print_table(header: list[str], rows: list[list[Any]]) -> None:
    """Prints a Markdown table."""
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        cells = [
            f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row
        ]
        print("| " + " | ".join(cells) + " |")
    print()
