"""How a loss uses each of its parameters, read from the program of one example.

Before its use a parameter may pass through operations that move its entries or change
their precision, and into the program of a `jit`, a `jax.checkpoint`, a branch of a
`cond`, or a `scan`: whole, or a slice each time. It may be multiplied (`_products`);
or a few of its rows are read, a look-up; or a layer has a derivative of its own, by
`jax.custom_vjp` or `jax.custom_jvp`. The gradient of a parameter with any other use is
written out.

What a layer with its own derivative multiplies says nothing: its gradient is what its
rule says. So the rule is traced, and read from its end: where the gradient by a matrix
is a product, at last, the factors are its operands, whatever these are computed from.

Of a table that is multiplied as well, such as an embedding that is the output layer
too, the rows that are read count as products with one-hot vectors.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from dpjax._sharding import varying_axes
from dpjax._sums.tables import TableRows
from dpjax.gradients._loss import Place, as_function, evaluate, is_plain_jit
from dpjax.gradients.factored._products import (
    EACH,
    Image,
    Loop,
    Moves,
    Product,
    Site,
    WrittenOut,
    are_of_one_kind,
    convolution_at,
    joined,
    product_at,
)

# Operations that keep all entries, one for one, and give them another place.
RESHAPES = (lax.reshape_p, lax.squeeze_p, lax.broadcast_in_dim_p)
WITH_RULES = ("custom_vjp_call", "custom_jvp_call")
LARGE = 4  # a table is worth its trouble where it has so many times the rows read


@dataclass(frozen=True)
class Lookup:
    """A parameter of which a few rows are read.

    Attributes:
        sites: where.
        shape: of the parameter where it is used.
        moves: how it came there from the parameter itself.
    """

    sites: tuple[Site, ...]
    shape: tuple[int, ...]
    moves: Moves

    way = "table rows"

    @property
    def common(self) -> Hashable:
        """Identifies look-ups that can be joined."""
        return self.moves, self.shape

    @property
    def is_smaller(self) -> bool:
        """Tells whether the rows are few beside those of the table."""
        return self.shape[0] >= LARGE * self.num_read

    @property
    def num_read(self) -> int:
        """Counts the rows that are read."""
        return sum(site.sizes[1] for site in self.sites)

    @property
    def why(self) -> str:
        """Says how many rows are read, of how many."""
        return f"{self.num_read:,} of {self.shape[0]:,} rows are read"

    @property
    def num_held(self) -> int:
        """Counts the numbers stored of an example, places of rows included."""
        return self.num_read * (1 + math.prod(self.shape[1:]))

    def factors(
        self, residuals: Sequence[jax.Array], cotangents: Sequence[jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Returns places (num_read,) and cotangents of rows, (num_read, q)."""
        return joined(self.sites, residuals, cotangents, axis=0)

    def samples(self, places: jax.Array, values: jax.Array) -> TableRows:
        """Returns the gradients of n examples, from their factors."""

        def build(table):
            return self.moves.undone(table.reshape(self.shape))

        return TableRows.of(places, values, num_rows=self.shape[0], build=build)


def lookup_at(equation: Any, moves: Moves, place: Place) -> Lookup | None:
    """Returns the use of a table of which a `gather` reads rows, None for others."""
    numbers, mode = equation.params["dimension_numbers"], equation.params["mode"]
    table, result = equation.invars[0].aval, equation.outvars[0].aval
    is_clipped = mode == lax.GatherScatterMode.CLIP
    # A batch of slices has a start for every axis: clipped to whole rows they are zero.
    axes = {(0,), tuple(range(table.ndim))} if is_clipped else {(0,)}
    is_by_row = (
        set(numbers.collapsed_slice_dims) <= {0}
        and numbers.start_index_map in axes
        and not numbers.operand_batching_dims
        and equation.params["slice_sizes"] == (1, *table.shape[1:])
    )
    if not is_by_row:
        return None
    return _lookup(table, result, tuple(numbers.offset_dims), is_clipped, moves, place)


def slice_at(equation: Any, moves: Moves, place: Place) -> Lookup | None:
    """Returns a look-up of one row, by a single number; None for other slices."""
    table, result = equation.invars[0].aval, equation.outvars[0].aval
    is_by_row = equation.params["slice_sizes"] == (1, *table.shape[1:])
    if not is_by_row or table.shape[0] < LARGE:
        return None
    return _lookup(table, result, tuple(range(1, table.ndim)), True, moves, place)


