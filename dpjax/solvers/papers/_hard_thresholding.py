"""Sparse learning by private hard thresholding (003 Algorithm 5, 004 Algorithm 5)."""

import abc
import math
from dataclasses import dataclass
from typing import NamedTuple, cast

import optax
from dp_accounting import ZCDpEvent

from dpjax import _validate
from dpjax._rounding import ROUNDED_UP
from dpjax._sharding import check_key_of_rows
from dpjax._tree import arrays, num_coordinates, register
from dpjax._types import Key, LossFn, PeelingNoise, PyTree, Scalar, Unit
from dpjax.accounting import PrivacyGuarantee, epsilon_to_rho
from dpjax.batching import Disjoint
from dpjax.estimators import Estimator
from dpjax.solvers.training._calibration import unit_of
from dpjax.solvers.training._loop import Batches, Execution, OptaxStep, iterate
from dpjax.solvers.training._solution import Solution
from dpjax.transforms import peel


def dp_iterative_hard_thresholding(
    loss_fn: LossFn,
    params: PyTree,
    data: PyTree,
    *,
    key: Key,
    epsilon: float,
    delta: float = 0.0,
    sparsity: int,
    estimator: Estimator,
    learning_rate: float,
    num_steps: int | None = None,
    execution: Execution = Execution(),
) -> Solution:
    """Minimizes the mean loss over sparse parameters, with private hard thresholding.

    A step replaces w by the s largest entries of w - eta g, which are chosen and
    released with noise (`mechanisms.peeling`). g is the robust mean of per-example
    gradients on the step's own batch of floor(n / T) records. With `SmoothedTruncation`
    this is Algorithm 5 of paper 004, with `Truncation` Algorithm 5 of paper 003.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`.
        params: where to start; public.
        data: pytree, leaves of shape (n, ...); n is public.
        key: a typed key.
        epsilon: privacy of the whole run, positive.
        delta: privacy of the whole run, in [0, 1); 0 gives pure epsilon-DP, with
            Laplace noise that grows with s instead of sqrt(s).
        sparsity: s, the number of nonzero parameters. The theory asks for a larger
            number than the true parameters have; the papers' experiments use twice it.
        estimator: the robust mean, with a finite sensitivity; its scale is public.
        learning_rate: eta, in theory 2 / (3 times the loss's smoothness).
        num_steps: T; by default floor(log n), as in the papers.
        execution: microbatches, callback, checkpoint.

    Returns:
        A `Solution`. Its stats hold num_steps, batch_size, linf_sensitivity (of eta g),
        noise_scale (of each released entry), and noise_norm = noise_scale sqrt(s).
        Parameters with an l2 norm below noise_norm are hidden by the last step's noise.

    Privacy:
        (epsilon, delta)-DP under replace-one for every input, and so are all iterates
        together: a replaced record lies in one batch, and the peeling of this batch has
        the whole budget (`transforms.peel`). The loss function, params, eta, s and T
        must not depend on the data.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np
        >>> from dpjax import losses
        >>> from dpjax.estimators import SmoothedTruncation
        >>> features = np.random.default_rng(0).normal(size=(20_000, 50))
        >>> targets = features[:, 7] - features[:, 9]
        >>> solution = dp_iterative_hard_thresholding(
        ...     losses.squared, jnp.zeros(50), (features, targets),
        ...     key=jax.random.key(1), epsilon=1.0, delta=1e-6, sparsity=2,
        ...     estimator=SmoothedTruncation(5.0), learning_rate=0.6)
        >>> print(np.flatnonzero(solution.params))
        [7 9]

    Reference:
        Hu, Ni, Xiao, Wang (2022), Algorithm 5, Theorem 8; Tao, Wu, Cheng, Wang (2022),
        Algorithm 5.
    """
    _validate.require(callable(loss_fn), "loss_fn", loss_fn, "callable")
    _validate.positive(epsilon=epsilon, learning_rate=learning_rate)
    _validate.delta(delta)
    check_key_of_rows(key, data)
    check_sparsity(sparsity, params)
    _validate.bounded_estimator(estimator)
    data = arrays(data)
    num_samples = _validate.leading_size(data, "data")
    if num_steps is None:
        num_steps = papers_num_steps(num_samples)
    peeling = Peeling.tight(sparsity, epsilon, delta)
    step = ThresholdingStep(
        loss_fn=loss_fn,
        batches=Batches.of(data, num_steps, Disjoint(), execution),
        estimator=estimator,
        learning_rate=learning_rate,
        rho=peeling.rho,
        sparsity=sparsity,
        noise=peeling.noise,
    )
    params, _ = iterate(step, params, data, key=key, execution=execution)
    stats = peeling.stats(num_samples, num_steps, step.sensitivity_at(params))
    return Solution(params, peeling.guarantee(num_samples, unit_of(data)), stats)


