"""The fold of groups of rows by their index: a mean for every group."""

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._sharding import psum, zeros
from dpjax._sums.fold import MANY_ROWS, Fold, Span, Summands, block_length
from dpjax._sums.stream import Layout
from dpjax._types import PyTree, Scalar


def group_means(
    summands: Summands, limit: Scalar | None, *, sizes: np.ndarray
) -> tuple[PyTree, PyTree]:
    """Returns the rounded means of groups, leaves (G, ...), and the aux of all rows.

    Args:
        summands: as for `fold_mean`.
        limit: as for `fold_mean`.
        sizes: the number of rows of each group, shape (G,). Groups are consecutive
            ranges of the rows of all devices.
    """
    stream = summands.stream
    axes = stream.axes
    device = jax.lax.axis_index(axes) if axes else 0
    first, starts, stops = (
        jnp.asarray(x)[device] if axes else jnp.asarray(x[0])
        for x in _groups_by_device(sizes, stream)
    )
    fold = Fold(summands, limit)

    def run(layout: Layout) -> tuple[PyTree, PyTree]:
        every = fold.digits(layout, jnp.asarray(sizes))

        def group(aux, place):
            index, span = place
            digits = every.of_group(index)
            total, aux = fold.add(layout, digits, span, aux)
            return aux, total if axes else digits.mean(total).high

        indices = first + jnp.arange(len(starts))
        aux, sums = jax.lax.scan(group, fold.no_aux(), (indices, Span(starts, stops)))
        if not axes:
            return sums, aux
        # A device has found the digits of those groups that it has rows of.
        total = jax.tree.map(
            lambda x: jax.lax.dynamic_update_slice_in_dim(
                zeros(x, (len(sizes), *x.shape[1:])), x, first, 0
            ),
            sums,
        )
        mean = jax.vmap(lambda index, total: every.of_group(index).mean(total).high)
        return mean(jnp.arange(len(sizes)), psum(total, axes)), aux

    most = min(int(sizes.max()), stream.num_rows)
    return fold.by_platform(run, most, block_length(MANY_ROWS))


def _groups_by_device(sizes, stream):
    """Returns each device's first group, and where its k groups start and stop there.

    Shapes (devices,), (devices, k) and (devices, k), where k is the largest number of
    groups that a device has rows of; others have groups without rows of theirs.
    """
    stops = np.cumsum(sizes)
    offsets = np.arange(0, stream.num_rows_in_all, stream.num_rows)
    first = np.searchsorted(stops, offsets, side="right")
    last = np.searchsorted(stops, offsets + stream.num_rows, side="left")
    most = (last - first).max() + 1
    first = np.minimum(first, len(sizes) - most)
    groups = first[:, None] + np.arange(most)
    return first, *(
        np.clip(x[groups] - offsets[:, None], 0, stream.num_rows)
        for x in (stops - sizes, stops)
    )