def _lookup(table, result, entries, is_clipped, moves, place):
    """Returns a look-up whose result has the entries of rows along some axes."""
    rows = tuple(axis for axis in range(result.ndim) if axis not in entries)
    num_rows, num_read = table.shape[0], math.prod(result.shape[axis] for axis in rows)
    if num_read == 0:
        return None

    def places_of(inputs):
        """Returns the places of rows; those outside of the table are its length."""
        starts = inputs[1]
        places = starts[..., 0].reshape(-1) if starts.ndim else starts[None]
        nearest = jnp.clip(places, 0, num_rows - 1)
        if is_clipped:
            return nearest
        return jnp.where(places == nearest, places, num_rows)

    def factors(places, cotangents):
        return places, cotangents.transpose(*rows, *entries).reshape(num_read, -1)

    sizes = 1, num_read, num_rows, math.prod(result.shape) // num_read
    site = Site(place, result, (), sizes, "row", places_of, factors)
    return Lookup((site,), table.shape, moves)


def _one_hot(site):
    """Returns rows that are read, as products of a table with one-hot vectors."""

    def factors(residuals, cotangents):
        places, rows = site.factors(residuals, cotangents)  # zero for those outside
        return jax.nn.one_hot(places, site.sizes[2], dtype=rows.dtype)[None], rows[None]

    return site._replace(kind="one-hot", factors=factors)


Use = Product | Lookup | WrittenOut


def uses(program: core.ClosedJaxpr, num_leaves: int) -> list[Use]:
    """Returns how a loss uses the first so many of its arguments.

    Args:
        program: of a loss: of one example.
        num_leaves: how many parameters there are.
    """
    leaf_uses: list[list[Use]] = [[] for _ in range(num_leaves)]
    jaxpr = program.jaxpr
    images = {x: Image(i) for i, x in enumerate(jaxpr.invars[:num_leaves])}
    outputs = _read(jaxpr, images, (), leaf_uses)
    _end(jaxpr.outvars, outputs, "returned", leaf_uses)
    return [_only(each) for each in leaf_uses]


def _only(leaf_uses: list[Use]) -> Use:
    """Returns the use of a parameter, or that which several are together."""
    if not leaf_uses:
        return WrittenOut("not used: zero")
    use, many = leaf_uses[0], f"used {len(leaf_uses)} times"
    if len(leaf_uses) > 1:
        use = _together(leaf_uses)
    if use is None:
        return WrittenOut(many)
    # Factors pay where they are much smaller than what they multiply to, or where
    # a loop would add to the written-out gradient in every turn.
    if isinstance(use, Product) and not (use.is_smaller or use.is_in_loop):
        return WrittenOut(use.why if len(leaf_uses) == 1 else many)
    if isinstance(use, Lookup) and not use.is_smaller:
        return WrittenOut("most of its rows are read")
    return use


def _together(leaf_uses: Sequence[Use]) -> Product | Lookup | None:
    """Returns several uses of one parameter as one, if they can be added up."""
    for kind in (Product, Lookup):
        same = [use for use in leaf_uses if isinstance(use, kind)]
        if len(same) == len(leaf_uses) and len({use.common for use in same}) == 1:
            return replace(same[0], sites=tuple(x for use in same for x in use.sites))
    # A gradient is the sum over uses, so all must be of one matrix: that of a table
    # and of its transpose, as with an output layer that is the embedding.
    same = [use for use in map(_of_matrix, leaf_uses) if use is not None]
    if len(same) < len(leaf_uses) or len({use.shape for use in same}) > 1:
        return None
    both = replace(same[0], sites=tuple(x for use in same for x in use.sites))
    return both if both.is_smaller else None


def _of_matrix(use):
    """Returns a use as one of a matrix (p, q) that moved nowhere; None if it is none.

    What meets the matrix transposed has its vectors and cotangents change places.
    """
    if isinstance(use, WrittenOut) or len(use.shape) != 2:
        return None
    if any(kind != "transpose" for kind, _ in use.moves):
        return None
    is_turned = sum(how == (1, 0) for _, how in use.moves) % 2 == 1
    shape = use.shape[::-1] if is_turned else use.shape
    if isinstance(use, Lookup):
        sites = tuple(map(_one_hot, use.sites))
    elif use.num_groups == 0 and use.num_summed == 1:
        sites, is_turned = use.sites, is_turned != (use.order[0] == 1)
    else:
        return None
    sites = tuple(map(Site.turned, sites)) if is_turned else sites
    return Product(sites, (0, 1), 0, 1, shape, Moves())


def _end(variables, images, why, leaf_uses):
    """Notes that images of parameters are results."""
    for x in variables:
        if isinstance(x, core.Var) and x in images:
            leaf_uses[images[x].leaf].append(WrittenOut(why))


