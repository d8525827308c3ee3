"""Layers with a derivative of their own, by `jax.custom_vjp` or `jax.custom_jvp`.

What such a layer multiplies says nothing: its gradient is what its rule says. So the
rule is traced, and read from its end: where the gradient by a matrix is a product, at
last, the factors are its operands, whatever these are computed from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from dpjax._sharding import varying_axes
from dpjax.gradients._loss import as_function, evaluate
from dpjax.gradients.factored._products import Moves, Product, Site

NAMES = ("custom_vjp_call", "custom_jvp_call")


@dataclass(frozen=True)
class Ruled(Site):
    """A layer whose derivative by a matrix is a product.

    Attributes:
        rule: program of the two operands, from the cotangent and the layer's inputs.
        axes: for either operand, the axes of positions and that of entries.
    """

    rule: core.ClosedJaxpr
    axes: tuple[tuple[int, ...], tuple[int, ...]]

    def residuals(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Returns all inputs: the rule may need any."""
        return tuple(inputs)

    def factors(
        self, residuals: tuple[Any, ...], cotangents: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns vectors (1, T, p) and cotangents (1, T, q), as the rule has them."""
        operands = _inlined(self.rule.jaxpr, self.rule.consts, [cotangents, *residuals])
        _, positions, *sizes = self.sizes
        left, right = (
            x.transpose(axes).reshape(1, positions, size)
            for x, axes, size in zip(operands, self.axes, sizes, strict=True)
        )
        return left, right


def product_of_rule(jaxpr, equation, operand, image, place) -> Product | None:
    """Returns the use of a matrix in such a layer; None where it is no product."""
    avals = [x.aval for x in (*equation.invars, *equation.outvars)]
    is_plain = not any(jnp.issubdtype(x.dtype, jax.dtypes.extended) for x in avals)
    # With symbolic zeros a rule may ask which of its inputs have derivatives.
    has_zeros = equation.params.get("symbolic_zeros", False)
    # Inside `jax.shard_map` the rule's program would have to know what varies.
    is_plain = is_plain and not any(map(varying_axes, avals))
    if len(equation.outvars) != 1 or image.loops or has_zeros or not is_plain:
        return None
    shape, result = avals[operand].shape, avals[-1]
    if len(shape) != 2 or 0 in shape:
        return None
    rule = _rule_of(jaxpr, equation, operand)
    product = None if rule is None else _product_at_the_end(rule.jaxpr)
    if rule is None or product is None:
        return None
    operands, axes = product
    kinds = {x.aval.dtype == jnp.float64 for x in operands} | {
        avals[operand].dtype == jnp.float64,
        result.dtype == jnp.float64,
    }
    if len(kinds) > 1:
        return None
    p, q = shape
    rule = core.ClosedJaxpr(rule.jaxpr.replace(outvars=operands), rule.consts)
    sizes = 1, operands[0].aval.size // p, p, q
    site = Ruled(place, result, (), sizes, rule, axes)
    return Product((site,), (0, 1), 0, 1, shape, Moves(image.moves))


def _rule_of(jaxpr, equation, operand):
    """Returns the program of the gradient by an operand, jits in it inlined."""
    names, layer = as_function(jaxpr, equation)

    def gradient(cotangent, *inputs):
        values = dict(zip(equation.invars, inputs, strict=True))

        def of_operand(x):
            mine = {**values, equation.invars[operand]: x}
            return layer(*(mine[name] for name in names))[0]

        return jax.vjp(of_operand, inputs[operand])[1](cotangent)

    if len(names) < len(equation.invars):  # a literal, or an input twice
        return None
    types = [
        jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype)
        for x in (*equation.outvars, *equation.invars)
    ]
    try:
        rule = jax.make_jaxpr(gradient)(*types)
        return jax.make_jaxpr(
            lambda *inputs: _inlined(rule.jaxpr, rule.consts, inputs)
        )(*types)
    except Exception:  # it is raised again where gradients are computed
        return None


def _inlined(jaxpr, consts, inputs):
    return evaluate(jaxpr, consts, inputs, lambda place, equation, inputs, run: run())


def _product_at_the_end(jaxpr):
    """Returns the operands of the product that a matrix is, and their axes, or None.

    The first operand's entries are the rows of the matrix.
    """
    made = {x: equation for equation in jaxpr.eqns for x in equation.outvars}

    def source(x):
        return made.get(x) if isinstance(x, core.Var) else None

    (x,), is_turned = jaxpr.outvars, False
    equation = source(x)
    while equation and equation.primitive in (
        lax.transpose_p,
        lax.convert_element_type_p,
    ):
        is_turned ^= equation.params.get("permutation") == (1, 0)
        equation = source(equation.invars[0])
    if not equation or any(not isinstance(x, core.Var) for x in equation.invars):
        return None
    operands, result = equation.invars, equation.outvars[0].aval.shape
    if equation.primitive is lax.dot_general_p:
        summed, groups = equation.params["dimension_numbers"]
        left_over = [
            [k for k in range(x.aval.ndim) if k not in over]
            for x, over in zip(operands, summed, strict=True)
        ]
        if any(groups) or [len(rest) for rest in left_over] != [1, 1]:
            return None
        axes = [(*over, *rest) for over, rest in zip(summed, left_over, strict=True)]
    elif equation.primitive is lax.mul_p:  # of a column and a row: `jnp.outer`
        column, row = (result[0], 1), (1, result[1])
        if [x.aval.shape for x in operands] == [row, column]:
            operands = operands[::-1]
        if [x.aval.shape for x in operands] != [column, row]:
            return None
        axes = [(1, 0), (0, 1)]
    else:
        return None
    if is_turned:
        operands, axes = operands[::-1], axes[::-1]
    return list(operands), (axes[0], axes[1])
