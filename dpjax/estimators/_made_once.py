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
    def one(x):
        return _barrier(x) if jnp.issubdtype(x.dtype, jnp.floating) else x

    with set_xla_metadata(inlineable="false"):
        return jax.tree.map(one, tree)  # not all of them need be there at once
