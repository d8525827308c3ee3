"""Samples that are read a few at a time, and what an influence makes of one."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax._sharding import num_shares
from dpjax._types import PyTree, Scalar
from dpjax.estimators._factors import FactoredSamples
from dpjax.estimators._made_once import made_once

MANY = 64


class Rows(NamedTuple):
    """Samples that are read a few at a time.

    Attributes:
        read: `read(start, size)` returns `(samples, aux)` of rows `start` to
            `start + size - 1`; leaves have leading axis `size`, which is static. `aux`
            is whatever the caller wants returned for each row, or `()`.
        num_rows: number of rows on this device, padding included.
        is_padding_example: shape (num_rows,), true for rows to leave out.
        axes: the Manual mesh axes over which rows are sharded evenly, `()` if none.
        read_factored: as `read`, with samples as `FactoredSamples`; None where there
            are none.
    """

    read: Callable[[Scalar, int], tuple[PyTree, PyTree]]
    num_rows: int
    is_padding_example: jax.Array | None = None
    axes: tuple[str, ...] = ()
    read_factored: Callable[[Scalar, int], tuple[FactoredSamples, PyTree]] | None = None

    def factored(self, start: Scalar, size: int) -> tuple[FactoredSamples, PyTree]:
        """Returns samples and aux as `read`, leaves in factored form where they can."""
        if self.read_factored is not None:
            return self.read_factored(start, size)
        samples, aux = self.read(start, size)
        return FactoredSamples(samples), aux

    def has_small_factors(self) -> bool:
        """Returns whether a leaf of samples is much smaller in factored form."""
        if self.read_factored is None:
            return False
        return jax.eval_shape(lambda: self.factored(0, 1)[0]).has_small_factors

    def has_many_leaves(self) -> bool:
        """Returns whether a loop that carries a sum for each leaf compiles long."""
        samples, _ = jax.eval_shape(lambda: self.read(0, 1))
        return len(jax.tree.leaves(samples)) > MANY

    def read_all(self, microbatch_size: int | None) -> tuple[PyTree, PyTree]:
        """Returns all samples and aux, read so many rows at once; None is all."""
        if microbatch_size is None:
            samples, aux = self.read(0, self.num_rows)
        else:
            each = jax.lax.map(
                lambda row: self.read(row, 1),
                jnp.arange(self.num_rows),
                batch_size=microbatch_size,
            )
            samples, aux = jax.tree.map(lambda x: x[:, 0], each)
        return made_once(samples), aux

    @property
    def num_rows_in_all(self) -> int:
        """The number of rows on all devices."""
        return self.num_rows * num_shares(self.axes)


def influence_shape(influence: Callable[[PyTree], PyTree], rows: Rows) -> PyTree:
    """Returns the shapes and dtypes of one sample's influence."""

    def one():
        samples, _ = rows.read(0, 1)
        return influence(jax.tree.map(lambda x: jax.lax.squeeze(x, [0]), samples))

    return jax.eval_shape(one)
