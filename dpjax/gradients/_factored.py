"""Per-example gradients, as factors if the use of a parameter allows it.

The loss of one example is traced, and its equations are read: `uses`. Then they are run
again with a shift of zero added to the result of each site: `factored_grad`.

Before its use a parameter may pass through operations that move its entries or change
their precision, and into the program of a `jit`, a `jax.checkpoint`, a branch of a
`cond`, or a `scan` (whole, or a slice in each iteration). Two uses allow factors: the
parameter is multiplied (`_products`), or a few of its rows are read, a look-up. The
gradient of a parameter with any other use is written out.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from dpjax import _sharding, _validate
from dpjax._sums.samples import FactoredSamples
from dpjax._sums.stream import programs_in
from dpjax._sums.tables import TableRows
from dpjax._tree import by_row
from dpjax._types import LossFn, PyTree
from dpjax.gradients._loss import Place, evaluate, is_plain_jit, traced
from dpjax.gradients._products import (
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

# Operations that only move entries, and neither drop nor repeat one.
RESHAPES = (lax.reshape_p, lax.squeeze_p, lax.broadcast_in_dim_p)
LARGE = 4  # factors pay if a table has at least this many rows for each row read


def factored_grad(
    loss_fn: LossFn, params: PyTree, rows: PyTree, *, has_aux: bool = False
) -> Callable[[PyTree], tuple[FactoredSamples, PyTree]]:
    """Returns a function that computes per-example gradients as factors.

    A factor is a vector or a few rows, much smaller than the gradient that follows from
    it. The function maps some rows of a batch to their gradients, and to their losses,
    `values`, or to `(values, aux)` with has_aux. The loss is traced once, here.
    """
    # Gradients with respect to replicated values would be summed over devices.
    params = _sharding.varying_with(params, rows)
    example = jax.tree.map(lambda x: x[0], rows)
    program, shapes = jax.make_jaxpr(loss_fn, return_shape=True)(params, example)
    out_tree = jax.tree.structure(shapes)
    leaves, structure = jax.tree.flatten(params)
    factored = {
        i: use
        for i, use in enumerate(uses(program, len(leaves)))
        if not isinstance(use, WrittenOut)
        # Gram matrices of sharded parameters would need parts from other devices.
        and (use.way != "matrix product" or _sharding.num_other_devices(leaves[i]) == 1)
    }
    # Equations that multiply or look up a parameter, by their place in the program.
    sites = {site.at: site for use in factored.values() for site in use.sites}

    def loss(written_out, shifts, example):
        mine = [written_out.get(i, leaf) for i, leaf in enumerate(leaves)]
        args = [*mine, *jax.tree.leaves(example)]
        results, residuals = _with_shifts(sites, shifts, program, args)
        results = jax.tree.unflatten(out_tree, results)
        value, aux = results if has_aux else (results, ())
        return value, (aux, residuals)

    axes = _sharding.varying_over((params, rows))
    written_out = {i: x for i, x in enumerate(leaves) if i not in factored}
    # A gradient takes about the work of three forward passes.
    work = 3 * sum(x.aval.size for e in program.jaxpr.eqns for x in e.outvars)

    def shifts():
        zeros = {}
        for place, site in sites.items():
            shape = *(loop.length for loop in site.loops), *site.result.shape
            zeros[place] = jnp.zeros(shape, site.result.dtype)
        return _sharding.varying(zeros, axes)

    grad = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    grad = traced(grad, written_out, shifts(), example)

    def grad_fn(rows: PyTree) -> tuple[FactoredSamples, PyTree]:
        """Returns gradients of rows, factored if possible, and losses, with any aux."""
        no_shifts = shifts()

        def of_example(example):
            """Returns an example's loss, aux, and gradients, in full and as factors."""
            (value, (aux, residuals)), (full, cotangents) = grad(
                written_out, no_shifts, example
            )

            def factors(use):
                each = (
                    [x[site.at] for site in use.sites] for x in (residuals, cotangents)
                )
                return use.factors(*each)

            return value, aux, full, {i: factors(x) for i, x in factored.items()}

        num_rows = _validate.leading_size(rows, "batch")
        value, aux, full, factors = by_row(of_example, num_rows)(rows)
        made = {i: use.samples(*factors[i]) for i, use in factored.items()}
        grads = [(full | made)[i] for i in range(len(leaves))]
        samples = FactoredSamples(jax.tree.unflatten(structure, grads), work)
        return samples, (value, aux) if has_aux else value

    return grad_fn


