"""Sampling schemes of batches: the event of each, and the accountant that reads it.

The pair of distributions that dominates a Poisson step is in `_sampled_group.py`, for
one record and several, under both relations; for one, it is the pair that the PLD
accountant uses. Its T-fold composition dominates T adaptive steps (Zhu, Dong, Wang
2022, "Optimal accounting of differential privacy via characteristic function", Theorem
10). `_random_allocation.py` has the pair of batches of which each record enters one in
every c, `_fixed_size.py` that of batches of fixed size.
"""

import dataclasses
import math

import numpy as np
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    ZCDpEvent,
)
from dp_accounting.rdp import RdpAccountant

from dpjax import _validate
from dpjax._types import ADD_OR_REMOVE_ONE, REPLACE_ONE, NeighboringRelation, NoiseName
from dpjax.accounting._fixed_size import (
    fixed_size_losses,
    one_step_epsilon,
    run_losses,
    spacing,
)
from dpjax.accounting._gaussian import gaussian_epsilon
from dpjax.accounting._poisson_capacity import check_sampling_prob, without_overflow
from dpjax.accounting._poisson_losses import (
    losses_where_removed,
    losses_where_replaced,
)
from dpjax.accounting._random_allocation import (
    RandomAllocationDpEvent,
    allocation_epsilon,
)
from dpjax.accounting._sampled_group import group_epsilon
from dpjax.accounting._sampled_renyi import (
    fixed_size_log_moment,
    poisson_log_moment,
    renyi_epsilon,
)
from dpjax.accounting._zcdp import rho_to_epsilon

# Outside this range of noise multipliers no sampled step is analyzed: below, epsilon
# would be beyond 1e5; above, the accountants' float64 differences vanish.
_SMALLEST_MULTIPLIER = 1e-3
_LARGEST_MULTIPLIER = 1e6

# The PLD accountant rounds up, except for the error of its FFT: compared with the exact
# composed Gaussian, its delta was too small by up to 2e-16 a step (T = 10 to 1e6). This
# is 5 times that.
_FFT_ERROR = 1e-15

# If delta is this many times larger, setting the error aside costs a thousandth of
# epsilon at most, and Renyi divergences cost some hundredths.
_FAR_ABOVE = 100

# A square root and a quotient, so that 1 / (2 z^2) is never above the budget's rho.
ROUNDED_UP = 2.0**-50


