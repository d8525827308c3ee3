"""Batches of a fixed size, drawn anew in every step."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._sharding import varying, varying_axes
from dpjax._types import Key
from dpjax.batching._batching import Batching, at_most_all, participates
from dpjax.batching._coins import coins, true_places

_SPREAD = 8  # standard deviations between the mean of the number of heads and its ends


@dataclasses.dataclass(frozen=True)
class WithoutReplacement(Batching):
    """Each batch is a uniform subset of `batch_size` records, drawn anew every step.

    A draw costs n random words and a sort of little more than `batch_size` records.

    Raises:
        ValueError: If batch_size is not a positive integer.

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

    def _rows(self, state, key):
        return uniform_subset(key, state.num_samples, self.batch_size)

    def divisor(self, num_samples, num_steps):
        """See `Batching.divisor`: the batch size."""
        del num_steps
        at_most_all(num_samples, batch_size=self.batch_size)
        return self.batch_size

    def _sampling(self, num_samples, num_steps):
        sizes = {"num_samples": num_samples}
        sizes["batch_size"] = self.divisor(num_samples, num_steps)
        return {"num_steps": num_steps, **sizes}, participates(num_steps, num_steps)


def uniform_subset(key: Key, num_samples: int, size: int) -> jax.Array:
    """Returns `size` different indices in random order, all subsets equally likely.

    A coin for each index keeps a few more than `size` of them, and of these the ones
    with the smallest random numbers are chosen: only they are sorted. If too few or too
    many are kept, or numbers tie, all is drawn again, which is symmetric in the
    records. Nothing here depends on the data.
    """
    spread = _SPREAD * (math.sqrt(size) + 1)
    capacity = min(math.ceil(size + 2 * spread), num_samples)
    probability = min((size + spread) / num_samples, 1.0)

    def draw(state: tuple[Key, jax.Array, jax.Array]):
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

    start = varying((jnp.zeros(size, int), jnp.array(False)), varying_axes(key))
    return jax.lax.while_loop(lambda state: ~state[2], draw, (key, *start))[1]
