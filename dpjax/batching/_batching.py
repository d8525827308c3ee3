"""The base class of all batchings, and the state of a run."""

import abc
import dataclasses
import math
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._keys import secret_repr
from dpjax._sharding import AxisName, by_device, num_shares, row_axes, varying_with
from dpjax._tree import narrowed_numbers, register
from dpjax._types import Key, PyTree
from dpjax.accounting import Sampling


@register("key", "run_key", "step")
@dataclasses.dataclass(frozen=True)
class BatchState:
    """Holds the state of the batches of a run, from `Batching.init` or `draw`.

    It is a pytree of two keys and a step, for jit, scan and checkpoints. Keep these
    keys as secret as the key of the noise.
    """

    key: Key  # of the next draw
    run_key: Key  # of choices that hold for more than one step; the same in all steps
    step: jax.Array  # number of batches drawn so far, at most num_steps
    batching: "Batching"  # this field and all below it are static
    num_samples: int
    num_steps: int
    capacity: int | None  # number of rows of a padded batch; None without padding
    __repr__ = secret_repr

    def started(self, key: Key) -> "BatchState":
        """Returns the state before the first batch of an equal run with another key."""
        key, run_key = jax.random.split(key)
        step = jnp.zeros((), jnp.int32)
        return dataclasses.replace(self, key=key, run_key=run_key, step=step)


