"""Batches that the index of records fixes: all of them, or disjoint subsets."""

import dataclasses

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._sharding import row_axes
from dpjax.batching._batching import Batching, participates


@dataclasses.dataclass(frozen=True)
class Full(Batching):
    """Every batch is all records.

    Example:
        >>> Full().sampling(num_samples=1000, num_steps=50)
        Sampling(num_steps=50)
    """

    def _rows(self, state, key):
        del state, key

    def divisor(self, num_samples, num_steps):
        """See `Batching.divisor`: n."""
        del num_steps
        return num_samples

    def _sampling(self, num_samples, num_steps):
        del num_samples
        return {"num_steps": num_steps}, participates(num_steps, num_steps)


@dataclasses.dataclass(frozen=True)
class Disjoint(Batching):
    """Batch t is records t·b to (t+1)·b - 1, b = floor(n / num_steps).

    The last n - b num_steps records are in no batch.

    Privacy: the whole run costs as much as one step (parallel composition, McSherry
    2009, Theorem 4), because a replaced record lies in one batch t, which its public
    index fixes. Before step t both runs have the same distribution, and the later steps
    use only released values. Replace-one only, because to add or remove a record may
    move others to another batch.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> state = Disjoint().init(jax.random.key(0), num_samples=7, num_steps=3)
        >>> first, _, state = Disjoint().draw(state, jnp.arange(7))
        >>> second, _, state = Disjoint().draw(state, jnp.arange(7))
        >>> print(first, second)
        [0 1] [2 3]
    """

    def _drawn(self, state, key, data, axis_name):
        # On one device a slice, which is cheaper than rows by index.
        if row_axes(data, axis_name):
            return super()._drawn(state, key, data, axis_name)
        size = self.divisor(state.num_samples, state.num_steps)

        def part(x: jax.Array) -> jax.Array:
            x = jax.lax.dynamic_slice_in_dim(jnp.asarray(x), state.step * size, size)
            # After the last step the slice would be the last batch again.
            return jnp.where(state.step < state.num_steps, x, jnp.zeros((), x.dtype))

        return jax.tree.map(part, data), None

    def _rows(self, state, key):
        del key
        size = self.divisor(state.num_samples, state.num_steps)
        return state.step * size + jnp.arange(size)

    def divisor(self, num_samples, num_steps):
        """See `Batching.divisor`: the batch size floor(n / num_steps)."""
        rule = f"at most the {num_samples} records that disjoint batches share"
        _validate.require(num_steps <= num_samples, "num_steps", num_steps, rule)
        return num_samples // num_steps

    def _sampling(self, num_samples, num_steps):
        self.divisor(num_samples, num_steps)
        return {"num_steps": 1}, participates(num_steps, 1, num_steps)
