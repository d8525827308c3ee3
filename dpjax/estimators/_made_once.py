"""Numbers that a compiler must not compute twice."""

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

from dpjax._types import PyTree


def made_once(tree: PyTree) -> PyTree:
    """Returns a tree of arrays, each of which all its readers find in one place.

    A compiler may compute a number anew for each of its readers, and round it in
    another way each time: one of them may have a*b - c as one operation. Where c is
    close to a*b, what they read has nothing in common. Then the norm of a sample would
    not be that of what is summed.

    A barrier keeps it from that, but not on CPU, where barriers are gone when
    operations are fused. There it stands in a function that is not inlined. No number
    is copied. Integers are as they are: they do not round.
    """
    return jax.lax.platform_dependent(tree, cpu=_called, default=_barrier)


@jax.jit
def _barrier(tree):
    return jax.lax.optimization_barrier(tree)


def _called(tree):
    leaves, structure = jax.tree.flatten(tree)
    at = [i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.floating)]
    # Few are made apart, so that not all need be there at once; a call takes time to
    # compile.
    size = 1 if len(at) <= 64 else len(at)
    with set_xla_metadata(inlineable="false"):
        for some in (at[i : i + size] for i in range(0, len(at), size)):
            for i, x in zip(some, _barrier([leaves[i] for i in some]), strict=True):
                leaves[i] = x
    return structure.unflatten(leaves)
