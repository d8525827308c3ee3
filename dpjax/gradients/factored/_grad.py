"""Gradients of single examples, as factors where the use of a parameter allows it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._sharding import num_other_devices, varying, varying_axes
from dpjax._sums.stream import FactoredSamples
from dpjax._tree import by_row
from dpjax._types import LossFn, PyTree
from dpjax.gradients._program import evaluate, traced
from dpjax.gradients.factored._reader import uses
from dpjax.gradients.factored._uses import WrittenOut


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
    factored = {
        i: use
        for i, use in enumerate(uses(program, len(leaves)))
        if not isinstance(use, WrittenOut)
        # No device should need parts of the Gram matrices of others.
        and (use.way != "matrix product" or num_other_devices(leaves[i]) == 1)
    }
    # The sites of all of them, by place.
    sites = {site.at: site for use in factored.values() for site in use.sites}

    def rule_of(shifts, kept):
        """Returns a rule that adds shifts to results, and fills in what is kept."""

        def rule(place, equation, inputs, run):
            if place in sites:
                kept[place] = sites[place].kept(inputs)
                (result,) = run()
                return [result + shifts[place]]
            inside = {at: x for at, x in shifts.items() if at[: len(place)] == place}
            if not inside:
                return run()
            through = _through_scan if "length" in equation.params else _through_remat
            results, found = through(place, equation, inputs, inside, rule_of)
            kept.update(found)
            return results

        return rule

    def loss(written_out, shifts, example):
        kept = {}
        rule = rule_of(shifts, kept)
        mine = [written_out.get(i, leaf) for i, leaf in enumerate(leaves)]
        args = [*mine, *jax.tree.leaves(example)]
        results = evaluate(program.jaxpr, program.consts, args, rule)
        results = jax.tree.unflatten(out_tree, results)
        value, aux = results if has_aux else (results, ())
        return value, (aux, kept)

    # The cotangent of a result is the derivative by a shift of it. By a shift that is
    # the same on all devices it would be a sum over them.
    axes = frozenset().union(*map(varying_axes, jax.tree.leaves((params, rows))))
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

        def one(example):
            (value, (aux, kept)), (whole, cotangents) = grad(
                written_out, no_shifts, example
            )

            def factors(use):
                places = [site.at for site in use.sites]
                each = [[x[place] for place in places] for x in (kept, cotangents)]
                return use.factors(*each)

            return value, aux, whole, {i: factors(x) for i, x in factored.items()}

        num_rows = _validate.leading_size(rows, "batch")
        value, aux, whole, factors = by_row(one, num_rows)(rows)
        made = {i: use.samples(*factors[i]) for i, use in factored.items()}
        grads = [(whole | made)[i] for i in range(len(leaves))]
        samples = FactoredSamples(jax.tree.unflatten(structure, grads), work)
        return samples, (value, aux) if has_aux else value

    return grad_fn


def _through_scan(place, equation, inputs, shifts, rule_of):
    """Returns the results of a scan, shifted in each turn, and what each turn kept."""
    params, inner = equation.params, equation.params["jaxpr"]
    num_whole, num_carried = params["num_consts"], params["num_carry"]
    whole, others = inputs[:num_whole], inputs[num_whole:]
    first, slices = others[:num_carried], others[num_carried:]

    def body(carry, turn):
        slices, shifts = turn
        kept = {}
        args, rule = [*whole, *carry, *slices], rule_of(shifts, kept)
        results = evaluate(inner.jaxpr, inner.consts, args, rule, place)
        return results[:num_carried], (results[num_carried:], kept)

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    last, (each, kept) = jax.lax.scan(body, first, (slices, shifts), **options)
    return [*last, *each], kept


def _through_remat(place, equation, inputs, shifts, rule_of):
    """Returns the results of a `jax.checkpoint`, and what it kept."""
    params = equation.params

    def inner(inputs, shifts):
        kept = {}
        rule = rule_of(shifts, kept)
        return evaluate(params["jaxpr"], (), inputs, rule, place), kept

    options = {name: params[name] for name in ("policy", "prevent_cse")}
    return jax.checkpoint(inner, **options)(inputs, shifts)
