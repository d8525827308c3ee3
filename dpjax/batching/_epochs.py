"""Batches that go through the records epoch by epoch, in an order from a key.

Which records a batch has does not depend on the data, so that the run is a mixture,
over these choices, of runs whose batches are fixed by index. In each of those a record
that is replaced enters few steps, and all others release the same: it costs as much as
so many releases, and by joint convexity so does the mixture. That an observer does not
know the choices might make it cost less; for a record that is replaced, and steps that
depend on those before, no such gain is claimed here.
"""

import dataclasses
import math
from typing import ClassVar, cast

import jax
import jax.numpy as jnp
import scipy.stats

from dpjax import _validate
from dpjax.batching._batching import Batching
from dpjax.batching._coins import true_places

# A batch of balls overflows its capacity with at most this probability.
_OVERFLOW = 1e-9


@dataclasses.dataclass(frozen=True)
class ShuffledEpochs(Batching):
    """Every epoch is a new random order of the records, cut into batches.

    An epoch has floor(n / batch_size) batches; of its order the last n mod batch_size
    records are in none. A draw costs a sort of n random numbers.

    Privacy: a replaced record enters one batch of each epoch, so that T steps cost as
    many releases as there are epochs. No gain from the shuffle is claimed: for
    adaptive steps and a replaced record none is proved here.

    Raises:
        ValueError: where batch_size is not a positive count.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> batching = ShuffledEpochs(3)
        >>> state = batching.init(jax.random.key(0), num_samples=6, num_steps=4)
        >>> first, _, state = batching.draw(state, jnp.arange(6))
        >>> second, _, state = batching.draw(state, jnp.arange(6))
        >>> print(sorted(first.tolist() + second.tolist()))
        [0, 1, 2, 3, 4, 5]
        >>> batching.accounting(num_samples=6, num_steps=4)
        {'num_steps': 2}

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

    def accounting(self, num_samples, num_steps):
        """See `Batching.accounting`: a release for each epoch, the last begun too."""
        return {"num_steps": math.ceil(num_steps / self._steps_of_epoch(num_samples))}

    def participation(self, num_samples, num_steps):
        """See `Batching.participation`: the end of an epoch may meet the next's."""
        return {
            "num_steps": num_steps,
            "max_participations": self.accounting(num_samples, num_steps)["num_steps"],
            "min_separation": 1,
        }

    def _steps_of_epoch(self, num_samples: int) -> int:
        _validate.require(
            self.batch_size <= num_samples,
            "batch_size",
            self.batch_size,
            f"at most the number of records, {num_samples}",
        )
        return num_samples // self.batch_size


@dataclasses.dataclass(frozen=True)
class BallsInBins(Batching):
    """Every record falls into one of so many bins; step t has those of bin t mod c.

    Bins are uniform and independent, and the same in all epochs: a record enters every
    c-th step. Batches are padded, records placed at random rows.

    Attributes:
        num_bins: c; the divisor is the expected batch size, n / c.
        capacity: rows of a padded batch; by default so many that a batch overflows once
            in 1e9. Records beyond it are left out, the last ones first.

    Privacy: a replaced record enters ceil(T / c) of T steps at most, and costs as many
    releases. Which records overflow does not depend on the data either. No gain from
    the secret bin is claimed: the known ones are for a record that is added or removed
    (Chua et al. 2025), by Monte Carlo; `Poisson` has one for both.

    Raises:
        ValueError: where a count is not positive.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> batching, sizes = BallsInBins(3, capacity=6), []
        >>> state = batching.init(jax.random.key(0), num_samples=6, num_steps=3)
        >>> for _ in range(3):
        ...     batch, is_padding_example, state = batching.draw(state, jnp.arange(6))
        ...     sizes.append(int((~is_padding_example).sum()))
        >>> sum(sizes)
        6
        >>> batching.accounting(num_samples=6, num_steps=7)
        {'num_steps': 3}

    Reference:
        Chua, Ghazi, Harrison, Kamath, Kumar, Leeman, Manurangsi, Sinha, Zhang (2025),
        "Balls-and-bins sampling for DP-SGD"; Choquette-Choo, Ganesh, Haque, Steinke,
        Thakurta (2024), "Near exact privacy amplification for matrix mechanisms".
    """

    num_bins: int
    capacity: int | None = None
    is_sampled: ClassVar[bool] = True
    pads: ClassVar[bool] = True

    def __post_init__(self):
        _validate.count(num_bins=self.num_bins)
        if self.capacity is not None:
            _validate.count(capacity=self.capacity)

    def _rows(self, state, key):
        bin_key = jax.random.fold_in(state.run_key, 0)  # the same in every step
        bins = jax.random.randint(bin_key, (state.num_samples,), 0, self.num_bins)
        is_in = bins == state.step % self.num_bins
        return jax.random.permutation(
            key, true_places(is_in, cast(int, state.capacity))
        )

    def divisor(self, num_samples, num_steps):
        """See `Batching.divisor`: the expected batch size."""
        del num_steps
        _validate.require(
            self.num_bins <= num_samples,
            "num_bins",
            self.num_bins,
            f"at most the number of records, {num_samples}",
        )
        return num_samples / self.num_bins

    def accounting(self, num_samples, num_steps):
        """See `Batching.accounting`: a release for each time round the bins."""
        self.divisor(num_samples, num_steps)
        return {"num_steps": math.ceil(num_steps / self.num_bins)}

    def participation(self, num_samples, num_steps):
        """See `Batching.participation`: every c-th step."""
        return {
            "num_steps": num_steps,
            "max_participations": self.accounting(num_samples, num_steps)["num_steps"],
            "min_separation": self.num_bins,
        }

    def _capacity(self, num_samples, num_steps, epsilon, delta):
        del num_steps, epsilon, delta
        if self.capacity is not None:
            return self.capacity
        law = scipy.stats.binom(num_samples, 1 / self.num_bins)
        return max(1, int(law.isf(_OVERFLOW)))
