"""Programs computed equation by equation, some of them by other means.

XLA compares an index with the length of an axis in the type of the index. In 8 or 16
bits that length may be no number, and a row may lose its gradient without a word: such
indices are given 32 bits.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

# Of an equation in a program, or in a jit in it: its places from the outside in.
Place = tuple[int, ...]
# `rule(place, equation, inputs, run)` returns the results; `run()` the ordinary ones.
Rule = Callable[
    [Place, core.JaxprEqn, list[Any], Callable[[], Sequence[Any]]], Sequence[Any]
]
# Which operands of an operation are indices; it may say more of itself after a hyphen.
INDICES = {
    "gather": slice(1, None),
    "dynamic_slice": slice(1, None),
    "dynamic_update_slice": slice(2, None),
    "scatter": slice(1, 2),
}


def evaluate(
    jaxpr: core.Jaxpr,
    consts: Sequence[Any],
    args: Sequence[Any],
    rule: Rule,
    within: Place = (),
) -> list[Any]:
    """Returns what a program computes; jits that only name a part of it are inlined."""
    values = dict(zip(jaxpr.constvars + jaxpr.invars, [*consts, *args], strict=True))

    def read(atom):
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    def run(equation, inputs):
        kind = equation.primitive
        if not kind.multiple_results:
            return [kind.bind(*inputs, **equation.params)]
        # Such an operation may hold functions, which JAX binds apart.
        used = list(
            dict.fromkeys(x for x in equation.invars if isinstance(x, core.Var))
        )
        alone = jaxpr.replace(
            constvars=[], invars=used, outvars=equation.outvars, eqns=[equation]
        )
        return core.jaxpr_as_fun(core.ClosedJaxpr(alone, []))(
            *(values[x] for x in used)
        )

    for i, equation in enumerate(jaxpr.eqns):
        place = (*within, i)
        inputs = [read(atom) for atom in equation.invars]
        kind = equation.primitive.name.partition("-")[0]
        indices = INDICES.get(kind, slice(0))
        inputs[indices] = map(_wide, inputs[indices])
        with equation.ctx.manager:  # where and how it is to be computed
            if is_plain_jit(equation):
                inner = equation.params["jaxpr"]
                results = evaluate(inner.jaxpr, inner.consts, inputs, rule, place)
            else:
                results = rule(place, equation, inputs, partial(run, equation, inputs))
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def is_plain_jit(equation: core.JaxprEqn) -> bool:
    """Whether it only names a part of the program, and places nothing."""
    if equation.primitive is not core.primitives.jit_p:
        return False
    places = equation.params["in_shardings"] + equation.params["out_shardings"]
    return not any(isinstance(x, jax.sharding.Sharding) for x in places)


def _wide(index: Any) -> Any:
    """Returns integers of 32 bits or more."""
    is_narrow = jnp.iinfo(jax.typeof(index).dtype).bits < 32
    return lax.convert_element_type(index, jnp.int32) if is_narrow else index
