"""Samples that are made a few at a time, and never held all at once."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._tree import register
from dpjax._types import PyTree, Scalar
from dpjax.estimators._factors import FactoredSamples

MakeFactored = Callable[[PyTree], tuple[FactoredSamples, PyTree]]


@register("shared", "rows")
@dataclass(frozen=True)
class SampleStream:
    """Samples that are computed from rows when they are needed, a few at a time.

    An estimator takes it in place of a pytree of samples. `streamed_grad` returns one:
    the gradients of a batch.

    Attributes:
        make_samples: `make_samples(shared, some_rows)` returns `(samples, aux)`, both
            with the leading axis of some_rows; aux is whatever is wanted back for each
            row, or `()`.
        shared: pytree that all samples depend on, such as parameters.
        rows: pytree, leaves of shape (n, ...), such as a batch.
        microbatch_size: how many are made at once; None chooses.
        make_factored: `make_factored(shared, rows)` returns a function of some rows, as
            make_samples but with samples as `FactoredSamples`, for estimators that take
            norms and sums from factors; None where there are none.
    """

    make_samples: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]
    shared: PyTree
    rows: PyTree
    microbatch_size: int | None = None
    make_factored: Callable[[PyTree, PyTree], MakeFactored] | None = None

    @classmethod
    def of(cls, samples: PyTree) -> "SampleStream":
        """Returns arrays of samples as a stream, and a stream as it is."""
        if isinstance(samples, SampleStream):
            return samples
        return cls(_themselves, (), samples)

    @property
    def num_rows(self) -> int:
        """Number of rows, padding included; inside `jax.shard_map` on this device."""
        return _validate.leading_size(self.rows, "samples")

    def read(self, start: Scalar, size: int) -> tuple[PyTree, PyTree]:
        """Returns samples and aux of rows `start` to `start + size - 1`."""
        samples, aux = self.make_samples(self.shared, self._rows(start, size))
        _validate.real(samples=samples)
        return samples, aux

    @property
    def read_factored(self) -> Callable[[Scalar, int], tuple[Any, PyTree]] | None:
        """As `read`, with samples in factored form; None where there are none.

        What makes them is traced at the first reading, and never again.
        """
        if self.make_factored is None:
            return None
        make = cache(partial(self.make_factored, self.shared, self.rows))
        return lambda start, size: make()(self._rows(start, size))

    def _rows(self, start, size):
        if size == self.num_rows:
            return self.rows
        part = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=size)
        return jax.tree.map(part, self.rows)

    def num_coordinates(self) -> int:
        """Returns the number of entries of one sample, all leaves together."""

        def one(x):  # of no mesh: no row lies on several devices
            return jax.ShapeDtypeStruct((1, *np.shape(x)[1:]), jnp.result_type(x))

        def whole(x):
            return jax.ShapeDtypeStruct(np.shape(x), jnp.result_type(x))

        samples, _ = jax.eval_shape(
            self.make_samples,
            jax.tree.map(whole, self.shared),
            jax.tree.map(one, self.rows),
        )
        return sum(x.size for x in jax.tree.leaves(samples))

    def on_device(self, shared: PyTree, rows: PyTree) -> "SampleStream":
        """Returns the stream of one device's rows."""
        return replace(self, shared=shared, rows=rows)


def _themselves(shared: PyTree, rows: PyTree) -> tuple[PyTree, PyTree]:
    del shared
    return rows, ()
