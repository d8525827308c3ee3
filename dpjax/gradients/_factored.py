"""Gradients of single examples, as factors where the use of a parameter allows it."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._sharding import varying, varying_axes
from dpjax._tree import by_row
from dpjax._types import LossFn, PyTree
from dpjax.estimators import FactoredSamples
from dpjax.gradients._program import evaluate
from dpjax.gradients._streamlined import traced
from dpjax.gradients._uses import Use, WrittenOut, uses


@dataclass(frozen=True)
class LeafRoute:
    """How the gradients by one parameter are held.

    Attributes:
        name: of the parameter, its path in the pytree.
        shape: of the parameter.
        way: "outer product", "table rows" or "written out".
        why: what the loss does with the parameter.
    """

    name: str
    shape: tuple[int, ...]
    way: str
    why: str


@dataclass(frozen=True)
class Explanation:
    """What `explain` returns: a row for every parameter; printed, it is a table."""

    rows: tuple[LeafRoute, ...]

    def __str__(self) -> str:
        cells = [(row.name, str(row.shape), row.way, row.why) for row in self.rows]
        table = [("parameter", "shape", "gradients", "why"), *cells]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = (
            "  ".join(
                cell.ljust(width) for cell, width in zip(row, widths, strict=True)
            )
            for row in table
        )
        return "\n".join(line.rstrip() for line in lines)


def explain(loss_fn: LossFn, params: PyTree, batch: PyTree) -> Explanation:
    """Returns how `robust_grad` holds the gradients of single examples, and why.

    An outer product is never multiplied out where the estimator clips norms, and
    multiplied out as it is added where its influence acts by coordinate. Rows of a
    table are the few that an example reads. Whatever else the loss does with a
    parameter, its gradients are written out, a few examples at a time. The mean is the
    same, to rounding; this is about speed and memory alone.

    Args:
        loss_fn: as for `robust_grad`.
        params: pytree of arrays.
        batch: pytree, leaves of shape (n, ...). No values are looked at.

    Returns:
        A row for every parameter: its name, its shape, the way and the reason.

    Raises:
        ValueError: where leaves of batch disagree on n.

    Example:
        >>> import jax.numpy as jnp
        >>> def loss_fn(params, example):
        ...     return jnp.sum(jnp.tanh(example @ params["w"] + params["b"]))
        >>> params = {"w": jnp.zeros((20, 30)), "b": jnp.zeros(30)}
        >>> print(explain(loss_fn, params, jnp.zeros((5, 20))))
        parameter  shape     gradients      why
        ['b']      (30,)     written out    used by add
        ['w']      (20, 30)  outer product  multiplied by one vector: 20 and 30 numbers
    """
    _validate.leading_size(batch, "batch")

    def rows(params, batch):
        found.extend(_traced(loss_fn, params, batch)[1])

    found: list[Use] = []
    jax.eval_shape(rows, params, batch)
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return Explanation(
        tuple(
            LeafRoute(
                jax.tree_util.keystr(path) or "params", jnp.shape(x), use.way, use.why
            )
            for (path, x), use in zip(leaves, found, strict=True)
        )
    )


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
    program, found, out_tree = _traced(loss_fn, params, rows)
    leaves, structure = jax.tree.flatten(params)
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
        jax.tree.map(lambda x: x[0], rows),
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


def _traced(loss_fn, params, rows):
    """Returns the program of one example's loss, its uses of parameters, its tree."""
    example = jax.tree.map(lambda x: x[0], rows)
    program, shapes = jax.make_jaxpr(loss_fn, return_shape=True)(params, example)
    found = uses(program, len(jax.tree.leaves(params)))
    return program, found, jax.tree.structure(shapes)