class Batching(abc.ABC):
    """Chooses the records of each step: the argument `batching` of solvers.

    Attributes:
        is_sampled: whether batches are drawn at random.
        pads: whether rows of a batch may be padding.
    """

    is_sampled: ClassVar[bool] = False
    pads: ClassVar[bool] = False

    def init(
        self,
        key: Key,
        num_samples: int,
        num_steps: int,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> BatchState:
        """Returns the state before the first batch of a run.

        Args:
            key: a typed key, used for nothing else.
            num_samples: n, the number of records of all devices together.
            num_steps: T, the number of batches of the run.
            epsilon: privacy of the whole run, as given to
                `accounting.noise_multiplier`: the capacity of padded batches depends on
                it. Ignored by batchings of a fixed size.
            delta: like epsilon.

        Raises:
            ValueError: If an argument is out of its range, the batching does not fit n
                and T, or a required privacy budget is missing.
        """
        _validate.typed_key(key)
        _validate.count(num_samples=num_samples, num_steps=num_steps)
        _validate.above_zero(epsilon=math.inf if epsilon is None else epsilon)
        _validate.delta(0.0 if delta is None else delta)
        self.divisor(num_samples, num_steps)
        capacity = self._capacity(num_samples, num_steps, epsilon, delta)
        unset: Any = None
        state = BatchState(unset, unset, unset, self, num_samples, num_steps, capacity)
        return state.started(key)

    def draw(
        self, state: BatchState, data: PyTree, *, axis_name: AxisName | None = None
    ) -> tuple[PyTree, jax.Array, BatchState]:
        """Returns the next batch, the mask of its padding rows, and the next state.

        Use each state for one draw, and pass the returned state to the next one:
        otherwise all steps get the same batch (`jax.debug_key_reuse` detects this).
        After num_steps draws every row is padding.

        If data are sharded, the batch is sharded in the same way and has the same
        records as on one device; only its rows are communicated. Padding rows fill it
        to a multiple of the number of devices. Padding rows are zeros, except that the
        batch of `Full` is always the data: after the last step only the mask changes.

        Args:
            state: from `init` or the previous draw; replicated.
            data: pytree, leaves of shape (n, ...).
            axis_name: mesh axes over which data are sharded, as in `robust_grad`.

        Raises:
            ValueError: If the state was made for another batching or another n.
        """
        batch, mask, following = self.draw_within(state, data, axis_name=axis_name)
        if mask is None:
            is_over = state.step >= state.num_steps
            mask = _mask(is_over, batch, row_axes(data, axis_name))
        return batch, mask, following

    def draw_within(
        self, state: BatchState, data: PyTree, *, axis_name: AxisName | None = None
    ) -> tuple[PyTree, jax.Array | None, BatchState]:
        """Returns the same as `draw`, but None for the mask if no row can be padding.

        It serves estimators that accept no mask, such as `TrimmedMean`. Draw exactly
        num_steps times, because no mask marks the padding rows of later batches.
        """
        data = narrowed_numbers(data, "data")
        self._check(state, data, row_axes(data, axis_name))
        key, draw_key = jax.random.split(state.key)
        batch, is_padding_example = self._drawn(state, draw_key, data, axis_name)
        step = jnp.minimum(state.step + 1, state.num_steps)
        return batch, is_padding_example, dataclasses.replace(state, key=key, step=step)

    def _drawn(
        self, state: BatchState, key: Key, data: PyTree, axis_name: AxisName | None
    ) -> tuple[PyTree, jax.Array | None]:
        """Returns the batch of the state's step, and its mask, true for padding."""
        # `draw_within` calls it with a fresh `key`. `data` has leaves (n, ...), and the
        # batch leaves (rows, ...). The mask, (rows,), is None if no row can be padding.
        axes = row_axes(data, axis_name)
        rows = self._rows(state, key)
        if rows is None:
            return data, None
        is_over = state.step >= state.num_steps
        rows = jnp.where(is_over, state.num_samples, rows)
        batch, is_padding_example = _rows_at(data, rows, state.num_samples, axes)
        num_taken = is_padding_example.size * num_shares(axes)
        has_padding = self.pads or num_taken > rows.size
        return batch, is_padding_example if has_padding else None

    def _check(self, state: BatchState, data: PyTree, axes: tuple[str, ...]) -> None:
        """Requires a `state` of this batching, for as many records as `data` has."""
        # `data` are this device's records, sharded over the mesh axes `axes`.
        num_samples = _validate.leading_size(data, "data") * num_shares(axes)
        rule = f"one that the method init of {self} returned"
        is_fine = isinstance(state, BatchState) and state.batching == self
        _validate.require(is_fine, "state", getattr(state, "batching", state), rule)
        rule = f"of length {state.num_samples}, for which the state was made"
        is_fine = num_samples == state.num_samples
        _validate.require(is_fine, "data", f"length {num_samples}", rule)

    @abc.abstractmethod
    def _rows(self, state: BatchState, key: Key) -> jax.Array | None:
        """Returns the indices of a batch, num_samples for padding; or None for all.

        Draw from `key` freely, but from `state.run_key` only by `jax.random.fold_in`.
        """

    @abc.abstractmethod
    def divisor(self, num_samples: int, num_steps: int) -> float:
        """Returns the public number that divides the sum of a batch."""

    def sampling(self, num_samples: int, num_steps: int, **fields: Any) -> Sampling:
        """Returns the description of a run that `accounting.noise_multiplier` takes.

        Args:
            num_samples: n.
            num_steps: T.
            **fields: further fields of `accounting.Sampling`, such as `relation`,
                `group_size` and `strategy`.

        Raises:
            ValueError: If the batching does not fit n and T, or fields do not fit.
        """
        independent, correlated = self._sampling(num_samples, num_steps)
        has_strategy = fields.get("strategy") is not None
        return Sampling(**(correlated if has_strategy else independent), **fields)

    @abc.abstractmethod
    def _sampling(
        self, num_samples: int, num_steps: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns `Sampling` fields by name, for independent and for correlated noise.

        The fields state the privacy cost. With correlated noise a record enters at most
        max_participations of num_steps steps, min_separation apart (1: consecutive),
        and each with probability sampling_prob if that is given.
        """

    def _capacity(self, num_samples, num_steps, epsilon, delta) -> int | None:
        """Returns the number of rows of a padded batch; rejects a small capacity."""
        return None


def participates(num_steps: int, at_most: int, separation: int = 1) -> dict[str, Any]:
    """Returns the fields of a `Sampling` that say which steps a record may enter."""
    pattern = {"max_participations": at_most, "min_separation": separation}
    return {"num_steps": num_steps, **pattern}


def at_most_all(num_samples: int, **arguments: Any) -> None:
    """Requires every argument to be at most the number of records."""
    rule = f"at most the number of records, {num_samples}"
    for name, value in arguments.items():
        _validate.require(value <= num_samples, name, value, rule)


def _rows_at(
    data: PyTree, rows: jax.Array, num_samples: int, axes: tuple[str, ...]
) -> tuple[PyTree, jax.Array]:
    """Returns rows of data by index, sharded like data, and the mask of padding."""
    # `rows` are indices of the n = num_samples records of all devices, n for padding;
    # `axes` are the mesh axes over which records are sharded, () on one device. Padding
    # rows are zeros, so that a caller without the mask counts no record twice.

    def on_device(rows: jax.Array, data: PyTree) -> tuple[tuple[()], PyTree]:
        """Returns (), and a pair: this device's shares of the batch and its mask."""
        # By `by_device`, () are the results that all devices have alike: none here.
        num_devices = num_shares(axes)
        rows = jnp.pad(rows, (0, -len(rows) % num_devices), constant_values=num_samples)
        if not axes:
            return (), (jax.tree.map(partial(_take, rows), data), rows == num_samples)
        size = num_samples // num_devices
        device = jax.lax.axis_index(axes)
        # Each device fills in the rows of the batch that it holds, and zeros elsewhere.
        # The sum over devices then has every row, and each device keeps its share.
        place = rows - device * size
        place = jnp.where((place >= 0) & (place < size), place, size)

        def scattered(x: jax.Array) -> jax.Array:
            numbers = _take(place, x)
            sent = numbers.astype(jnp.uint8) if numbers.dtype == bool else numbers
            return jax.lax.psum_scatter(sent, axes, tiled=True).astype(numbers.dtype)

        share = len(rows) // num_devices
        mine = jax.lax.dynamic_slice_in_dim(rows, device * share, share)
        return (), (jax.tree.map(scattered, data), mine == num_samples)

    return by_device(on_device, axes, rows, data)[1]


def _mask(is_over: jax.Array, batch: PyTree, axes: tuple[str, ...]) -> jax.Array:
    """Returns one boolean for all rows of a batch, sharded like the batch."""

    def on_device(is_over: jax.Array, x: jax.Array) -> tuple[tuple[()], jax.Array]:
        return (), varying_with(jnp.full(len(x), is_over), x)

    return by_device(on_device, axes, is_over, jax.tree.leaves(batch)[0])[1]


def _take(rows: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.take(jnp.asarray(x), rows, axis=0, mode="fill", fill_value=0)
