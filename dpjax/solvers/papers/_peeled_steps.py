"""Steps on disjoint batches that end in a private peeling: what solvers share."""

import math
from dataclasses import dataclass
from typing import NamedTuple, cast

import optax
from dp_accounting import ZCDpEvent

from dpjax import _validate
from dpjax._rounding import ROUNDED_UP
from dpjax._tree import num_coordinates
from dpjax._types import Key, PeelingNoise, PyTree, Scalar, Unit
from dpjax.accounting import PrivacyGuarantee, epsilon_to_rho
from dpjax.estimators import Estimator
from dpjax.solvers.training._loop import OptaxStep
from dpjax.transforms import peel


class Peeling(NamedTuple):
    """Chooses and releases the entries of a step, and prices them.

    Attributes:
        sparsity: s.
        rho: zCDP cost of one peeling.
        noise: "gumbel", or "laplace" as in the papers.
        privacy: (epsilon, delta) of one peeling, hence of all on disjoint batches.
    """

    sparsity: int
    rho: float
    noise: PeelingNoise
    privacy: tuple[float, float]

    @classmethod
    def tight(cls, sparsity: int, epsilon: float, delta: float) -> "Peeling":
        """Returns the peeling with the least noise that a budget affords."""
        if delta == 0:
            rho = 5 * epsilon**2 / (18 * sparsity)
            return cls(sparsity, rho, "laplace", (epsilon, delta))
        return cls(sparsity, epsilon_to_rho(epsilon, delta), "gumbel", (epsilon, delta))

    def stats(self, num_samples: int, num_steps: int, sensitivity: Scalar) -> dict:
        """Returns what was taken, and how large the noise of the last step is."""
        rounds = 1.0 if self.noise == "gumbel" else 2.5
        scale = sensitivity * math.sqrt(rounds * self.sparsity / self.rho)
        return {
            "num_steps": num_steps,
            "batch_size": num_samples // num_steps,
            "linf_sensitivity": sensitivity,
            "noise_scale": scale,
            "noise_norm": scale * math.sqrt(self.sparsity),
        }

    def guarantee(self, num_samples: int, unit: Unit = "record") -> PrivacyGuarantee:
        """Returns the guarantee of all steps."""
        return PrivacyGuarantee.of(
            *self.privacy,
            dp_event=ZCDpEvent(self.rho),
            num_samples=num_samples,
            unit=unit,
        )


@dataclass(frozen=True, kw_only=True)
class PeeledStep(OptaxStep):
    """A step of size eta along a mean g of gradients, which ends in a peeling."""

    learning_rate: Scalar
    rho: Scalar
    sparsity: int
    noise: PeelingNoise

    def sensitivity_of(self, estimator: Estimator, num_coordinates: int) -> Scalar:
        """The linf sensitivity of eta g."""
        change = estimator.sensitivity(self.batches.divisor, num_coordinates).linf
        return self.learning_rate * change * ROUNDED_UP

    def peeled(
        self, estimator: Estimator, sensitivity: Scalar
    ) -> optax.GradientTransformation:
        """Moves by eta g, and keeps a private choice of entries."""
        return optax.chain(
            self.mean(estimator),
            optax.sgd(self.learning_rate),
            peel(
                self.sparsity,
                rho=self.rho,
                sensitivity=sensitivity,
                limit=self.learning_rate * cast(Scalar, estimator.limit) * ROUNDED_UP,
                key=cast(Key, self.key),
                noise=self.noise,
            ),
        )


def papers_num_steps(num_samples: int) -> int:
    """Returns floor(log n), at least 1."""
    return max(1, math.floor(math.log(num_samples)))


def check_sparsity(sparsity: int, params: PyTree) -> None:
    """Requires 1 <= sparsity <= the entries of all leaves together."""
    _validate.count(sparsity=sparsity)
    num_params = num_coordinates(params)
    rule = f"at most the {num_params} entries of the parameters"
    _validate.require(sparsity <= num_params, "sparsity", sparsity, rule)
