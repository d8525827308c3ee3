"""Adapters for Opacus' tests: its accountants, under its relation."""

import dp_accounting as dpa
import hypothesis

from benchmarks.conformance.adapter import absent, stands_for
from dpjax import ADD_OR_REMOVE_ONE, accounting
from dpjax.accounting._subsampling import gaussian_event

_DRAWS = {"max_examples": 10, "derandomize": True, "database": None}  # the same again
hypothesis.settings.register_profile("conformance", **_DRAWS)
hypothesis.settings.load_profile("conformance")


def _sampling(num_steps, sample_rate):
    return accounting.Sampling(
        int(num_steps), sampling_prob=sample_rate, relation=ADD_OR_REMOVE_ONE
    )


@stands_for("opacus.accountants.rdp.RDPAccountant")
@stands_for("opacus.accountants.gdp.GaussianAccountant")
@stands_for("opacus.accountants.prv.PRVAccountant")
class _Accountant:
    """Whatever their method is, the epsilon of the steps of a history."""

    def __init__(self):
        self.history = []

    def step(self, *, noise_multiplier, sample_rate):
        *before, last = self.history or [(noise_multiplier, sample_rate, 0)]
        if last[:2] != (noise_multiplier, sample_rate):
            before, last = self.history, (noise_multiplier, sample_rate, 0)
        self.history = [*before, (*last[:2], last[2] + 1)]

    def get_epsilon(self, delta, **options):
        events = [
            gaussian_event(multiplier, _sampling(num_steps, rate))
            for multiplier, rate, num_steps in self.history
        ]
        event = dpa.ComposedDpEvent(events)
        return accounting.epsilon_of(event, delta, relation=ADD_OR_REMOVE_ONE)

    def __getattr__(self, name):
        absent(f"`{name}` of an accountant")


@stands_for("opacus.accountants.registry.create_accountant")
def create_accountant(mechanism):
    if mechanism not in ("rdp", "gdp", "prv"):
        absent("a registry of accountants")
    return _Accountant()


@stands_for("opacus.accountants.utils.get_noise_multiplier")
def get_noise_multiplier(
    *, target_epsilon, target_delta, sample_rate, epochs=None, steps=None, **options
):
    sampling = _sampling(steps or epochs / sample_rate, sample_rate)
    return accounting.noise_multiplier(target_epsilon, target_delta, sampling)
