"""A sample of records that stream by, small enough for memory."""

from collections.abc import Iterable

import jax
import numpy as np

from dpjax import _validate
from dpjax._reservoir import Reservoir, Tags
from dpjax._types import Key, PyTree


def sample(chunks: Iterable[PyTree], size: int, *, key: Key) -> tuple[PyTree, int]:
    """Draws records without replacement from a stream, in one pass.

    At most 2 size records and a chunk are in memory. What is drawn depends on the key
    and the number of records, not on how the stream is cut into chunks.

    Args:
        chunks: pytrees of one structure with leaves (k, ...), k > 0, such as slices of
            `MemoryMapped`, or the arrays of the batches of `pyarrow.dataset`.
        size: how many; of fewer records all are returned, as they are.
        key: fresh for each run, and as secret as the key of its noise.

    Returns:
        The records in a random order, with leaves (m, ...), and the public number n
        from which they were drawn; m = min(size, n).

    Raises:
        ValueError: If size is no integer of at least 1, the key is no typed key, there
            is no chunk, or the leaves of a chunk have different lengths.

    Privacy:
        Which records were drawn must stay secret, and each run must draw anew. What
        the run may spend says `dpjax.accounting.subsample_budget`.

    Example:
        >>> import jax, numpy as np
        >>> from dpjax.accounting import subsample_budget
        >>> chunks = (np.arange(1000 * i, 1000 * (i + 1)) for i in range(100))
        >>> drawn, num_samples = sample(chunks, 500, key=jax.random.key(0))
        >>> num_samples, drawn.shape
        (100000, (500,))
        >>> epsilon, delta = subsample_budget(
        ...     0.1, 1e-7, num_samples=num_samples, sample_size=len(drawn))
        >>> print(f"{epsilon:.2f} {delta:.0e}")
        3.09 2e-05
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
    numbers, *leaves = reservoir.kept()
    if num_records <= size:
        leaves = [leaf[np.argsort(numbers)] for leaf in leaves]
    return jax.tree.unflatten(structure, leaves), num_records
