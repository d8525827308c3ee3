"""The number of rows that a device processes at once, bounded by its memory.

On a GPU or TPU a microbatch has at least one row, and at most

    rows = (M - D - 8 S) / (2 R)

where

* M is the memory that the device gives to JAX: the smallest `bytes_limit` in
  `memory_stats()` of all devices. It is 2^35 (32 GiB) if JAX reports none, as in an
  export from a machine without a GPU, and if several processes run one program, because
  digits add up only if all processes have the same blocks, and no process knows the
  memory of another;
* D is the number of bytes of the rows themselves, such as the batch;
* S is the number of bytes of one sum, which is as large as the parameters. There are
  eight arrays of this size: the parameters, the mean, the sum of a block, three digits
  (`Digits`), and the two moments of an optimizer;
* R is the peak number of bytes for one row in the program that computes a sample and
  its influence: activations kept for the backward pass, factors, gradients in full. The
  factor 2 is a margin, because the compiler may order operations in another way.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.extend import core

from dpjax._types import PyTree

DEFAULT = 2**35  # about the three quarters of a GPU of 40 GB that JAX allocates
# Operations with results that are views of their operands, and need no memory.
VIEWS = {
    *("reshape", "squeeze", "transpose", "broadcast_in_dim"),
    *("copy", "optimization_barrier"),
}


def rows_at_once(row_bytes: int, sum_bytes: int, bytes_of_rows: int) -> int:
    """Returns the formula above for R, S and D bytes."""
    devices = jax.local_devices() if jax.process_count() == 1 else []
    limits = [(x.memory_stats() or {}).get("bytes_limit") for x in devices]
    memory = min(filter(None, limits), default=DEFAULT)
    return max((memory - bytes_of_rows - 8 * sum_bytes) // (2 * max(row_bytes, 1)), 1)


def num_bytes(tree: PyTree) -> int:
    """Returns the size of all arrays of a pytree, in bytes."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def peak_bytes(jaxpr: core.Jaxpr, of_row: Sequence[core.Var]) -> int:
    """Returns the peak number of bytes of values that depend on `of_row`.

    `of_row` are the arguments that hold one row. Arguments are not counted, nor are
    values that do not depend on the row, because all rows share them. Results are held
    until the end.
    """
    # Maps a value to the variable that owns its memory; None if an argument owns it.
    place: dict[Any, core.Var | None] = dict.fromkeys(of_row)
    last: dict[core.Var | None, int] = {}
    steps = []
    for i, equation in enumerate(jaxpr.eqns):
        read = [x for x in equation.invars if _is_in(place, x)]
        if not read:
            continue
        made = equation.outvars
        if equation.primitive.name in VIEWS:
            pairs = zip(equation.invars, made, strict=False)
            place |= {y: place[x] for x, y in pairs if _is_in(place, x)}
            made = [x for x in made if x not in place]
        place |= {x: x for x in made}
        last |= {place[x]: i for x in (*read, *equation.outvars)}
        steps.append((i, equation, made))
    last |= {place[x]: len(jaxpr.eqns) for x in jaxpr.outvars if _is_in(place, x)}
    # Each value is freed after its last use; the peak is over the running total.
    freed = Counter()
    for x, i in last.items():
        freed[i] += 0 if x is None else _bytes(x)
    live = highest = 0
    for i, equation, made in steps:
        new = sum(map(_bytes, made))
        within = max((peak_bytes(*each) for each in _inner(equation, place)), default=0)
        # A loop stores its results beside the memory of its body; other programs count
        # their results themselves.
        is_loop = equation.primitive.name in ("scan", "while")
        highest = max(highest, live + (new + within if is_loop else max(new, within)))
        live += new - freed[i]
    return highest


def programs_in(equation: core.JaxprEqn) -> Iterator[core.ClosedJaxpr]:
    """Yields the programs inside an equation, such as the body of a loop."""
    for value in equation.params.values():
        for program in value if isinstance(value, tuple | list) else (value,):
            if isinstance(program, core.Jaxpr):
                yield core.ClosedJaxpr(program, [])
            elif isinstance(program, core.ClosedJaxpr):
                yield program


def _inner(equation, place):
    """Yields the programs inside an equation, and their arguments that hold a row."""
    for jaxpr in (program.jaxpr for program in programs_in(equation)):
        if equation.primitive is core.primitives.jit_p:
            pairs = zip(equation.invars, jaxpr.invars, strict=True)
            yield jaxpr, [y for x, y in pairs if _is_in(place, x)]
        else:
            yield jaxpr, jaxpr.invars


def _is_in(place, x):
    return isinstance(x, core.Var) and x in place


def _bytes(x):
    return num_bytes([x.aval]) if hasattr(x.aval, "dtype") else 0
