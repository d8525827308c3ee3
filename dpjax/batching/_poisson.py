"""Batches that every record enters by an independent coin."""

import dataclasses
import math
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._types import Key
from dpjax.accounting._poisson_capacity import poisson_capacity
from dpjax.batching._batching import Batching, at_most_all, participates
from dpjax.batching._coins import coins, true_places


@dataclasses.dataclass(frozen=True)
class Poisson(Batching):
    """Every record enters each batch independently with one probability.

    Batches are padded. Records are placed at random rows, so that one more record
    replaces a padding row and moves no other record.

    Attributes:
        expected_batch_size: n times the probability, at most n; also the divisor.
        capacity: number of rows of a padded batch. Records beyond it are dropped, the
            last ones first. By default `init` chooses it so that overflow costs one
            thousandth of delta, which the accounting reserves. A smaller capacity is
            rejected, because in a full batch an entering record would drop another, and
            the sum would move by twice as much.

    Raises:
        ValueError: If a size is not positive.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> batching = Poisson(2.0, capacity=6)
        >>> state = batching.init(jax.random.key(2), num_samples=6, num_steps=1,
        ...                       epsilon=1.0, delta=1e-5)
        >>> batch, is_padding_example, state = batching.draw(state, jnp.arange(6))
        >>> print(batch, is_padding_example)
        [2 0 0 0 3 0] [False  True  True  True False  True]
    """

    expected_batch_size: float
    capacity: int | None = None
    is_sampled: ClassVar[bool] = True
    pads: ClassVar[bool] = True

    def __post_init__(self):
        _validate.positive(expected_batch_size=self.expected_batch_size)
        if self.capacity is not None:
            _validate.count(capacity=self.capacity)

    def _rows(self, state, key):
        prob = self._sampling_prob(state.num_samples)
        return _entering(key, state.num_samples, prob, state.capacity)

    def divisor(self, num_samples, num_steps):
        """See `Batching.divisor`: the expected batch size."""
        del num_steps
        self._sampling_prob(num_samples)
        return self.expected_batch_size

    def _sampling(self, num_samples, num_steps):
        # With correlated noise no gain from sampling is known.
        prob = self._sampling_prob(num_samples)
        pattern = participates(num_steps, num_steps)
        return {"num_steps": num_steps, "sampling_prob": prob}, pattern

    def _capacity(self, num_samples, num_steps, epsilon, delta):
        prob = self._sampling_prob(num_samples)
        return capacity_of(self, num_samples, prob, num_steps, epsilon, delta)

    def _sampling_prob(self, num_samples: int) -> float:
        at_most_all(num_samples, expected_batch_size=self.expected_batch_size)
        return self.expected_batch_size / num_samples


@dataclasses.dataclass(frozen=True)
class CyclicPoisson(Batching):
    """Poisson batches from c groups of records, one group after the other.

    Record i is in group i mod c, and step t draws from group t mod c only (the last n
    mod c records are in no group). So two steps with the same record are at least c
    steps apart, as correlated noise with c bands requires. If every record of a group
    enters, the batches are epochs in a fixed order.

    Attributes:
        expected_batch_size: floor(n / c) times the probability to enter, at most
            floor(n / c); also the divisor.
        cycle_length: c.
        capacity: number of rows of a padded batch, as for `Poisson`.

    Privacy: the steps of a record's own group are ceil(T / c) Poisson-subsampled
    releases; the other steps depend on it only through earlier releases.

    Raises:
        ValueError: If a size is not positive.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> batching = CyclicPoisson(3.0, cycle_length=2)
        >>> state = batching.init(jax.random.key(0), num_samples=6, num_steps=4,
        ...                       epsilon=1.0, delta=1e-5)
        >>> first, _, state = batching.draw(state, jnp.arange(6))
        >>> second, _, state = batching.draw(state, jnp.arange(6))
        >>> print(sorted(first.tolist()), sorted(second.tolist()))
        [0, 2, 4] [1, 3, 5]
        >>> CyclicPoisson(10.0, cycle_length=5).sampling(1000, num_steps=12)
        Sampling(num_steps=3, sampling_prob=0.05)

    Reference:
        Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu (2023),
        "(Amplified) banded matrix factorization", Algorithm 2 and Theorem 4.
    """

    expected_batch_size: float
    cycle_length: int
    capacity: int | None = None
    is_sampled: ClassVar[bool] = True
    pads: ClassVar[bool] = True

    def __post_init__(self):
        _validate.positive(expected_batch_size=self.expected_batch_size)
        _validate.count(cycle_length=self.cycle_length)
        if self.capacity is not None:
            _validate.count(capacity=self.capacity)

    def _rows(self, state, key):
        size, prob = self._group(state.num_samples)
        places = _entering(key, size, prob, state.capacity)
        rows = places * self.cycle_length + state.step % self.cycle_length
        return jnp.where(places == size, state.num_samples, rows)

    def divisor(self, num_samples, num_steps):
        """See `Batching.divisor`: the expected batch size."""
        del num_steps
        self._group(num_samples)
        return self.expected_batch_size

    def _sampling(self, num_samples, num_steps):
        drawn = {"sampling_prob": self._group(num_samples)[1]}
        num_turns = math.ceil(num_steps / self.cycle_length)
        pattern = participates(num_steps, num_turns, self.cycle_length)
        return {"num_steps": num_turns, **drawn}, {**pattern, **drawn}

    def _capacity(self, num_samples, num_steps, epsilon, delta):
        size, prob = self._group(num_samples)
        return capacity_of(self, size, prob, num_steps, epsilon, delta)

    def _group(self, num_samples: int) -> tuple[int, float]:
        """Returns the number of records of a group, and the probability of each."""
        size = num_samples // self.cycle_length
        rule = f"at most the number of records, {num_samples}"
        _validate.require(size >= 1, "cycle_length", self.cycle_length, rule)
        _validate.require(
            self.expected_batch_size <= size,
            "expected_batch_size",
            self.expected_batch_size,
            f"at most the number of records of a group, {size}",
        )
        return size, self.expected_batch_size / size


def _entering(
    key: Key, num_samples: int, probability: float, capacity: int | None
) -> jax.Array:
    """Returns the indices that enter, at random rows; num_samples for padding."""
    coin_key, place_key = jax.random.split(key)
    enters = coins(coin_key, num_samples, probability)
    return jax.random.permutation(place_key, true_places(enters, cast(int, capacity)))


def capacity_of(
    batching: Any,
    num_samples: int,
    probability: float,
    num_steps: int,
    epsilon: float | None,
    delta: float | None,
) -> int:
    """Returns the capacity, by default the smallest that the accounting allows."""
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        rule = f"given: the capacity of {batching} depends on the budget"
        _validate.require(value is not None, name, value, rule)
    smallest = poisson_capacity(
        num_samples,
        probability,
        num_steps=num_steps,
        epsilon=cast(float, epsilon),
        delta=cast(float, delta),
    )
    capacity = smallest if batching.capacity is None else batching.capacity
    rule = (
        f"at least {smallest}, or more records are dropped than the accounting allows"
    )
    _validate.require(capacity >= smallest, "capacity", capacity, rule)
    return capacity
