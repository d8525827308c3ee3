"""A gradient's program, written as XLA's CPU compiler likes it inside a loop."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from dpjax._types import PyTree


def streamlined(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Returns the same function with two of its operations spelled out.

    * The derivative of a convolution is one with its axes in another order: in the
      gradient of a kernel the channels stand in for the batch. XLA's CPU compiler
      transposes such a convolution to suit its fast kernels, but not inside a loop, and
      computes it there by plain loops, ten times slower. Here it is transposed
      beforehand; on other platforms nothing changes.
    * The gradient of a dense layer is the outer product of two vectors, and its
      transpose. Multiplied out in the final order it can be fused into whatever reads
      it; else it is stored along the wrong axis, and copied.

    The values are the same, to the rounding of a convolution. What stands inside a
    loop, a branch or a `jax.checkpoint` of the function's own stays as it is.
    """

    def rewritten(*args: PyTree) -> PyTree:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        results = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return rewritten


def _evaluate(jaxpr: core.Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list:
    """Computes a program equation by equation."""
    values = dict(zip(jaxpr.constvars + jaxpr.invars, [*consts, *args], strict=True))
    factors = {}  # of the outer products

    def read(atom):
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for equation in jaxpr.eqns:
        kind, variables = equation.primitive, equation.invars
        inputs = [read(variable) for variable in variables]
        out = equation.outvars[0] if equation.outvars else None
        if kind is lax.conv_general_dilated_p:
            results = [_convolution(*inputs, **equation.params)]
        elif kind is lax.dot_general_p and _is_outer_product(inputs, equation.params):
            dtype = equation.params["preferred_element_type"]
            dtype = jnp.result_type(*inputs) if dtype is None else dtype
            factors[out] = [jnp.asarray(x).astype(dtype) for x in inputs]
            results = [jnp.outer(*factors[out])]
        elif kind is lax.transpose_p and variables[0] in factors:
            results = [jnp.outer(*reversed(factors[variables[0]]))]
        elif kind.name == "jit":
            inner = equation.params["jaxpr"]
            results = _evaluate(inner.jaxpr, inner.consts, inputs)
        else:
            used = list(dict.fromkeys(x for x in variables if isinstance(x, core.Var)))
            alone = jaxpr.replace(
                constvars=[], invars=used, outvars=equation.outvars, eqns=[equation]
            )
            run = core.jaxpr_as_fun(core.ClosedJaxpr(alone, []))
            results = run(*(values[x] for x in used))
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _is_outer_product(inputs, params) -> bool:
    contracted, _ = params["dimension_numbers"][0]
    return len(contracted) == 0 and all(jnp.ndim(x) == 1 for x in inputs)


def _convolution(lhs, rhs, *, dimension_numbers, **params):
    """A convolution with any order of axes, on CPU as one of NHWC and HWIO."""

    def as_given(lhs, rhs):
        return lax.conv_general_dilated_p.bind(
            lhs, rhs, dimension_numbers=dimension_numbers, **params
        )

    def in_order(lhs, rhs):
        (batch, feature, *space), (out, into, *window), result = dimension_numbers
        ndim = lhs.ndim
        places = (0, ndim - 1, *range(1, ndim - 1))  # of N, C, H, W, ...
        kernel = (ndim - 1, ndim - 2, *range(ndim - 2))  # of O, I, H, W, ...
        value = lax.conv_general_dilated_p.bind(
            lhs.transpose(batch, *space, feature),
            rhs.transpose(*window, into, out),
            dimension_numbers=lax.ConvDimensionNumbers(places, kernel, places),
            **params,
        )
        place = dict(zip(result, places, strict=True))
        return value.transpose([place[axis] for axis in range(ndim)])

    return lax.platform_dependent(lhs, rhs, cpu=in_order, default=as_given)
