"""A sample of records that stream by, small enough for memory."""

from collections.abc import Iterable
from typing import NamedTuple

import jax
import numpy as np

from dpjax import _validate
from dpjax._reservoir import Reservoir, Tags
from dpjax._types import Key, PyTree


class Sample(NamedTuple):
    """Records drawn without replacement, in a random order.

    Attributes:
        records: pytree with leaves (m, ...), m = min(size, num_records).
        num_records: public number n of records that they were drawn from.
    """

    records: PyTree
    num_records: int


def sample(chunks: Iterable[PyTree], size: int, *, key: Key) -> Sample:
    """Returns records drawn without replacement from a stream, in one pass.

    At most 2 size records and a chunk are in memory. What is drawn depends on the key
    and the number of records, not on how the stream is cut into chunks.

    Args:
        chunks: pytrees of one structure with leaves (k, ...), k > 0, such as slices of
            `MemoryMapped`, or the arrays of the batches of `pyarrow.dataset`.
        size: how many; of fewer records all are returned, as they are.
        key: fresh for each run, and as secret as the key of its noise.

    Raises:
        ValueError: If size is no integer of at least 1, the key is no typed key, there
            is no chunk, or the leaves of a chunk have different lengths.

    Privacy:
        Which records were drawn must stay secret, and each run must draw anew. What
        the run may spend says `dpjax.accounting.subsample_budget`.

    Example:
        >>> import jax, numpy as np
        >>> from dpjax.accounting import subsample_budget, subsample_privacy
        >>> from dpjax.solvers import dp_mean
        >>> draw_key, key = jax.random.split(jax.random.key(0))
        >>> rng = np.random.default_rng(0)
        >>> chunks = (rng.normal(5.0, 1.0, 1000) for _ in range(100))
        >>> drawn = sample(chunks, 10_000, key=draw_key)
        >>> sizes = {"num_samples": drawn.num_records, "sample_size": 10_000}
        >>> epsilon, delta = subsample_budget(0.1, 1e-7, **sizes)
        >>> found = dp_mean(drawn.records, key=key, epsilon=epsilon, delta=delta)
        >>> print(f"{epsilon:.2f} {found.params:.1f}")
        0.72 5.0
        >>> print(f"{subsample_privacy(found.privacy, **sizes).epsilon:.2f}")
        0.10
    """
    _validate.count(size=size)
    _validate.typed_key(key)
    tags, reservoir = Tags(key), Reservoir(size, np.concatenate)
    num_records, structure = 0, None
    for chunk in chunks:
        leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, chunk))
        count = _validate.leading_size(chunk, "chunks")
        numbers = np.arange(num_records, num_records + count)
        reservoir.add([numbers, *leaves], tags.following(count))
        num_records += count
    if structure is None:
        raise ValueError("chunks must be at least one, got none.")
    (numbers, *leaves), _ = reservoir.kept()
    if num_records <= size:
        leaves = [leaf[np.argsort(numbers)] for leaf in leaves]
    return Sample(jax.tree.unflatten(structure, leaves), num_records)