@dataclasses.dataclass(frozen=True)
class Scheme:
    """Full, Poisson (sampling_prob < 1), allocated or fixed-size batches."""

    num_steps: int
    sampling_prob: float
    fixed_size: tuple[int, int] | None  # (num_samples, batch_size)
    relation: NeighboringRelation
    noise: NoiseName = "gaussian"
    other_multiplier: float = math.inf  # of another release, on all records
    num_bins: int | None = None  # of random allocation
    group_size: int = 1  # records that change at once

    @property
    def is_poisson(self) -> bool:
        return self.sampling_prob < 1

    @property
    def has_coins(self) -> bool:
        """Tells whether records enter independently, so that a batch may overflow."""
        return self.is_poisson or self.num_bins is not None

    @property
    def is_full_batch(self) -> bool:
        return not self.has_coins and self.fixed_size is None

    @property
    def num_releases(self) -> int:
        """The most steps that a record can enter."""
        return math.ceil(self.num_steps / (self.num_bins or 1))

    @property
    def _unit(self) -> int:
        # The PLD accountant expects stddev / C with C the norm bound of a record, and
        # accounts itself for the 2C by which replacing one moves the sum.
        return 2 if self.has_coins and self.relation is REPLACE_ONE else 1

    def event(self, multiplier: float) -> DpEvent:
        """The steps, in the convention of the accountant that reads them."""
        if self.noise != "gaussian":
            rho = 0.5 / multiplier**2 if multiplier > 0 else math.inf
            return SelfComposedDpEvent(ZCDpEvent(rho), self.num_steps)
        if self.num_bins is not None:
            step = GaussianDpEvent(self._unit * multiplier)
            return RandomAllocationDpEvent(self.num_bins, self.num_steps, step)
        if self.fixed_size is not None:
            # The RDP accountant expects stddev / sensitivity, that is stddev / 2C.
            step = SampledWithoutReplacementDpEvent(
                *self.fixed_size, GaussianDpEvent(multiplier)
            )
        elif self.is_poisson:
            step = PoissonSampledDpEvent(
                self.sampling_prob, GaussianDpEvent(self._unit * multiplier)
            )
        else:
            step = GaussianDpEvent(multiplier)
        return SelfComposedDpEvent(step, self.num_steps)

    def epsilon(self, multiplier: float, delta: float, coarseness: int = 1) -> float:
        """Returns an upper bound of epsilon at `delta`.

        With privacy losses so many times as far apart it is larger, and takes less
        time.
        """
        if self.noise != "gaussian":
            if min(multiplier, self.other_multiplier) == 0:
                return math.inf
            rho = 0.5 * self.num_steps / multiplier**2 + 0.5 / self.other_multiplier**2
            return rho_to_epsilon(self.group_size**2 * rho, delta)
        if self.has_coins:
            delta = without_overflow(delta)
        # Batches do not depend on the data, so a sampled run is a mixture of runs that
        # are each as private as full batches. So is the mixture (joint convexity).
        full_batch = self._full_batch_epsilon(multiplier, delta)
        if (
            self.is_full_batch
            or full_batch in (0.0, math.inf)
            or not _SMALLEST_MULTIPLIER <= multiplier <= _LARGEST_MULTIPLIER
        ):
            return full_batch
        lost = _FFT_ERROR * (self.num_releases + (self.other_multiplier < math.inf))
        if self.num_bins is not None:
            allocated = allocation_epsilon(
                self._unit * multiplier,
                delta,
                num_steps=self.num_steps,
                num_bins=self.num_bins,
                relation=self.relation,
                other_multiplier=self._unit * self.other_multiplier,
                fft_error=lost,
            )
            return min(full_batch, allocated)
        bounds = [full_batch]
        is_one_step = self.num_steps == 1 and self.other_multiplier == math.inf
        if self.fixed_size is not None and is_one_step:
            bounds.append(one_step_epsilon(multiplier, delta, self._prob))
        if delta > lost:
            bounds.append(self._by_losses(multiplier, delta - lost, coarseness))
        if delta < lost * _FAR_ABOVE and self.group_size == 1:
            bounds.append(self._by_renyi(multiplier, delta))
        return min(bounds)

    def _full_batch_epsilon(self, multiplier: float, delta: float) -> float:
        if self.other_multiplier == math.inf:
            return gaussian_epsilon(
                multiplier,
                delta,
                sensitivity=float(self.group_size),
                num_releases=self.num_releases,
            )
        if min(multiplier, self.other_multiplier) == 0:
            return math.inf
        # Several Gaussian releases cost as much as one, whose precision (inverse
        # variance) is the sum of their precisions.
        precision = self.num_releases / multiplier**2 + 1 / self.other_multiplier**2
        together = 1 / math.sqrt(precision) * (1 - ROUNDED_UP)
        return gaussian_epsilon(together, delta, sensitivity=float(self.group_size))

    @property
    def _prob(self) -> float:
        if self.fixed_size is None:
            return self.sampling_prob
        num_samples, batch_size = self.fixed_size
        return batch_size / num_samples

    def _by_losses(self, multiplier: float, delta: float, coarseness: int) -> float:
        """Returns an epsilon by privacy loss distributions, composed by FFT."""
        other = self.other_multiplier
        if self.group_size > 1:
            return group_epsilon(
                self._unit * multiplier,
                delta,
                sampling_prob=self.sampling_prob,
                num_steps=self.num_steps,
                group_size=self.group_size,
                relation=self.relation,
                other_multiplier=other,
            )
        interval = coarseness * spacing(multiplier, self._prob, other)
        if self.fixed_size is not None:
            step = fixed_size_losses
        elif self.relation is REPLACE_ONE:
            step = losses_where_replaced
        else:
            step = losses_where_removed
        single = step(multiplier, self._prob, interval)
        losses = run_losses(single, self.num_steps, interval, other)
        with np.errstate(over="ignore"):  # of an epsilon beyond 700: inf
            return float(losses.get_epsilon_for_delta(delta))

    def _by_renyi(self, multiplier: float, delta: float) -> float:
        """Returns an epsilon by Renyi divergences, which have no error in delta."""
        if self.relation is REPLACE_ONE:
            return renyi_epsilon(
                poisson_log_moment if self.is_poisson else fixed_size_log_moment,
                multiplier,
                delta,
                sampling_prob=self._prob,
                num_steps=self.num_steps,
                other_multiplier=self.other_multiplier,
            )
        accountant = RdpAccountant(neighboring_relation=self.relation)
        accountant.compose(self.event(multiplier))
        if self.other_multiplier < math.inf:
            accountant.compose(GaussianDpEvent(self.other_multiplier))
        return float(accountant.get_epsilon(delta))


