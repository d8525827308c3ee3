"""Sparse learning by private hard thresholding (003 Algorithm 5, 004 Algorithm 5)."""

from dataclasses import dataclass

import optax

from dpjax import _validate
from dpjax._sharding import check_key_of_rows
from dpjax._tree import arrays, num_coordinates, register
from dpjax._types import Key, LossFn, PyTree, Scalar
from dpjax.batching import Disjoint
from dpjax.estimators import Estimator
from dpjax.solvers.papers._peeled_steps import (
    PeeledStep,
    Peeling,
    check_sparsity,
    papers_num_steps,
)
from dpjax.solvers.training._calibration import unit_of
from dpjax.solvers.training._loop import Batches, Execution, check_steps, iterate
from dpjax.solvers.training._solution import Solution


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

    w <- the s largest entries of w - eta g, chosen and released with noise
    (`mechanisms.peeling`), g the robust mean of per-sample gradients on the step's own
    batch of floor(n / T) records. With `SmoothedTruncation` this is Algorithm 5 of
    paper 004, with `Truncation` Algorithm 5 of paper 003.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`.
        params: where to start; public.
        data: pytree, leaves of shape (n, ...); n is public.
        key: a typed key.
        epsilon: privacy of the whole run, positive.
        delta: privacy of the whole run, in [0, 1); 0 gives pure epsilon-DP, with
            Laplace noise that grows with s instead of sqrt(s).
        sparsity: s, the number of nonzero parameters. The theory uses more than the
            truth has; the papers' experiments use twice as many.
        estimator: the robust mean, with a finite sensitivity; its scale is public.
        learning_rate: eta, in theory 2 / (3 times the loss's smoothness).
        num_steps: T; by default floor(log n), as in the papers.
        execution: how it runs: microbatches, callback, checkpoint.

    Returns:
        A `Solution`. Its stats hold num_steps, batch_size, linf_sensitivity (of eta g),
        noise_scale, of each released entry, and noise_norm = noise_scale sqrt(s): the
        noise of the last step hides parameters with a smaller l2 norm than that.

    Privacy:
        (epsilon, delta)-DP under replace-one for every input, and so are all iterates
        together: a replaced record lies in one batch, whose peeling has the whole
        budget (`transforms.peel`). The loss function, params, eta, s and T must not
        depend on the data.

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
    check_steps(num_samples, num_steps, Disjoint())
    peeling = Peeling.tight(sparsity, epsilon, delta)
    step = ThresholdingStep(
        loss_fn=loss_fn,
        batches=Batches.of(data, num_steps, Disjoint(), execution),
        estimator=estimator,
        learning_rate=learning_rate,
        rho=peeling.rho,
        sparsity=sparsity,
        noise=peeling.noise,
        num_coordinates=num_coordinates(params),
    )
    params, _ = iterate(step, params, data, key=key, execution=execution)
    stats = peeling.stats(num_samples, num_steps, step.sensitivity)
    return Solution(params, peeling.guarantee(num_samples, unit_of(data)), stats)


@register("estimator", "learning_rate", "rho", "key")
@dataclass(frozen=True, kw_only=True)
class ThresholdingStep(PeeledStep):
    """w <- peeling of w - eta g, g the robust mean of gradients (003, 004: Alg. 5)."""

    estimator: Estimator
    num_coordinates: int

    @property
    def sensitivity(self) -> Scalar:
        return self.sensitivity_of(self.estimator, self.num_coordinates)

    def optimizer(self, params: PyTree) -> optax.GradientTransformation:
        del params
        return self.peeled(self.estimator, self.sensitivity)