def _with_shifts(sites, shifts, program: core.ClosedJaxpr, args, within: Place = ()):
    """Returns the results of a program for inputs `args`, and residuals of its sites.

    A site is an equation that multiplies a parameter or reads its rows: `sites` maps
    its place to a `Site`. `shifts` maps its place to zeros that are added to its
    result: the derivative by them is the cotangent of the result, so one backward pass
    gives the cotangents of all sites. The second result maps its place to residuals,
    the inputs that are kept: they and the cotangent are the factors of a gradient.
    `within` is the place of this program in the traced loss.
    """
    residuals = {}

    def rule(place, equation, inputs, run):
        """Returns an equation's results, plus zeros to differentiate by at a site."""
        if place in sites:
            residuals[place] = sites[place].residuals(inputs)
            (result,) = run(equation)
            return [result + shifts[place]]
        # Sites in the program of this equation: a loop, a checkpoint, or a branch.
        inside = {at: x for at, x in shifts.items() if at[: len(place)] == place}
        if not inside:
            return run(equation)
        through = THROUGH[equation.primitive]
        evaluated = partial(_with_shifts, sites)
        results, inner = through(place, equation, inputs, inside, evaluated)
        residuals.update(inner)
        return results

    return evaluate(program, args, rule, within), residuals


def _through_scan(place: Place, equation: Any, inputs: list, shifts, run):
    """Returns the results of a `scan` at `place`, and the residuals of sites inside it.

    `inputs` are the inputs of `equation`, the scan. `shifts` and residuals are those of
    `_with_shifts`, stacked by iteration, and `run` is this function with its sites.
    """
    params, (begin, end) = equation.params, _carry_of(equation)

    # Shifts and residuals are sliced and stacked by iteration, as slices and results.
    def body(carry, sliced):
        slices, shifts = sliced
        args = [*inputs[:begin], *carry, *slices]
        results, residuals = run(shifts, params["jaxpr"], args, place)
        return results[: end - begin], (results[end - begin :], residuals)

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    sliced = inputs[end:], shifts
    last, (each, residuals) = jax.lax.scan(body, inputs[begin:end], sliced, **options)
    return [*last, *each], residuals


def _carry_of(scan: Any) -> tuple[int, int]:
    """Returns where the carry begins and ends among the inputs of a `scan`."""
    # Constants, carry and slices have no common names in all versions of JAX. Slices
    # and stacked results have one axis less inside, and the carry is what is returned.
    inner = scan.params["jaxpr"].jaxpr
    end, num_carried = (
        sum(x.aval.ndim == y.aval.ndim for x, y in zip(*pair, strict=True))
        for pair in ((scan.invars, inner.invars), (scan.outvars, inner.outvars))
    )
    return end - num_carried, end


def _through_remat(place: Place, equation: Any, inputs: list, shifts, run):
    """Returns results of a `jax.checkpoint`, and residuals, as `_through_scan` does."""
    (program,) = programs_in(equation)

    def inner(inputs, shifts):
        return run(shifts, program, inputs, place)

    options = {name: equation.params[name] for name in ("policy", "prevent_cse")}
    return jax.checkpoint(inner, **options)(inputs, shifts)


def _through_cond(place: Place, equation: Any, inputs: list, shifts, run):
    """Returns the results of a `cond`, and residuals, as `_through_scan` does."""
    # The residuals of branches that do not run are zeros.
    index, *inputs = inputs

    def branch(number, program):
        return lambda inputs, shifts: run(shifts, program, inputs, (*place, number))

    branches = [branch(b, x) for b, x in enumerate(equation.params["branches"])]
    # All branches must return one structure, so each returns the residuals of all.
    shapes = {}
    for each in branches:
        shapes |= jax.eval_shape(each, inputs, shifts)[1]
    axes = _sharding.varying_over(shapes)

    def filled(branch):
        def with_zeros(inputs, shifts):
            results, residuals = branch(inputs, shifts)
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
            return results, _sharding.varying(zeros | residuals, axes)

        return with_zeros

    return jax.lax.switch(index, [*map(filled, branches)], inputs, shifts)


THROUGH = {
    core.primitives.scan_p: _through_scan,
    core.primitives.remat_p: _through_remat,
    core.primitives.cond_p: _through_cond,
}