def scheme_of(
    *,
    num_steps: int,
    sampling_prob: float,
    num_samples: int | None,
    batch_size: int | None,
    relation: NeighboringRelation,
    noise: NoiseName,
    other_multiplier: float = math.inf,
    num_bins: int | None = None,
    group_size: int = 1,
) -> Scheme:
    """Checks the sampling arguments of `noise_multiplier`; returns their scheme."""
    _validate.choice(NoiseName, noise=noise)
    rule = "gaussian with sampled batches: no amplification is proved for other noise"
    is_fine = noise == "gaussian" or (
        sampling_prob == 1 and batch_size is None and num_bins is None
    )
    _validate.require(is_fine, "noise", noise, rule)
    _validate.count(num_steps=num_steps)
    _validate.within(0.0, math.inf, other_multiplier=other_multiplier)
    other_multiplier = float(other_multiplier)
    check_sampling_prob(sampling_prob)
    is_fine = relation in (REPLACE_ONE, ADD_OR_REMOVE_ONE)
    _validate.require(is_fine, "relation", relation, "REPLACE_ONE or ADD_OR_REMOVE_ONE")
    _validate.count(group_size=group_size)
    _validate.require(
        group_size == 1 or (num_bins is None and batch_size is None),
        "group_size",
        group_size,
        "1 with num_bins or batch_size, whose gain is proved for one record; "
        "group_privacy holds of all",
    )
    if num_bins is not None:
        _validate.count(num_bins=num_bins)
        _validate.require(
            sampling_prob == 1 and num_samples is None and batch_size is None,
            "num_bins",
            num_bins,
            "None with sampling_prob or batch_size: a record enters one of the bins, "
            "and always",
        )
    if num_samples is None or batch_size is None:
        rule = "given where batch_size is"
        _validate.require(batch_size is None, "num_samples", num_samples, rule)
        rule = "given where num_samples is"
        _validate.require(num_samples is None, "batch_size", batch_size, rule)
        return Scheme(
            num_steps,
            float(sampling_prob),
            None,
            relation,
            noise,
            other_multiplier,
            None if num_bins == 1 else num_bins,
            group_size,
        )

    _validate.count(num_samples=num_samples, batch_size=batch_size)
    rule = f"at most num_samples = {num_samples}"
    _validate.require(batch_size <= num_samples, "batch_size", batch_size, rule)
    _validate.require(
        sampling_prob == 1, "sampling_prob", sampling_prob, "1 with a batch_size"
    )
    _validate.require(
        relation is REPLACE_ONE, "relation", relation, "REPLACE_ONE with a batch_size"
    )
    fixed_size = None if batch_size == num_samples else (num_samples, batch_size)
    return Scheme(
        num_steps, 1.0, fixed_size, relation, other_multiplier=other_multiplier
    )
