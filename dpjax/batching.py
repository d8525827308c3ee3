"""Batches that keep their shape under jit, and what each costs in privacy.

Solvers take a batching as an argument. In your own loop:

    key, batch_key = jax.random.split(key)
    batch, is_padding_example = batching.draw(batch_key, data, step=t, num_steps=T)
    grads = grad_fn(params, batch, is_padding_example)

with `normalize_by=batching.divisor(n, T)` in `grad_fn` or `privatize`, and noise from
`accounting.noise_multiplier(epsilon, delta, **batching.accounting(n, T))`. Which
records enter a batch depends on indices and on the key alone, never on values.
"""

import abc
import dataclasses
import math
from functools import partial
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._sharding import (
    AxisName,
    by_device,
    num_shares,
    row_axes,
    varying,
    varying_axes,
)
from dpjax._types import Key, PyTree, Scalar
from dpjax.accounting import poisson_capacity

__all__ = ["Batching", "Disjoint", "Full", "Poisson", "WithoutReplacement"]

_SPREAD = 8  # standard deviations that the number of heads may be off its mean


class Batching(abc.ABC):
    """How each step chooses its records: what `batching=` of a solver takes.

    Attributes:
        is_sampled: whether batches are drawn at random.
        pads: whether rows of a batch may be padding.

    Example:
        >>> WithoutReplacement(2).divisor(num_samples=7, num_steps=3)
        2
    """

    is_sampled: ClassVar[bool] = False
    pads: ClassVar[bool] = False

    def draw(
        self,
        key: Key,
        data: PyTree,
        *,
        step: Scalar,
        num_steps: int,
        axis_name: AxisName | None = None,
    ) -> tuple[PyTree, jax.Array | None]:
        """Returns the batch of one step and its padding mask, or None without padding.

        Of sharded data the batch is sharded alike, with the same records as on one
        device: only its rows are sent. Padding fills it up to a multiple of the number
        of devices.

        Args:
            key: a typed key, used once here; replicated.
            data: pytree, leaves of shape (n, ...).
            step: 0 to num_steps - 1; may be traced.
            num_steps: how many batches are drawn in all.
            axis_name: mesh axes over which data are sharded, as in `robust_grad`.
        """
        axes = row_axes(data, axis_name)
        num_samples = _validate.leading_size(data, "data") * num_shares(axes)
        rows = self._rows(key, num_samples, step=step, num_steps=num_steps)
        if rows is None:
            return data, None
        batch, is_padding_example = _taken(data, rows, num_samples, axes)
        num_taken = is_padding_example.size * num_shares(axes)
        has_padding = self.pads or num_taken > rows.size
        return batch, is_padding_example if has_padding else None

    @abc.abstractmethod
    def _rows(
        self, key: Key, num_samples: int, *, step: Scalar, num_steps: int
    ) -> jax.Array | None:
        """Returns the batch's indices, num_samples for padding; or None for all."""

    @abc.abstractmethod
    def divisor(self, num_samples: int, num_steps: int) -> float:
        """Returns the public number to divide a batch's sum by."""

    @abc.abstractmethod
    def accounting(self, num_samples: int, num_steps: int) -> dict[str, Any]:
        """Returns the sampling arguments of `accounting.noise_multiplier`."""

    def prepared(
        self, num_samples: int, num_steps: int, *, epsilon: float, delta: float
    ) -> "Batching":
        """Returns the batching with the defaults that follow from size and budget."""
        del num_samples, num_steps, epsilon, delta
        return self


@dataclasses.dataclass(frozen=True)
class Full(Batching):
    """Every batch is all records.

    Example:
        >>> Full().accounting(num_samples=1000, num_steps=50)
        {'num_steps': 50}
    """

    def _rows(self, key, num_samples, *, step, num_steps):
        del key, num_samples, step, num_steps

    def divisor(self, num_samples, num_steps):
        """See `Batching.divisor`: n."""
        del num_steps
        return num_samples

    def accounting(self, num_samples, num_steps):
        """See `Batching.accounting`: num_steps adaptive releases."""
        del num_samples
        return {"num_steps": num_steps}


