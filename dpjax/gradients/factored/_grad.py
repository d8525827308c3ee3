"""Gradients of single examples, as factors where the use of a parameter allows it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._sharding import varying, varying_axes
from dpjax._sums.stream import FactoredSamples
from dpjax._tree import by_row
from dpjax._types import LossFn, PyTree
from dpjax.gradients._program import evaluate, traced
from dpjax.gradients.factored._uses import WrittenOut, uses


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
    example = jax.tree.map(lambda x: x[0], rows)
    program, shapes = jax.make_jaxpr(loss_fn, return_shape=True)(params, example)
    out_tree = jax.tree.structure(shapes)
    leaves, structure = jax.tree.flatten(params)
    found = uses(program, len(leaves))
    factored = {
        i: use for i, use in enumerate(found) if not isinstance(use, WrittenOut)
    }
    at = {use.at: i for i, use in factored.items()}

    def loss(written_out, shifts, example):
        kept = {}

        def rule(place, equation, inputs, run):
            if place not in at:
                return run()
            i = at[place]
            kept[i] = factored[i].kept(inputs)
            (result,) = run()
            return [result + shifts[i]]

        mine = [written_out.get(i, leaf) for i, leaf in enumerate(leaves)]
        args = [*mine, *jax.tree.leaves(example)]
        results = evaluate(program.jaxpr, program.consts, args, rule)
        results = jax.tree.unflatten(out_tree, results)
        value, aux = results if has_aux else (results, ())
        return value, (aux, kept)

    # The cotangent of a result is the derivative by a shift of it. By a shift that is
    # the same on all devices it would be a sum over them.
    axes = frozenset().union(*map(varying_axes, jax.tree.leaves((params, rows))))
    results = {i: _result(program.jaxpr, place) for place, i in at.items()}
    written_out = {i: x for i, x in enumerate(leaves) if i not in results}
    work = 3 * sum(x.aval.size for e in program.jaxpr.eqns for x in e.outvars)

    def shifts():
        zeros = {i: jnp.zeros(x.shape, x.dtype) for i, x in results.items()}
        return varying(zeros, axes)

    grad = traced(
        jax.value_and_grad(loss, argnums=(0, 1), has_aux=True),
        written_out,
        shifts(),
        example,
    )

    def grad_fn(rows: PyTree) -> tuple[FactoredSamples, PyTree]:
        no_shifts = shifts()

        def one(example):
            (value, (aux, kept)), (whole, cotangents) = grad(
                written_out, no_shifts, example
            )
            cotangents = {i: factored[i].cotangent(x) for i, x in cotangents.items()}
            return value, aux, kept, whole, cotangents

        num_rows = _validate.leading_size(rows, "batch")
        value, aux, kept, whole, cotangents = by_row(one, num_rows)(rows)
        factors = {
            i: use.samples(kept[i], cotangents[i]) for i, use in factored.items()
        }
        grads = [(whole | factors)[i] for i in range(len(leaves))]
        samples = FactoredSamples(jax.tree.unflatten(structure, grads), work)
        return samples, (value, aux) if has_aux else value

    return grad_fn


def _result(jaxpr, place):
    """Returns the type of an equation's first result."""
    for i in place[:-1]:
        jaxpr = jaxpr.eqns[i].params["jaxpr"].jaxpr
    return jaxpr.eqns[place[-1]].outvars[0].aval
