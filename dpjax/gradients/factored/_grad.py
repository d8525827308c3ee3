"""Gradients of single examples, as factors where the use of a parameter allows it.

The loss of one example is traced, and its equations are read for how it uses each
parameter. Before its use a parameter may pass through operations that move its entries
or change their precision, and into the program of a `jit`, a `jax.checkpoint`, a branch
of a `cond`, or a `scan`: whole, or a slice each time. The gradient of a parameter with
any other use is written out.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from dpjax import _validate
from dpjax._sharding import num_other_devices, varying, varying_over, varying_with
from dpjax._sums.samples import FactoredSamples
from dpjax._tree import by_row
from dpjax._types import LossFn, PyTree
from dpjax.gradients._loss import evaluate, is_plain_jit, traced
from dpjax.gradients.factored._convolutions import convolution_at
from dpjax.gradients.factored._lookups import Lookup, OneHot, lookup_at, slice_at
from dpjax.gradients.factored._products import (
    EACH,
    Image,
    Loop,
    Moves,
    Product,
    Turned,
    WrittenOut,
    are_of_one_kind,
    product_at,
)
from dpjax.gradients.factored._rules import NAMES, product_of_rule

# Operations that keep all entries, one for one, and give them another place.
RESHAPES = (lax.reshape_p, lax.squeeze_p, lax.broadcast_in_dim_p)
Use = Product | Lookup | WrittenOut


def factored_grad(
    loss_fn: LossFn, params: PyTree, rows: PyTree, *, has_aux: bool = False
) -> Callable[[PyTree], tuple[FactoredSamples, PyTree]]:
    """Returns a function that makes gradients of single examples in factored form.

    The loss is traced here, once, however often that function is called.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`, or `(scalar, aux)` with has_aux.
        params: pytree of arrays.
        rows: leaves of shape (n, ...), of which no values are looked at.
        has_aux: whether loss_fn returns auxiliary values too.

    Returns:
        `grad_fn(some_rows)`. It returns the gradients, and `values` or `(values, aux)`,
        with the leading axis of some_rows.
    """
    # A gradient, or a cotangent, of what is the same on all devices would be a psum.
    params = varying_with(params, rows)
    example = jax.tree.map(lambda x: x[0], rows)
    program, shapes = jax.make_jaxpr(loss_fn, return_shape=True)(params, example)
    out_tree = jax.tree.structure(shapes)
    leaves, structure = jax.tree.flatten(params)
    factored = {
        i: use
        for i, use in enumerate(uses(program, len(leaves)))
        if not isinstance(use, WrittenOut)
        # No device should need parts of the Gram matrices of others.
        and (use.way != "matrix product" or num_other_devices(leaves[i]) == 1)
    }
    # The sites of all of them, by place.
    sites = {site.at: site for use in factored.values() for site in use.sites}

    def rule_of(shifts, residuals):
        """Returns a rule that adds shifts to results, and fills in what is kept."""

        def rule(place, equation, inputs, run):
            if place in sites:
                residuals[place] = sites[place].residuals(inputs)
                (result,) = run()
                return [result + shifts[place]]
            inside = {at: x for at, x in shifts.items() if at[: len(place)] == place}
            if not inside:
                return run()
            through = THROUGH[equation.primitive]
            results, inner = through(place, equation, inputs, inside, rule_of)
            residuals.update(inner)
            return results

        return rule

    def loss(written_out, shifts, example):
        residuals = {}
        rule = rule_of(shifts, residuals)
        mine = [written_out.get(i, leaf) for i, leaf in enumerate(leaves)]
        args = [*mine, *jax.tree.leaves(example)]
        results = evaluate(program.jaxpr, program.consts, args, rule)
        results = jax.tree.unflatten(out_tree, results)
        value, aux = results if has_aux else (results, ())
        return value, (aux, residuals)

    # The cotangent of a result is the derivative by a shift of it.
    axes = varying_over((params, rows))
    written_out = {i: x for i, x in enumerate(leaves) if i not in factored}
    work = 3 * sum(x.aval.size for e in program.jaxpr.eqns for x in e.outvars)

    def shifts():
        def zeros(site):
            lengths = [loop.length for loop in site.loops]
            return jnp.zeros((*lengths, *site.result.shape), site.result.dtype)

        return varying({place: zeros(site) for place, site in sites.items()}, axes)

    grad = traced(
        jax.value_and_grad(loss, argnums=(0, 1), has_aux=True),
        written_out,
        shifts(),
        example,
    )

    def grad_fn(rows: PyTree) -> tuple[FactoredSamples, PyTree]:
        no_shifts = shifts()

        def of_example(example):
            (value, (aux, residuals)), (full, cotangents) = grad(
                written_out, no_shifts, example
            )

            def factors(use):
                places = [site.at for site in use.sites]
                each = [[x[place] for place in places] for x in (residuals, cotangents)]
                return use.factors(*each)

            return value, aux, full, {i: factors(x) for i, x in factored.items()}

        num_rows = _validate.leading_size(rows, "batch")
        value, aux, full, factors = by_row(of_example, num_rows)(rows)
        made = {i: use.samples(*factors[i]) for i, use in factored.items()}
        grads = [(full | made)[i] for i in range(len(leaves))]
        samples = FactoredSamples(jax.tree.unflatten(structure, grads), work)
        return samples, (value, aux) if has_aux else value

    return grad_fn


def _through_scan(place, equation, inputs, shifts, rule_of):
    """Returns the results of a scan, shifted in each turn, and what each turn kept."""
    params, inner = equation.params, equation.params["jaxpr"]
    num_whole, num_carried = params["num_consts"], params["num_carry"]
    consts, rest = inputs[:num_whole], inputs[num_whole:]
    first, slices = rest[:num_carried], rest[num_carried:]

    def body(carry, turn):
        slices, shifts = turn
        residuals = {}
        args, rule = [*consts, *carry, *slices], rule_of(shifts, residuals)
        results = evaluate(inner.jaxpr, inner.consts, args, rule, place)
        return results[:num_carried], (results[num_carried:], residuals)

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    last, (each, residuals) = jax.lax.scan(body, first, (slices, shifts), **options)
    return [*last, *each], residuals


def _through_remat(place, equation, inputs, shifts, rule_of):
    """Returns the results of a `jax.checkpoint`, and what it kept."""
    params = equation.params

    def inner(inputs, shifts):
        residuals = {}
        rule = rule_of(shifts, residuals)
        return evaluate(params["jaxpr"], (), inputs, rule, place), residuals

    options = {name: params[name] for name in ("policy", "prevent_cse")}
    return jax.checkpoint(inner, **options)(inputs, shifts)


def _through_cond(place, equation, inputs, shifts, rule_of):
    """Returns the results of the branch that is chosen, and what it kept.

    What another branch would have kept is zero, and so are its cotangents.
    """
    index, *inputs = inputs

    def branch(number, inner):
        def run(inputs, shifts):
            residuals = {}
            args = inner.jaxpr, inner.consts, inputs, rule_of(shifts, residuals)
            return evaluate(*args, (*place, number)), residuals

        return run

    branches = [branch(b, x) for b, x in enumerate(equation.params["branches"])]
    shapes = {}
    for run in branches:
        shapes |= jax.eval_shape(run, inputs, shifts)[1]
    axes = varying_over(shapes)

    def filled(run):
        def with_zeros(inputs, shifts):
            results, residuals = run(inputs, shifts)
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
            return results, varying(zeros | residuals, axes)

        return with_zeros

    return jax.lax.switch(index, [filled(run) for run in branches], inputs, shifts)


THROUGH = {
    core.primitives.scan_p: _through_scan,
    core.primitives.remat_p: _through_remat,
    core.primitives.cond_p: _through_cond,
}


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
        sites = tuple(map(OneHot.of, use.sites))
    elif use.num_groups == 0 and use.num_summed == 1:
        sites, is_turned = use.sites, is_turned != (use.order[0] == 1)
    else:
        return None
    sites = tuple(map(Turned.of, sites)) if is_turned else sites
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
        if num_whole <= k < num_carried:
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
    is_first = operand == 0 and is_alone and not image.loops
    if kind.name in NAMES:
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
