"""Samples in units of public scales, with a scale for every coordinate."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import numpy as np

from dpjax import _validate
from dpjax._rounding import LARGEST, SMALLEST
from dpjax._sums.fold import Unrounded
from dpjax._sums.stream import SampleStream
from dpjax._tree import as_float, broadcast, by_row, like, register
from dpjax._types import PyTree, Scalar
from dpjax.estimators._estimator import Estimator


@register("estimator", "scales")
@dataclass(frozen=True)
class Measured(Estimator):
    """The estimator of x / s for each sample x; its means are in units of the scales.

    Each sample is divided separately, so the estimator's limit and sensitivity hold
    here too, however the division rounds. `Scaled` describes the attributes.
    """

    estimator: Estimator
    scales: PyTree

    @property
    def limit(self) -> Scalar | None:
        return self.estimator.limit

    def influence(self, sample: PyTree) -> PyTree:
        return self.influence_fn()(sample)

    def influence_fn(self) -> Callable[[PyTree], PyTree]:
        influence = self.estimator.influence_fn()
        return lambda sample: influence(self._ratios(sample))

    def _sensitivity(self, num_samples, num_coordinates, relation, rounded):
        args = num_samples, num_coordinates, relation
        return self.estimator.sensitivity(*args, rounded=rounded)

    def fold(
        self, stream: SampleStream, *, normalize_by: Scalar
    ) -> tuple[Unrounded, PyTree]:
        """Returns the mean of samples that are divided as they are read.

        Factors are multiplied out, because an outer product divided entry by entry is
        no longer an outer product.
        """

        def make_samples(shared: PyTree, rows: PyTree) -> tuple[PyTree, PyTree]:
            samples, aux = stream.make_samples(shared, rows)
            size = _validate.leading_size(rows, "samples")
            return by_row(self._ratios, size)(samples), aux

        ratios = replace(stream, make_samples=make_samples).written_out()
        return self.estimator.fold(ratios, normalize_by=normalize_by)

    def _ratios(self, sample):
        def ratio(x, scale):
            x = as_float(x)
            rule = f"numbers, or arrays of the shape of their leaves, as {x.shape}"
            is_fine = np.shape(scale) in ((), x.shape)
            _validate.require(is_fine, "scales", np.shape(scale), rule)
            return x / like(scale, x)

        return jax.tree.map(ratio, sample, broadcast(self.scales, sample, "scales"))


@register("estimator", "scales")
@dataclass(frozen=True)
class Scaled:
    """An estimator with a public scale for each coordinate, and noise in proportion.

    Pass it to `privatize` in place of an estimator: samples are divided by the scales,
    their robust mean gets the noise of the estimator, and the release is multiplied by
    the scales. So a coordinate of scale s has s times the threshold and s times the
    noise. A single threshold for gradients that differ by orders of magnitude would
    clip large gradients, or add too much noise to small gradients. Norms are computed
    after the division.

    Scales may depend on the data only through earlier releases, such as the second
    moments of private gradients.

    With `robust_grad`, use `measured` as the estimator: its means are in units of the
    scales. Add noise for its sensitivity, and convert the result with `restored`.

    Sensitivity:
        In units of the scales, the sensitivity equals the sensitivity of the estimator,
        under the same relation, because each sample is divided separately before the
        influence bounds it. Multiplying the release is post-processing. Both hold with
        any rounding, overflow and underflow.

    Attributes:
        estimator: estimator of the ratios, with Gaussian noise: not `Mean`,
            `MedianOfMeans` or `TrimmedMean`. Its threshold, scale or norm is in units
            of the scales.
        scales: a pytree like a sample, or a prefix of such a pytree. Its leaves are
            numbers, each for all leaves below it, or arrays of the shape of their leaf;
            in [1e-20, 1e30], in units of the samples. Both fields are pytree leaves.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax.estimators import Scaled, Winsorization
        >>> from dpjax.transforms import privatize
        >>> scaled = Scaled(Winsorization(1.0), {"bias": 0.1, "kernel": 10.0})
        >>> transform = privatize(scaled, noise_multiplier=1.0, key=jax.random.key(0))
        >>> params = {"bias": jnp.zeros(1000), "kernel": jnp.zeros(1000)}
        >>> grads = jax.tree.map(lambda x: jnp.zeros((50, 1000)), params)
        >>> mean, _ = transform.update(grads, transform.init(params))
        >>> print(f"{mean['bias'].std():.2f} {mean['kernel'].std():.0f}")
        0.18 18

    Reference:
        Pichapati, Suresh, Yu, Reddi, Kumar (2019), "AdaCliP: adaptive clipping for
        private SGD", for scales that follow the noise; Ganesh, McMahan, Thakurta
        (2025), "On design principles for private adaptive optimizers".
    """

    estimator: Estimator
    scales: PyTree

    def __post_init__(self):
        base, leaves = self.estimator, jax.tree.leaves(self.scales)
        rule = "one with Gaussian noise, such as Winsorization or Clipping"
        is_fine = isinstance(base, Estimator) and base.limit is not None
        is_fine = is_fine and base.noise == "gaussian" and not base.groups_by_index
        _validate.require(is_fine, "estimator", base, rule)
        _validate.require(bool(leaves), "scales", self.scales, "numbers, or a pytree")
        for scale in leaves:
            _validate.within(SMALLEST, LARGEST, scales=scale)

    @property
    def measured(self) -> Measured:
        """Returns the estimator of samples in units of the scales."""
        return Measured(self.estimator, self.scales)

    def restored(self, released: PyTree) -> PyTree:
        """Converts a noisy result of `measured` to units of the samples."""
        scales = broadcast(self.scales, released, "scales")
        return jax.tree.map(lambda x, scale: x * like(scale, x), released, scales)
