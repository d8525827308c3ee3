"""What a user may ask: how the gradients by each parameter are held."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._types import LossFn, PyTree
from dpjax.gradients.factored._grad import traced_uses
from dpjax.gradients.factored._uses import Use


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
        found.extend(traced_uses(loss_fn, params, batch)[1])

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