@dataclass(frozen=True)
class Lookup:
    """Describes a parameter of which the equations `sites` read a few rows.

    `moves`, such as a transpose, lead from it to the table, of `shape`, that they read.
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
        """Returns whether few rows of the table are read."""
        return self.shape[0] >= LARGE * self.num_read

    @property
    def num_read(self) -> int:
        """Returns the number of rows that are read."""
        return sum(site.sizes[1] for site in self.sites)

    @property
    def why(self) -> str:
        """Returns a text for `LeafCheck.why`."""
        return f"{self.num_read:,} of {self.shape[0]:,} rows are read"

    @property
    def num_held(self) -> int:
        """Returns how many numbers are stored for an example, places included."""
        return self.num_read * (1 + math.prod(self.shape[1:]))

    def factors(self, residuals, cotangents) -> tuple[jax.Array, jax.Array]:
        """Returns places (num_read,) and cotangents of rows, (num_read, q)."""
        return joined(self.sites, residuals, cotangents, axis=0)

    def samples(self, places: jax.Array, values: jax.Array) -> TableRows:
        """Returns the gradients of n examples, from their factors."""

        def build(table):
            return self.moves.undone(table.reshape(self.shape))

        return TableRows.of(places, values, num_rows=self.shape[0], build=build)


def lookup_at(equation: Any, moves: Moves, place: Place) -> Lookup | None:
    """Returns the `Lookup` by which an equation reads rows of a parameter, or None."""
    # A `gather` of rows or a `dynamic_slice` of one row is a look-up. `moves` lead from
    # the parameter to the table, and `place` finds the equation in the program. A
    # gradient is then stored as the rows that an example reads.
    table, result = equation.invars[0].aval, equation.outvars[0].aval
    is_by_row = equation.params["slice_sizes"] == (1, *table.shape[1:])
    if equation.primitive is lax.dynamic_slice_p:
        entries, is_clipped = tuple(range(1, table.ndim)), True
        is_by_row = is_by_row and table.shape[0] >= LARGE
    else:
        numbers, mode = equation.params["dimension_numbers"], equation.params["mode"]
        entries, is_clipped = numbers.offset_dims, mode == lax.GatherScatterMode.CLIP
        # A batch of `dynamic_slice` has a start index for every axis. For whole rows
        # all but the first are clipped to zero.
        axes = {(0,), tuple(range(table.ndim))} if is_clipped else {(0,)}
        is_by_row = (
            is_by_row
            and set(numbers.collapsed_slice_dims) <= {0}
            and numbers.start_index_map in axes
            and not numbers.operand_batching_dims
        )
    # The result has the entries of a row along axes `entries`.
    rows = tuple(axis for axis in range(result.ndim) if axis not in entries)
    num_rows, num_read = table.shape[0], math.prod(result.shape[axis] for axis in rows)
    if not is_by_row or num_read == 0:
        return None

    def places_of(inputs):
        """Returns the indices of the rows that are read, num_rows for any outside."""
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
    """Returns the site of a look-up as products of the table with one-hot vectors."""

    def factors(residuals, cotangents):
        places, rows = site.factors(residuals, cotangents)  # outside: all zero
        return jax.nn.one_hot(places, site.sizes[2], dtype=rows.dtype)[None], rows[None]

    return site._replace(kind="one-hot", factors=factors)


Use = Product | Lookup | WrittenOut


def uses(program: core.ClosedJaxpr, num_leaves: int) -> list[Use]:
    """Returns how the loss of one example uses its first num_leaves inputs."""
    leaf_uses: list[list[Use]] = [[] for _ in range(num_leaves)]
    jaxpr = program.jaxpr
    images = {x: Image(i) for i, x in enumerate(jaxpr.invars[:num_leaves])}
    outputs = _read(jaxpr, images, (), leaf_uses)
    _end(jaxpr.outvars, outputs, "returned", leaf_uses)
    return [_only(each) for each in leaf_uses]


def _only(leaf_uses: list[Use]) -> Use:
    """Returns the way to store a parameter's gradient, from all uses of the parameter.

    `Product` and `Lookup` store it as factors; `WrittenOut` stores all of its entries.
    """
    if not leaf_uses:
        return WrittenOut("not used: zero")
    use, many = leaf_uses[0], f"used {len(leaf_uses)} times"
    if len(leaf_uses) > 1:
        use = _together(leaf_uses)
    if use is None:
        return WrittenOut(many)
    # Factors pay if they are much smaller than their product, or if a loop would add to
    # the written-out gradient in every iteration.
    if isinstance(use, Product) and not (use.is_smaller or use.is_in_loop):
        return WrittenOut(use.why if len(leaf_uses) == 1 else many)
    if isinstance(use, Lookup) and not use.is_smaller:
        return WrittenOut("most of its rows are read")
    return use


def _together(leaf_uses: Sequence[Use]) -> Product | Lookup | None:
    """Returns one `Product` or `Lookup` in place of a parameter's uses, or None."""
    for kind in (Product, Lookup):
        same = [use for use in leaf_uses if isinstance(use, kind)]
        if len(same) == len(leaf_uses) and len({use.common for use in same}) == 1:
            return replace(same[0], sites=tuple(x for use in same for x in use.sites))
    # The gradient is the sum over uses. So rewrite all uses as products with one
    # matrix: an embedding may be read, and also be the output layer, transposed.
    same = [use for use in map(_of_matrix, leaf_uses) if use is not None]
    if len(same) < len(leaf_uses) or len({use.shape for use in same}) > 1:
        return None
    both = replace(same[0], sites=tuple(x for use in same for x in use.sites))
    return both if both.is_smaller else None