def _read(jaxpr, images, within, leaf_uses):
    """Finds the uses of variables that are images of parameters, one for one."""
    images = dict(images)
    for i, equation in enumerate(jaxpr.eqns):
        place = (*within, i)
        operands = {
            k: images[x]
            for k, x in enumerate(equation.invars)
            if isinstance(x, core.Var) and x in images
        }
        if not operands:
            continue
        # Uses inside a program are read there; what comes out of a jit is followed on,
        # what comes out of a loop or a branch is no image of one parameter any more.
        programs, passed = _inside(equation, operands, place)
        for inner, within_it in programs:
            entering = {inner.invars[k]: image for k, image in passed.items()}
            outputs = _read(inner, entering, within_it, leaf_uses)
            if is_plain_jit(equation):
                for x, y in zip(inner.outvars, equation.outvars, strict=True):
                    if isinstance(x, core.Var) and x in outputs:
                        images[y] = outputs[x]
            else:
                why = f"returned from {equation.primitive.name}"
                _end(inner.outvars, outputs, why, leaf_uses)
        if programs:
            first = len(equation.invars) - len(programs[0][0].invars)
            operands = {k: x for k, x in operands.items() if k - first not in passed}
        moved = None if programs else _moved(equation)
        for k, image in operands.items():
            if moved is not None:
                moves = Moves((*image.moves, *moved))
                images[equation.outvars[0]] = image._replace(moves=moves)
            else:
                is_alone = len(operands) == 1
                use = _use(jaxpr, equation, k, image, place, is_alone)
                leaf_uses[image.leaf].append(use)
    return images


def _inside(equation, operands, place):
    """Returns the programs in an equation, with their places, and images there."""
    kind, params = equation.primitive, equation.params
    if is_plain_jit(equation):
        return [(params["jaxpr"].jaxpr, place)], operands
    if kind is core.primitives.remat_p:
        return [(params["jaxpr"], place)], operands
    if kind is core.primitives.cond_p and params.get("branches_platforms") is None:
        branches = [x.jaxpr for x in params["branches"]]
        # The first operand chooses the branch.
        passed = {k - 1: image for k, image in operands.items() if k > 0}
        return [(x, (*place, b)) for b, x in enumerate(branches)], passed
    if kind is not core.primitives.scan_p or params["length"] == 0:
        return [], {}
    num_whole, length = params["num_consts"], params["length"]
    num_carried = num_whole + params["num_carry"]
    passed = {}
    for k, image in operands.items():
        moves, is_each = image.moves, k >= num_carried
        if num_whole <= k < num_carried:  # a carry changes from turn to turn
            continue
        if is_each:
            moves = Moves((*moves, EACH))
        loops = (*image.loops, Loop(length, is_each))
        passed[k] = Image(image.leaf, moves, loops)
    return [(params["jaxpr"].jaxpr, place)], passed


def _moved(equation):
    """Returns how an equation moves its operand's entries; None where it does more."""
    source, result = equation.invars[0].aval, equation.outvars[0].aval
    params, kind = equation.params, equation.primitive
    if kind is lax.convert_element_type_p:
        is_float = all(jnp.issubdtype(x.dtype, jnp.floating) for x in (source, result))
        is_same = are_of_one_kind(source, result) and params["sharding"] is None
        return () if is_float and is_same else None
    if kind is lax.copy_p:
        return ()
    if kind is lax.transpose_p:
        return (("transpose", tuple(np.argsort(params["permutation"]))),)
    is_placed = params.get("sharding") is not None
    in_order = params.get("dimensions") is None or kind is lax.squeeze_p
    if kind in RESHAPES and source.size == result.size and in_order and not is_placed:
        return (("reshape", source.shape),)
    return None


def _use(jaxpr, equation, operand, image, place, is_alone):
    kind, use = equation.primitive, None
    # Look-ups are read outside of loops alone: their places are those of one turn.
    is_first = operand == 0 and is_alone and not image.loops
    if kind.name in WITH_RULES:
        use = product_of_rule(jaxpr, equation, operand, image, place)
    elif kind is lax.dot_general_p and is_alone:
        use = product_at(equation, operand, image, place)
    elif kind is lax.conv_general_dilated_p and operand == 1 and is_alone:
        use = convolution_at(equation, image, place)
    elif kind is lax.gather_p and is_first:
        use = lookup_at(equation, image.moves, place)
    elif kind is lax.dynamic_slice_p and is_first:
        use = slice_at(equation, image.moves, place)
    if use is not None:
        return use
    if any(isinstance(x, core.Jaxpr | core.ClosedJaxpr) for x in _values(equation)):
        return WrittenOut(f"used inside {kind.name}")
    return WrittenOut(f"used by {kind.name}")


def _values(equation):
    for value in equation.params.values():
        yield from value if isinstance(value, tuple) else (value,)


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
    rule = core.ClosedJaxpr(rule.jaxpr.replace(outvars=operands), rule.consts)
    num_positions = operands[0].aval.size // shape[0]

    def factors(residuals, cotangents):
        """Returns vectors (1, T, p) and cotangents (1, T, q), as the rule has them."""
        results = _inlined(rule.jaxpr, rule.consts, [cotangents, *residuals])
        left, right = (
            x.transpose(order).reshape(1, num_positions, size)
            for x, order, size in zip(results, axes, shape, strict=True)
        )
        return left, right

    # All inputs are kept: the rule may need any.
    sizes = (1, num_positions, *shape)
    site = Site(place, result, (), sizes, "vector", tuple, factors)
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
