"""What every way to choose batches has in common."""

import abc
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._sharding import AxisName, by_device, num_shares, row_axes
from dpjax._types import Key, PyTree, Scalar


class Batching(abc.ABC):
    """How each step chooses its records: what `batching=` of a solver takes.

    Attributes:
        is_sampled: whether batches are drawn at random.
        pads: whether rows of a batch may be padding.
        keeps_key: whether all steps of a run draw with one key, as `next_key` sees to.

    Example:
        >>> from dpjax.batching import WithoutReplacement
        >>> WithoutReplacement(2).divisor(num_samples=7, num_steps=3)
        2
    """

    is_sampled: ClassVar[bool] = False
    pads: ClassVar[bool] = False
    keeps_key: ClassVar[bool] = False

    def next_key(self, key: Key) -> tuple[Key, Key]:
        """Returns the key for later steps, and that of this step's draw.

        Args:
            key: a typed key, the run's own, or what this returned for later steps.

        Example:
            >>> import jax
            >>> from dpjax.batching import Poisson, ShuffledEpochs
            >>> key = jax.random.key(0)
            >>> bool(ShuffledEpochs(3).next_key(key)[1] == key)
            True
            >>> bool(Poisson(3.0).next_key(key)[1] == key)
            False
        """
        if self.keeps_key:  # of which draws fold in the step, and use none up
            return key, key
        next_key, draw_key = jax.random.split(key)
        return next_key, draw_key

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
            key: a typed key, used once here; replicated. From `next_key`: where
                `keeps_key`, the same one in all steps of a run.
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

    @abc.abstractmethod
    def participation(self, num_samples: int, num_steps: int) -> dict[str, Any]:
        """Returns who may enter which steps, for `correlated_noise_multiplier`.

        One record enters max_participations of num_steps steps at most, any two of them
        min_separation steps apart at least (1 is next to each other), with probability
        sampling_prob each where that is given.
        """

    def prepared(
        self, num_samples: int, num_steps: int, *, epsilon: float, delta: float
    ) -> "Batching":
        """Returns the batching with the defaults that follow from size and budget."""
        del num_samples, num_steps, epsilon, delta
        return self


def any_steps(num_steps: int) -> dict[str, Any]:
    """Returns the participation of records that may enter every step."""
    return {
        "num_steps": num_steps,
        "max_participations": num_steps,
        "min_separation": 1,
    }


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
