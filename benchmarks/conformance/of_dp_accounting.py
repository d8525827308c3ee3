"""Adapters for dp_accounting's tests: costs by events, and noise by budgets.

dpjax computes with dp_accounting, so these cases test what it adds: conventions of
events, ranges, rounding, the exact curve of Gaussian noise, and its own bounds.
"""

from typing import Any

import dp_accounting as dpa
import numpy as np
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType

from benchmarks.conformance.adapter import absent, stands_for
from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE, accounting
from dpjax.accounting._subsampling import gaussian_event


@stands_for("dp_accounting.gaussian_mechanism.get_epsilon_gaussian")
def get_epsilon_gaussian(sigma, delta, tol=None):
    if delta == 1:
        absent("a delta of 1")
    return accounting.gaussian_epsilon(sigma, delta, sensitivity=1.0)


@stands_for("dp_accounting.gaussian_mechanism.get_sigma_gaussian")
def get_sigma_gaussian(epsilon, delta, tol=None):
    if epsilon == 0 or delta == 1:
        absent("a delta of 1, or an epsilon of 0")
    return accounting.gaussian_stddev(epsilon, delta, sensitivity=1.0)


@stands_for("dp_accounting.pld.pld_privacy_accountant.PLDAccountant")
class _Accountant:
    def __init__(self, relation=ADD_OR_REMOVE_ONE):
        self.relation, self.event = relation, dpa.NoOpDpEvent()

    def supports(self, event):
        try:
            return self.compose(event) is self
        except ValueError:
            return False

    def compose(self, event, count=1):
        repeated = event if count == 1 else dpa.SelfComposedDpEvent(event, count)
        accounting.epsilon_of(repeated, 1e-3, relation=self.relation)
        self.event = dpa.ComposedDpEvent([self.event, repeated])
        return self

    def get_epsilon(self, delta):
        return accounting.epsilon_of(self.event, delta, relation=self.relation)

    def get_delta(self, epsilon):
        return accounting.delta_of(self.event, epsilon, relation=self.relation)

    def __getattr__(self, name):
        absent(f"`PLDAccountant.{name}`")


class _Loss(_Accountant):
    """The loss of one release, in the worse direction of its relation."""

    def __init__(self, scale, sensitivity=1.0, sampling_prob=1.0, **options):
        self.adjacency_type = options.pop("adjacency_type", AdjacencyType.REMOVE)
        is_replaced = self.adjacency_type is AdjacencyType.REPLACE
        super().__init__(REPLACE_ONE if is_replaced else ADD_OR_REMOVE_ONE)
        if sensitivity == 0 or options.get("log_mass_truncation_bound", -1) > 0:
            absent("a sensitivity of zero, or how a distribution is truncated")
        if self.adjacency_type is AdjacencyType.ADD and 0 < sampling_prob < 1:
            absent("the better of two directions, whose worse one counts")
        self.unit = (1 + is_replaced) * sensitivity
        given = {"sampling_prob": sampling_prob, "relation": self.relation}
        self.sampling = accounting.Sampling(1, **given)
        self.compose(self.event_of(scale))

    def get_delta_for_epsilon(self, epsilon):
        if np.min(epsilon) < 0:
            absent("a negative epsilon")
        return np.vectorize(self.get_delta)(epsilon)

    @classmethod
    def from_privacy_guarantee(cls, *args, **options) -> Any:
        absent("noise for a budget, where it is not Gaussian")

    def __getattr__(self, name):
        absent(f"`{name}`: a distribution is not shown, only epsilon and delta")


@stands_for("dp_accounting.pld.privacy_loss_mechanism.GaussianPrivacyLoss")
class _GaussianLoss(_Loss):
    standard_deviation = 0.0  # of a loss from a privacy guarantee

    def event_of(self, scale):
        return gaussian_event(scale / self.unit, self.sampling)

    @classmethod
    def from_privacy_guarantee(cls, parameters, sensitivity=1.0, **options):
        loss = cls(1.0, sensitivity, **options)
        budget = parameters.epsilon, parameters.delta
        multiplier = accounting.noise_multiplier(*budget, loss.sampling)
        loss.standard_deviation = multiplier * loss.unit
        return loss


@stands_for("dp_accounting.pld.privacy_loss_mechanism.LaplacePrivacyLoss")
class _LaplaceLoss(_Loss):
    def event_of(self, scale):
        event = dpa.LaplaceDpEvent(scale / self.unit)
        prob = self.sampling.sampling_prob
        return event if prob == 1 else dpa.PoissonSampledDpEvent(prob, event)
