"""Batches that go through the records epoch by epoch, in a random order.

The choice of the records of a batch does not depend on the data. So the run is a
mixture over these choices of runs whose batches are fixed by index. In each of those a
replaced record enters few steps, and the other steps do not depend on it, so the run
costs as much as these few releases. By joint convexity so does the mixture. Secrecy of
the choices lowers the cost where each record's choice is independent of the others'
(`BallsInBins`). No such gain is claimed for a shuffle: none is proved here.
"""

import dataclasses
import math
from typing import ClassVar, cast

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax.batching._batching import Batching, at_most_all, participates
from dpjax.batching._coins import true_places
from dpjax.batching._poisson import capacity_of

# Up to here `jax.random.randint` is a remainder of 64 random bits. Its probabilities
# are 1 / c up to a factor 1 +- c 2^-64: T steps change epsilon by T 2^-64.
_MOST_BINS = 2**16


@dataclasses.dataclass(frozen=True)
class ShuffledEpochs(Batching):
    """Every epoch is a new random order of the records, divided into batches.

    An epoch has floor(n / batch_size) batches, without the last n mod batch_size
    records of its order. A draw costs a sort of n random numbers.

    Privacy: a replaced record enters at most one batch of each epoch, so T steps cost
    as much as one release per epoch. No gain from the shuffle is claimed, because none
    is proved: to move one record moves others. `BallsInBins` also goes through the
    records by epochs, and has about the gain of `Poisson`.

    Raises:
        ValueError: If batch_size is not a positive integer.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> batching = ShuffledEpochs(3)
        >>> state = batching.init(jax.random.key(0), num_samples=6, num_steps=4)
        >>> first, _, state = batching.draw(state, jnp.arange(6))
        >>> second, _, state = batching.draw(state, jnp.arange(6))
        >>> print(sorted(first.tolist() + second.tolist()))
        [0, 1, 2, 3, 4, 5]
        >>> batching.sampling(num_samples=6, num_steps=4)  # of two epochs
        Sampling(num_steps=2)

    Reference:
        Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha, Zhang (2024), "How private are
        DP-SGD implementations?", for why the gain of Poisson batches must not be
        claimed for shuffled ones.
    """

    batch_size: int
    is_sampled: ClassVar[bool] = True

    def __post_init__(self):
        _validate.count(batch_size=self.batch_size)

    def _rows(self, state, key):
        del key
        num_samples = state.num_samples
        epoch, place = jnp.divmod(state.step, self._steps_of_epoch(num_samples))
        epoch_key = jax.random.fold_in(state.run_key, epoch)
        order = jax.random.permutation(epoch_key, num_samples)
        return jax.lax.dynamic_slice_in_dim(
            order, place * self.batch_size, self.batch_size
        )

    def divisor(self, num_samples, num_steps):
        """See `Batching.divisor`: the batch size."""
        del num_steps
        self._steps_of_epoch(num_samples)
        return self.batch_size

    def _sampling(self, num_samples, num_steps):
        # Two steps of two epochs may be consecutive, and the last epoch partial.
        num_epochs = math.ceil(num_steps / self._steps_of_epoch(num_samples))
        return {"num_steps": num_epochs}, participates(num_steps, num_epochs)

    def _steps_of_epoch(self, num_samples: int) -> int:
        at_most_all(num_samples, batch_size=self.batch_size)
        return num_samples // self.batch_size


@dataclasses.dataclass(frozen=True)
class BallsInBins(Batching):
    """In every epoch of c steps, each record is assigned to the batch of a random step.

    Steps are uniform and independent, and drawn anew in each epoch. Batches are padded,
    with records at random rows.

    Attributes:
        num_bins: c, at most 65,536; the divisor is the expected batch size, n / c.
        capacity: number of rows of a padded batch, as for `Poisson`.

    Privacy: `accounting.Sampling` with `num_bins` has the cost. In all cases
    tried it was below that of Poisson batches of the same expected size if a record is
    added or removed; if one is replaced, the noise was up to 15 per cent more for
    epsilon up to 3. With correlated noise a record
    enters one step of each epoch, and no gain is claimed; `CyclicPoisson` keeps the
    steps of a record apart.

    Raises:
        ValueError: If a count is not a positive integer, or there are too many bins.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> batching, sizes = BallsInBins(3, capacity=6), []
        >>> state = batching.init(jax.random.key(0), num_samples=6, num_steps=3,
        ...                       epsilon=1.0, delta=1e-5)
        >>> for _ in range(3):
        ...     batch, is_padding_example, state = batching.draw(state, jnp.arange(6))
        ...     sizes.append(int((~is_padding_example).sum()))
        >>> sum(sizes)
        6
        >>> batching.sampling(num_samples=6, num_steps=7)
        Sampling(num_steps=7, num_bins=3)

    Reference:
        Chua, Ghazi, Harrison, Kamath, Kumar, Leeman, Manurangsi, Sinha, Zhang (2025),
        "Balls-and-bins sampling for DP-SGD"; Feldman, Shenfeld (2025), "Privacy
        amplification by random allocation".
    """

    num_bins: int
    capacity: int | None = None
    is_sampled: ClassVar[bool] = True
    pads: ClassVar[bool] = True

    def __post_init__(self):
        _validate.count(num_bins=self.num_bins)
        _validate.require(
            self.num_bins <= _MOST_BINS, "num_bins", self.num_bins, "at most 65,536"
        )
        if self.capacity is not None:
            _validate.count(capacity=self.capacity)

    def _rows(self, state, key):
        epoch, place = jnp.divmod(state.step, self.num_bins)
        bin_key = jax.random.fold_in(state.run_key, epoch)  # the same in all its steps
        bins = jax.random.randint(bin_key, (state.num_samples,), 0, self.num_bins)
        return jax.random.permutation(
            key, true_places(bins == place, cast(int, state.capacity))
        )

    def divisor(self, num_samples, num_steps):
        """See `Batching.divisor`: the expected batch size."""
        del num_steps
        at_most_all(num_samples, num_bins=self.num_bins)
        return num_samples / self.num_bins

    def _sampling(self, num_samples, num_steps):
        self.divisor(num_samples, num_steps)
        pattern = participates(num_steps, math.ceil(num_steps / self.num_bins))
        return {"num_steps": num_steps, "num_bins": self.num_bins}, pattern

    def _capacity(self, num_samples, num_steps, epsilon, delta):
        prob = 1 / self.num_bins
        return capacity_of(self, num_samples, prob, num_steps, epsilon, delta)
