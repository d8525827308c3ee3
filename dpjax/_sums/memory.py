"""How many rows a device processes at once: what its memory holds.

On a GPU or TPU the memory decides how many rows a microbatch has, one at least:

    rows = (M - D - 8 S) / (2 R)

where

* M is the memory that the device lends to JAX: `bytes_limit` of `memory_stats()`, the
  smallest of all devices; 2^35 (32 GiB) where JAX reports none, as in an export from a
  machine without a GPU, and where several processes run one program: digits add up only
  if all of them have the same blocks, and one does not know the other's memory;
* D are the bytes of the rows themselves, such as of the batch;
* S are the bytes of one sum, which is as large as the parameters. The eight are these,
  the mean, the sum of a block, three digits (`Digits`), and an optimizer's two moments;
* R are the bytes of one row at their highest in the program that makes a sample, and
  what is summed of it: activations that wait for the backward pass, factors, gradients
  that are written out. The 2 stands for what the compiler orders in another way.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.extend import core

from dpjax._types import PyTree

DEFAULT = 2**35  # about what JAX gets of a GPU of 40 GB: three quarters
# Operations whose results are views of their operands, and need no memory.
VIEWS = {
    *("reshape", "squeeze", "transpose", "broadcast_in_dim"),
    *("copy", "optimization_barrier"),
}


def rows_at_once(row_bytes: int, sum_bytes: int, bytes_of_rows: int) -> int:
    """Returns how many rows are processed at once, for R, S and D bytes."""
    devices = jax.local_devices() if jax.process_count() == 1 else []
    limits = [(x.memory_stats() or {}).get("bytes_limit") for x in devices]
    memory = min(filter(None, limits), default=DEFAULT)
    return max((memory - bytes_of_rows - 8 * sum_bytes) // (2 * max(row_bytes, 1)), 1)


def num_bytes(tree: PyTree) -> int:
    """Returns the bytes of all arrays."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def peak_bytes(jaxpr: core.Jaxpr, of_row: Sequence[core.Var]) -> int:
    """Returns the bytes, at their highest, of what depends on some arguments.

    `of_row` are the arguments of one row. Results are held until the end. Arguments are
    not counted, and neither is what does not depend on these: it is there once.
    """
    # The variable in whose memory a value lies; None for that of an argument.
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
    freed = Counter()
    for x, i in last.items():
        freed[i] += 0 if x is None else _bytes(x)
    live = highest = 0
    for i, equation, made in steps:
        new = sum(map(_bytes, made))
        within = max((peak_bytes(*each) for each in _inner(equation, place)), default=0)
        # A loop's results lie beside its body; those of other programs are in them.
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
    """Returns the programs inside an equation, with their arguments of one row."""
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