@dataclasses.dataclass(frozen=True)
class Disjoint(Batching):
    """Batch t is records t·b to (t+1)·b - 1, b = floor(n / num_steps).

    The last n - b num_steps records are in none.

    Privacy: a replaced record lies in one batch, so the whole run costs no more than
    one step (parallel composition; replace-one only, with records fixed by index).

    Example:
        >>> import jax, jax.numpy as jnp
        >>> batch, _ = Disjoint().draw(
        ...     jax.random.key(0), jnp.arange(7), step=1, num_steps=3)
        >>> print(batch)
        [2 3]
    """

    def draw(self, key, data, *, step, num_steps, axis_name=None):
        """See `Batching.draw`: the step's own range of records."""
        if row_axes(data, axis_name):
            return super().draw(
                key, data, step=step, num_steps=num_steps, axis_name=axis_name
            )
        size = self.divisor(_validate.leading_size(data, "data"), num_steps)

        def part(x: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(jnp.asarray(x), step * size, size)

        return jax.tree.map(part, data), None

    def _rows(self, key, num_samples, *, step, num_steps):
        del key
        size = self.divisor(num_samples, num_steps)
        return step * size + jnp.arange(size)

    def divisor(self, num_samples, num_steps):
        """See `Batching.divisor`: the batch size floor(n / num_steps)."""
        _validate.require(
            num_steps <= num_samples,
            "num_steps",
            num_steps,
            f"at most the {num_samples} records that disjoint batches share",
        )
        return num_samples // num_steps

    def accounting(self, num_samples, num_steps):
        """See `Batching.accounting`: one release."""
        self.divisor(num_samples, num_steps)
        return {"num_steps": 1}


@dataclasses.dataclass(frozen=True)
class Poisson(Batching):
    """Every record enters each batch independently with one probability.

    Batches are padded. Records are placed at random rows, so that one more record
    replaces a padding row and moves no other record.

    Attributes:
        expected_batch_size: n times the probability, at most n; the divisor, too.
        capacity: rows of a padded batch. Records beyond it are dropped, the last ones
            first. By default `prepared` makes it so large that dropping costs one
            thousandth of delta, which the accounting sets aside
            (`accounting.poisson_capacity`). It refuses a smaller one: in a full batch a
            record that enters drops another, and the sum moves by twice as much.

    Raises:
        ValueError: where a size is not positive.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> batching = Poisson(2.0, capacity=4)
        >>> batch, is_padding_example = batching.draw(
        ...     jax.random.key(2), jnp.arange(6), step=0, num_steps=1)
        >>> print(batch, is_padding_example)
        [2 0 0 5] [False  True  True False]
    """

    expected_batch_size: float
    capacity: int | None = None
    is_sampled: ClassVar[bool] = True
    pads: ClassVar[bool] = True

    def __post_init__(self):
        _validate.positive(expected_batch_size=self.expected_batch_size)
        if self.capacity is not None:
            _validate.count(capacity=self.capacity)

    def _rows(self, key, num_samples, *, step, num_steps):
        del step, num_steps
        _validate.require(
            self.capacity is not None,
            "capacity",
            self.capacity,
            "given, or set by prepared(num_samples, num_steps, epsilon=, delta=)",
        )
        coin_key, place_key = jax.random.split(key)
        enters = _coins(coin_key, num_samples, self._sampling_prob(num_samples))
        rows = _true_places(enters, cast(int, self.capacity))
        return jax.random.permutation(place_key, rows)

    def divisor(self, num_samples, num_steps):
        """See `Batching.divisor`: the expected batch size."""
        del num_steps
        self._sampling_prob(num_samples)
        return self.expected_batch_size

    def accounting(self, num_samples, num_steps):
        """See `Batching.accounting`: num_steps Poisson-subsampled releases."""
        return {
            "num_steps": num_steps,
            "sampling_prob": self._sampling_prob(num_samples),
        }

    def prepared(self, num_samples, num_steps, *, epsilon, delta):
        """See `Batching.prepared`: sets the capacity, or refuses one too small."""
        smallest = poisson_capacity(
            num_samples,
            self._sampling_prob(num_samples),
            num_steps=num_steps,
            epsilon=epsilon,
            delta=delta,
        )
        capacity = smallest if self.capacity is None else self.capacity
        _validate.require(
            capacity >= smallest,
            "capacity",
            capacity,
            f"at least {smallest}, or more records are dropped than the accounting "
            "sets aside",
        )
        return dataclasses.replace(self, capacity=capacity)

    def _sampling_prob(self, num_samples: int) -> float:
        _validate.require(
            self.expected_batch_size <= num_samples,
            "expected_batch_size",
            self.expected_batch_size,
            f"at most the number of records, {num_samples}",
        )
        return self.expected_batch_size / num_samples


@dataclasses.dataclass(frozen=True)
class WithoutReplacement(Batching):
    """Each batch is a uniform subset of `batch_size` records, drawn anew every step.

    A draw costs n random words and a sort of little more than `batch_size` records.

    Raises:
        ValueError: where batch_size is not a positive count.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> batch, _ = WithoutReplacement(3).draw(
        ...     jax.random.key(0), jnp.arange(6), step=0, num_steps=1)
        >>> print(len(set(batch.tolist())))
        3
    """

    batch_size: int
    is_sampled: ClassVar[bool] = True

    def __post_init__(self):
        _validate.count(batch_size=self.batch_size)

    def _rows(self, key, num_samples, *, step, num_steps):
        del step, num_steps
        self.divisor(num_samples, 1)
        return _uniform_subset(key, num_samples, self.batch_size)

    def divisor(self, num_samples, num_steps):
        """See `Batching.divisor`: the batch size."""
        del num_steps
        _validate.require(
            self.batch_size <= num_samples,
            "batch_size",
            self.batch_size,
            f"at most the number of records, {num_samples}",
        )
        return self.batch_size

    def accounting(self, num_samples, num_steps):
        """See `Batching.accounting`: num_steps releases, sampled by fixed size."""
        return {
            "num_steps": num_steps,
            "num_samples": num_samples,
            "batch_size": self.divisor(num_samples, num_steps),
        }


def _coins(key: Key, num_samples: int, probability: float) -> jax.Array:
    """Draws for each record true with the probability, rounded down to 32 bits."""
    threshold = int(probability * 2**32)  # of 32 random bits
    if threshold == 2**32:
        return jnp.ones(num_samples, bool)
    return jax.random.bits(key, (num_samples,), "uint32") < jnp.uint32(threshold)


def _true_places(mask: jax.Array, size: int) -> jax.Array:
    """Returns the indices of the first true entries; beyond the last, the length."""
    return jnp.searchsorted(jnp.cumsum(mask), jnp.arange(1, size + 1)).astype(int)


def _uniform_subset(key: Key, num_samples: int, size: int) -> jax.Array:
    """Returns `size` different indices in random order, all subsets equally likely.

    Every index is kept with a probability that keeps a few more than `size`, and of
    those the ones with the smallest random numbers are taken: only they are sorted.
    Where too few or too many are kept, or numbers tie, all is drawn again, which
    favours no record. Nothing here looks at the data.
    """
    spread = _SPREAD * (math.sqrt(size) + 1)
    capacity = min(math.ceil(size + 2 * spread), num_samples)
    probability = min((size + spread) / num_samples, 1.0)

    def draw(state: tuple[Key, jax.Array, jax.Array]):
        next_key, coin_key, order_key = jax.random.split(state[0], 3)
        is_head = _coins(coin_key, num_samples, probability)
        rows = _true_places(is_head, capacity)
        high, low = jax.random.bits(order_key, (2, capacity), "uint32")
        is_none = rows == num_samples
        _, high, low, rows = jax.lax.sort((is_none, high, low, rows), num_keys=3)
        num_heads = jnp.sum(is_head)
        is_tied = jnp.any((high[1:] == high[:-1]) & (low[1:] == low[:-1]))
        is_good = (size <= num_heads) & (num_heads <= capacity) & ~is_tied
        return next_key, rows[:size], is_good

    start = varying((jnp.zeros(size, int), jnp.array(False)), varying_axes(key))
    return jax.lax.while_loop(lambda state: ~state[2], draw, (key, *start))[1]


def _taken(
    data: PyTree, rows: jax.Array, num_samples: int, axes: tuple[str, ...]
) -> tuple[PyTree, jax.Array]:
    """Returns rows of data by index, sharded like data, and which are padding.

    Padding is zeros: where a mask is forgotten no record counts twice.
    """

    def on_device(rows: jax.Array, data: PyTree) -> tuple[tuple[()], PyTree]:
        num_devices = num_shares(axes)
        rows = jnp.pad(rows, (0, -len(rows) % num_devices), constant_values=num_samples)
        if not axes:
            return (), (jax.tree.map(partial(_take, rows), data), rows == num_samples)
        size = num_samples // num_devices
        device = jax.lax.axis_index(axes)
        # A row of the batch is its record on the record's device, zeros on the others.
        place = rows - device * size
        place = jnp.where((place >= 0) & (place < size), place, size)

        def scattered(x: jax.Array) -> jax.Array:
            numbers = _take(place, x)
            sent = numbers.astype(jnp.uint8) if numbers.dtype == bool else numbers
            share = jax.lax.psum_scatter(sent, axes, tiled=True)
            return share.astype(numbers.dtype)

        share = len(rows) // num_devices
        mine = jax.lax.dynamic_slice_in_dim(rows, device * share, share)
        return (), (jax.tree.map(scattered, data), mine == num_samples)

    return by_device(on_device, axes, rows, data)[1]


def _take(rows: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.take(jnp.asarray(x), rows, axis=0, mode="fill", fill_value=0)