class Peeling(NamedTuple):
    """The peeling of a step, which chooses and releases s entries, and its privacy.

    Attributes:
        sparsity: s.
        rho: zCDP cost of one peeling.
        noise: "gumbel", or "laplace" as in the papers.
        privacy: (epsilon, delta) of one peeling, and so of all on disjoint batches.
    """

    sparsity: int
    rho: float
    noise: PeelingNoise
    privacy: tuple[float, float]

    @classmethod
    def tight(cls, sparsity: int, epsilon: float, delta: float) -> "Peeling":
        """Returns the peeling with the least noise that a budget affords."""
        if delta == 0:
            # The scale of the noise is then 3 s / epsilon times the sensitivity.
            rho = 5 * epsilon**2 / (18 * sparsity)
            return cls(sparsity, rho, "laplace", (epsilon, delta))
        return cls(sparsity, epsilon_to_rho(epsilon, delta), "gumbel", (epsilon, delta))

    def stats(self, num_samples: int, num_steps: int, sensitivity: Scalar) -> dict:
        """Returns the stats of a `Solution`, for the sensitivity of the last step."""
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
        event = ZCDpEvent(self.rho)
        return PrivacyGuarantee.of(
            *self.privacy, dp_event=event, num_samples=num_samples, unit=unit
        )


@dataclass(frozen=True, kw_only=True)
class PeeledStep(OptaxStep):
    """Step to the peeling of w - eta g; the bound on gradients may depend on w."""

    learning_rate: Scalar
    rho: Scalar
    sparsity: int
    noise: PeelingNoise

    @abc.abstractmethod
    def estimator_at(self, params: PyTree) -> Estimator:
        """Returns the robust mean at released parameters."""

    def sensitivity_at(self, params: PyTree) -> Scalar:
        """Returns the linf sensitivity of eta g."""
        estimator, size = self.estimator_at(params), num_coordinates(params)
        change = estimator.sensitivity(self.batches.divisor, size).linf
        return self.learning_rate * change * ROUNDED_UP

    def optimizer(self, params: PyTree) -> optax.GradientTransformation:
        """Returns the chain of the mean without noise, a step, and private peeling."""
        estimator = self.estimator_at(params)
        return optax.chain(
            self.mean(estimator),
            optax.sgd(self.learning_rate),
            peel(
                self.sparsity,
                rho=self.rho,
                sensitivity=self.sensitivity_at(params),
                limit=self.learning_rate * cast(Scalar, estimator.limit) * ROUNDED_UP,
                key=cast(Key, self.key),
                noise=self.noise,
            ),
        )


@register("estimator", "learning_rate", "rho", "key")
@dataclass(frozen=True, kw_only=True)
class ThresholdingStep(PeeledStep):
    """A step with one robust mean (003, 004: Algorithm 5)."""

    estimator: Estimator

    def estimator_at(self, params: PyTree) -> Estimator:
        del params
        return self.estimator


def papers_num_steps(num_samples: int) -> int:
    """Returns floor(log n), at least 1."""
    return max(1, math.floor(math.log(num_samples)))


def check_sparsity(sparsity: int, params: PyTree) -> None:
    """Requires 1 <= sparsity <= the number of entries of params."""
    _validate.count(sparsity=sparsity)
    num_params = num_coordinates(params)
    rule = f"at most the {num_params} entries of the parameters"
    _validate.require(sparsity <= num_params, "sparsity", sparsity, rule)
