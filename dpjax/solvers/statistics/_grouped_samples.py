"""Samples of groups, and how many of each lie on one side of a bound."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Groups(NamedTuple):
    """Samples, and in which group each of them counts.

    Attributes:
        values: shape (n,), zero where a sample counts nowhere.
        indices: shape (n,), there G.
    """

    values: jax.Array
    indices: jax.Array

    def counts(self, num_groups: int, is_counted: jax.Array) -> jax.Array:
        """Returns in each group the number of samples for which that holds."""
        zeros = jnp.zeros(num_groups + 1, "int32")
        return zeros.at[self.indices].add(is_counted.astype("int32"))[:-1]


class Ordered(NamedTuple):
    """The samples of each group in their order.

    Attributes:
        values: shape (n,), those of a group after each other.
        ends: of groups, where they begin and end, shape (2, G).
    """

    values: jax.Array
    ends: jax.Array

    @classmethod
    def of(cls, num_groups: int, groups: Groups) -> "Ordered":
        """Returns the samples in order."""
        indices, values = jax.lax.sort((groups.indices, groups.values), num_keys=2)
        ends = jnp.searchsorted(indices, jnp.arange(num_groups + 1, dtype="int32"))
        return cls(values, jnp.stack([ends[:-1], ends[1:]]).astype("int32"))

    def beside(self, lows: jax.Array, highs: jax.Array) -> jax.Array:
        """Returns how many of a group are below, between and above ends (..., G).

        Returns:
            Integers, shape (..., 3, G): exact, as if each sample were compared.
        """
        start, end = (jnp.broadcast_to(x, lows.shape) for x in self.ends)

        def first(is_before: Any, bounds: jax.Array) -> jax.Array:
            def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> Any:
                low, high = ends
                middle = (low + high) // 2
                value = self.values[jnp.minimum(middle, self.values.size - 1)]
                goes_on, is_low = low < high, is_before(value, bounds)
                low = jnp.where(goes_on & is_low, middle + 1, low)
                return low, jnp.where(goes_on & ~is_low, middle, high)

            num_steps = self.values.size.bit_length()
            return jax.lax.fori_loop(0, num_steps, halve, (start, end))[0]

        low, high = first(jnp.less, lows), first(jnp.less_equal, highs)
        return jnp.stack([low - start, high - low, end - high], axis=-2)