def _of_matrix(use: Use) -> Product | None:
    """Returns a use of a parameter as a product with the matrix (p, q), or None."""
    # `_together` joins such products. A look-up becomes a product with one-hot vectors;
    # for a transpose, vectors and cotangents change places.
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
    sites = tuple(map(Site.transposed, sites)) if is_turned else sites
    return Product(sites, (0, 1), 0, 1, shape, Moves())


def _end(variables, images, why, leaf_uses):
    """Adds a written-out use to each parameter whose image is a result."""
    for x in variables:
        if isinstance(x, core.Var) and x in images:
            leaf_uses[images[x].leaf].append(WrittenOut(why))


def _read(jaxpr: Any, images, within: Place, leaf_uses: list[list[Use]]):
    """Appends the uses of parameters by a jaxpr to leaf_uses, and returns its images.

    A use tells how to store the gradient; leaf_uses has a list for each parameter. An
    image is a variable with the entries of a parameter, perhaps moved: `images` maps
    inputs of the jaxpr to an `Image`, and the result maps all such variables. `within`
    is the place of this jaxpr: the indices of the equations around it.
    """
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
        # Read the uses inside the programs of this equation. The results of a jit may
        # still be images of parameters; the results of a loop or a branch are not.
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
                use = _use(equation, k, image, place, len(operands) == 1)
                leaf_uses[image.leaf].append(use)
    return images


def _inside(equation: Any, operands: dict[int, Image], place: Place):
    """Returns the programs inside an equation, [(jaxpr, place), ...], and their images.

    `_read` looks there for uses of parameters. `operands` maps numbers of the
    equation's inputs to an `Image`, if the input has the entries of a parameter. The
    second result does so for inputs of the programs.
    """
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
    passed, (begin, end) = {}, _carry_of(equation)
    for k, image in operands.items():
        if begin <= k < end:  # a carry changes
            continue
        is_each = k >= end
        moves = Moves((*image.moves, EACH)) if is_each else image.moves
        loops = (*image.loops, Loop(params["length"], is_each))
        passed[k] = Image(image.leaf, moves, loops)
    return [(params["jaxpr"].jaxpr, place)], passed


def _moved(equation: Any):
    """Returns how an equation moves the entries of its input; None if it does more."""
    # The result is a tuple of inverse moves, such as ("transpose", (1, 0)); a copy or a
    # cast of floats has none, (). `Moves.undone` applies them to the gradient with
    # respect to the moved array, which gives the gradient of the parameter.
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


def _use(equation, operand: int, image: Image, place: Place, is_alone: bool):
    """Returns how an equation uses a parameter: `Product`, `Lookup` or `WrittenOut`."""
    # Such a use tells how to store the gradient. Input number `operand` has the entries
    # of the parameter, moved as `image` describes. is_alone tells that no other input
    # has entries of a parameter.
    kind, use = equation.primitive, None
    # Only look-ups outside of loops are supported: places belong to one iteration.
    is_first = operand == 0 and is_alone and not image.loops
    if kind is lax.dot_general_p and is_alone:
        use = product_at(equation, operand, image, place)
    elif kind is lax.conv_general_dilated_p and operand == 1 and is_alone:
        use = convolution_at(equation, image, place)
    elif kind in (lax.gather_p, lax.dynamic_slice_p) and is_first:
        use = lookup_at(equation, image.moves, place)
    inside = any(True for _ in programs_in(equation))
    return use or WrittenOut(f"used {'inside' if inside else 'by'} {kind.name}")
