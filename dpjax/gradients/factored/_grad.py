"""Per-example gradients, as factors if the use of a parameter allows it.

The loss of one example is traced, and its equations are read (`_uses`). Then they are
run again with a shift of zero added to the result of each site: see `_rule_of`.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.extend import core

from dpjax import _validate
from dpjax._sharding import num_other_devices, varying, varying_over, varying_with
from dpjax._sums.samples import FactoredSamples
from dpjax._tree import by_row
from dpjax._types import LossFn, PyTree
from dpjax.gradients._loss import evaluate, traced
from dpjax.gradients.factored._products import WrittenOut
from dpjax.gradients.factored._uses import uses


def factored_grad(
    loss_fn: LossFn, params: PyTree, rows: PyTree, *, has_aux: bool = False
) -> Callable[[PyTree], tuple[FactoredSamples, PyTree]]:
    """Returns a function that computes per-example gradients as factors.

    The loss is traced once, here.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`, or `(scalar, aux)` with has_aux.
        params: pytree of arrays.
        rows: leaves of shape (n, ...); only shapes are read.
        has_aux: whether loss_fn returns auxiliary values too.

    Returns:
        `grad_fn(some_rows)`, which returns the gradients, and `values` or
        `(values, aux)` with the leading axis of some_rows.
    """
    # Gradients with respect to replicated values would be summed over devices.
    params = varying_with(params, rows)
    example = jax.tree.map(lambda x: x[0], rows)
    program, shapes = jax.make_jaxpr(loss_fn, return_shape=True)(params, example)
    out_tree = jax.tree.structure(shapes)
    leaves, structure = jax.tree.flatten(params)
    factored = {
        i: use
        for i, use in enumerate(uses(program, len(leaves)))
        if not isinstance(use, WrittenOut)
        # Gram matrices of sharded parameters would need parts from other devices.
        and (use.way != "matrix product" or num_other_devices(leaves[i]) == 1)
    }
    # Equations that multiply or look up a parameter, by their place in the program.
    sites = {site.at: site for use in factored.values() for site in use.sites}
    rule_of = partial(_rule_of, sites)

    def loss(written_out, shifts, example):
        residuals = {}
        rule = rule_of(shifts, residuals)
        mine = [written_out.get(i, leaf) for i, leaf in enumerate(leaves)]
        args = [*mine, *jax.tree.leaves(example)]
        results = evaluate(program.jaxpr, program.consts, args, rule)
        results = jax.tree.unflatten(out_tree, results)
        value, aux = results if has_aux else (results, ())
        return value, (aux, residuals)

    axes = varying_over((params, rows))
    written_out = {i: x for i, x in enumerate(leaves) if i not in factored}
    # A gradient takes about the work of three forward passes.
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
        """Returns the gradients of rows, factored where possible, and the values."""
        no_shifts = shifts()

        def of_example(example):
            """Returns value, aux, written-out gradients and factors of one example."""
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


def _rule_of(sites, shifts, residuals):
    """Returns a rule that adds shifts to the results of sites, and fills residuals.

    The derivative of a loss with respect to the shift of a result is the result's
    cotangent, so one backward pass has the cotangents of all sites.
    """

    def rule(place, equation, inputs, run):
        """Returns an equation's results, with shifts at a site or at sites inside."""
        if place in sites:
            residuals[place] = sites[place].residuals(inputs)
            (result,) = run()
            return [result + shifts[place]]
        # Sites in the program of this equation: a loop, a checkpoint, or a branch.
        inside = {at: x for at, x in shifts.items() if at[: len(place)] == place}
        if not inside:
            return run()
        through, rule_of = THROUGH[equation.primitive], partial(_rule_of, sites)
        results, inner = through(place, equation, inputs, inside, rule_of)
        residuals.update(inner)
        return results

    return rule


def _through_scan(place, equation, inputs, shifts, rule_of):
    """Returns the results and residuals of a scan, with shifts in each turn."""
    params, inner = equation.params, equation.params["jaxpr"]
    num_whole, num_carried = params["num_consts"], params["num_carry"]
    consts, rest = inputs[:num_whole], inputs[num_whole:]
    first, slices = rest[:num_carried], rest[num_carried:]

    # Shifts and residuals are sliced and stacked by turn, as slices and results are.
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
    """Returns the results and residuals of a `jax.checkpoint`, with shifts."""
    params = equation.params

    def inner(inputs, shifts):
        residuals = {}
        rule = rule_of(shifts, residuals)
        return evaluate(params["jaxpr"], (), inputs, rule, place), residuals

    options = {name: params[name] for name in ("policy", "prevent_cse")}
    return jax.checkpoint(inner, **options)(inputs, shifts)


def _through_cond(place, equation, inputs, shifts, rule_of):
    """Returns the results and residuals of the branch that is chosen, with shifts.

    Residuals and cotangents of the other branches are zero.
    """
    index, *inputs = inputs

    def branch(number, inner):
        def run(inputs, shifts):
            residuals = {}
            args = inner.jaxpr, inner.consts, inputs, rule_of(shifts, residuals)
            return evaluate(*args, (*place, number)), residuals

        return run

    branches = [branch(b, x) for b, x in enumerate(equation.params["branches"])]
    # All branches must return one structure, so each returns the residuals of all.
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
