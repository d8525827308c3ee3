"""Batches of a fixed size: all records, disjoint subsets, or a new draw.

The choice of the records of a batch does not depend on the data. So a run is a mixture,
over these choices, of runs with batches that are fixed by index. In each such run a
replaced record enters few steps, and the other steps do not depend on it, so the run
costs as much as these few releases. By joint convexity so does the mixture. Secrecy of
the choices lowers the cost if the choices of different records are independent
(`BallsInBins`), or each choice is independent of the past (`WithoutReplacement`).
"""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._sharding import row_axes, varying_with
from dpjax._types import Key
from dpjax.batching._batching import Batching, at_most_all, participates
from dpjax.batching._padded import coins, true_places

_SPREAD = 8  # standard deviations between the mean number of heads and either bound


@dataclasses.dataclass(frozen=True)
class Full(Batching):
    """Returns all records in every batch.

    Example:
        >>> Full().sampling(num_samples=1000, num_steps=50)
        Sampling(num_steps=50)
    """

    def _rows(self, state, key):
        return None

    def divisor(self, num_samples, num_steps):
        return num_samples

    def _sampling(self, num_samples, num_steps):
        return {"num_steps": num_steps}, participates(num_steps, num_steps)


@dataclasses.dataclass(frozen=True)
class Disjoint(Batching):
    """Takes records t·b to (t+1)·b - 1 as batch t, with b = floor(n / num_steps).

    The last n - b num_steps records are in no batch.

    Privacy: The whole run costs as much as one step (parallel composition, McSherry
    2009, Theorem 4), because a replaced record lies in one batch t, which its public
    index fixes. Before step t both runs have the same distribution, and the later steps
    use only released values. This holds for replace-one only, because adding or
    removing a record may move other records to another batch.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> state = Disjoint().init(jax.random.key(0), num_samples=7, num_steps=3)
        >>> first, _, state = Disjoint().draw(state, jnp.arange(7))
        >>> second, _, state = Disjoint().draw(state, jnp.arange(7))
        >>> print(first, second)
        [0 1] [2 3]
    """

    def _drawn(self, state, key, data, axis_name):
        """Returns the batch of the state's step, and its mask, as `Batching._drawn`."""
        # On one device take a slice, which is cheaper than rows by index.
        if row_axes(data, axis_name):
            return super()._drawn(state, key, data, axis_name)
        size = self.divisor(state.num_samples, state.num_steps)

        def part(x: jax.Array) -> jax.Array:
            x = jax.lax.dynamic_slice_in_dim(jnp.asarray(x), state.step * size, size)
            # After the last step the slice would be the last batch again.
            return jnp.where(state.step < state.num_steps, x, jnp.zeros((), x.dtype))

        return jax.tree.map(part, data), None

    def _rows(self, state, key):
        size = self.divisor(state.num_samples, state.num_steps)
        return state.step * size + jnp.arange(size)

    def divisor(self, num_samples, num_steps):
        at_most_all(num_samples, num_steps=num_steps)
        return num_samples // num_steps

    def _sampling(self, num_samples, num_steps):
        self.divisor(num_samples, num_steps)
        return {"num_steps": 1}, participates(num_steps, 1, num_steps)


@dataclasses.dataclass(frozen=True)
class WithoutReplacement(Batching):
    """Draws a uniform subset of `batch_size` records in every step.

    A draw costs n random words and a sort of little more than `batch_size` records.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> batching = WithoutReplacement(3)
        >>> state = batching.init(jax.random.key(0), num_samples=6, num_steps=1)
        >>> batch, _, state = batching.draw(state, jnp.arange(6))
        >>> print(len(set(batch.tolist())))
        3
    """

    batch_size: int
    is_sampled: ClassVar[bool] = True

    def __post_init__(self):
        _validate.count(batch_size=self.batch_size)

    def divisor(self, num_samples, num_steps):
        at_most_all(num_samples, batch_size=self.batch_size)
        return self.batch_size

    def _rows(self, state, key):
        return uniform_subset(key, state.num_samples, self.batch_size)

    def _sampling(self, num_samples, num_steps):
        sizes = {"num_samples": num_samples}
        sizes["batch_size"] = self.divisor(num_samples, num_steps)
        return {"num_steps": num_steps, **sizes}, participates(num_steps, num_steps)


def uniform_subset(key: Key, num_samples: int, size: int) -> jax.Array:
    """Returns `size` of num_samples indices, a uniform subset in random order."""
    # A coin for each index keeps a few more than `size` indices. Only these are sorted,
    # by random numbers, and the first `size` are returned. If too few or too many are
    # kept, or numbers tie, everything is drawn again, which is symmetric in the
    # records.
    spread = _SPREAD * (math.sqrt(size) + 1)
    capacity = min(math.ceil(size + 2 * spread), num_samples)
    probability = min((size + spread) / num_samples, 1.0)

    def draw(state: tuple[Key, jax.Array, jax.Array]):
        """Returns the next key, indices (size,), and whether this draw is valid."""
        next_key, coin_key, order_key = jax.random.split(state[0], 3)
        is_head = coins(coin_key, num_samples, probability)
        rows = true_places(is_head, capacity)
        high, low = jax.random.bits(order_key, (2, capacity), "uint32")
        is_none = rows == num_samples
        _, high, low, rows = jax.lax.sort((is_none, high, low, rows), num_keys=3)
        num_heads = jnp.sum(is_head)
        is_tied = jnp.any((high[1:] == high[:-1]) & (low[1:] == low[:-1]))
        is_good = (size <= num_heads) & (num_heads <= capacity) & ~is_tied
        return next_key, rows[:size], is_good

    start = varying_with((jnp.zeros(size, int), jnp.array(False)), key)
    return jax.lax.while_loop(lambda state: ~state[2], draw, (key, *start))[1]
