"""A private histogram: a skeleton of a solver."""

from functools import partial

import jax
import jax.numpy as jnp
from dp_accounting import LaplaceDpEvent

from dpjax import _validate, mechanisms
from dpjax._types import ArrayLike, Key
from dpjax.accounting import PrivacyGuarantee
from dpjax.solvers.training._solution import Solution


def dp_histogram(
    bins: ArrayLike, *, key: Key, epsilon: float, num_bins: int
) -> Solution:
    """Releases how many records fall into each bin, with Laplace noise.

    Args:
        bins: shape (n,), integers: the bin of each record; n is public. A record
            outside 0, ..., num_bins - 1 is in no bin.
        key: a typed key.
        epsilon: privacy parameter, positive, any size.
        num_bins: the number of bins, chosen without the records.

    Returns:
        A `Solution` whose params are noisy counts, shape (num_bins,). Its stats hold
        the scale of the noise.

    Privacy:
        epsilon-DP under replace-one, for every input: a record that moves from one bin
        to another changes two counts by one each, an l1 sensitivity of 2. Counts are
        of integers, exact in float32 up to 2^24 records, which is checked.

    Example:
        >>> import jax, numpy as np
        >>> bins = np.repeat([0, 1, 2], [5_000, 3_000, 2_000])
        >>> solution = dp_histogram(
        ...     bins, key=jax.random.key(0), epsilon=1.0, num_bins=3)
        >>> print((solution.params / 1_000).round(1))
        [5. 3. 2.]

    Reference:
        Dwork, McSherry, Nissim, Smith (2006), Section 3.
    """
    _validate.typed_key(key)
    _validate.positive(epsilon=epsilon)
    _validate.count(num_bins=num_bins)
    bins = jnp.asarray(bins)
    is_valid = bins.ndim == 1 and 0 < bins.size <= 2**24
    _validate.require(is_valid, "bins.shape", bins.shape, "(n,), n from 1 to 2^24")
    is_integer = jnp.issubdtype(bins.dtype, jnp.integer)
    _validate.require(is_integer, "bins.dtype", bins.dtype, "of integers")
    counts = _noisy_counts(num_bins, key, bins, scale := 2.0 / epsilon)
    event, given = LaplaceDpEvent(1.0 / epsilon), {"num_samples": bins.size}
    privacy = PrivacyGuarantee.of(epsilon, 0.0, dp_event=event, **given)
    return Solution(counts, privacy, {"scale": scale})


@partial(jax.jit, static_argnums=0)
def _noisy_counts(num_bins, key, bins, scale):
    place = jnp.where((bins >= 0) & (bins < num_bins), bins, num_bins)
    counts = jnp.zeros(num_bins + 1, jnp.int32).at[place].add(1)[:num_bins]
    return mechanisms.laplace(key, counts.astype(jnp.float32), scale=scale)
