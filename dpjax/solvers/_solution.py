"""What a solver returns."""

import dataclasses
import statistics
from functools import partial

import jax
import jax.numpy as jnp

from dpjax._types import ArrayLike, PyTree, Scalar
from dpjax._validate import probability, require
from dpjax.accounting import PrivacyGuarantee
from dpjax.solvers._curves import Curves


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "stats", "standard_errors", "correlations"],
    meta_fields=["privacy"],
)
@dataclasses.dataclass(frozen=True)
class Solution:
    """Released parameters, and what they have cost.

    A pytree: the guarantee is static metadata, so that a solver may be called under
    `jit` and `vmap`. Everything in it is released under the guarantee or public.

    Attributes:
        params: the released parameters.
        privacy: the guarantee for them. Under `vmap` over keys it is that of one run;
            releasing k runs costs k of them. A sweep over hyperparameters of which
            only the best is released is not private at the price of one run; of
            such a choice `dpjax.tuning.dp_select` states the price.
        stats: public numbers that were taken: steps, noise, sensitivity, batch size.
        standard_errors: of params, in their shape, where the solver was asked for
            intervals; infinite where there is none. Else None.
        correlations: of the errors of a linear model's params, shape (d, d), where
            there are standard errors; zero beside an infinite one. They give the
            standard errors of sums of params, such as those in other units.
    """

    params: PyTree
    privacy: PrivacyGuarantee
    stats: dict[str, Scalar]
    standard_errors: PyTree | None = None
    correlations: jax.Array | None = None

    def predict(self, features: ArrayLike) -> jax.Array:
        """Returns predictions of a linear or an additive model, without offsets.

        Of a loss with a link, such as logistic or Poisson, they are on the scale of the
        link: log odds, or the logarithm of a mean.

        Args:
            features: shape (n, d), in the units of the fit.

        Returns:
            Shape (n,), or (n, K) with K outputs.

        Raises:
            ValueError: where params are of another kind, or the shape does not fit.

        Example:
            >>> import jax.numpy as jnp
            >>> from dpjax.accounting import PrivacyGuarantee
            >>> privacy = PrivacyGuarantee.non_private()
            >>> solution = Solution(jnp.array([1.0, 2.0]), privacy, {})
            >>> print(solution.predict([[3.0, 4.0]]))
            [11.]
        """
        if isinstance(self.params, Curves):
            return self.params.predict(features)
        weights = self.params
        require(
            isinstance(weights, jax.Array) and weights.ndim in (1, 2),
            "params",
            type(weights),
            "those of a linear or additive model, if it is to predict",
        )
        columns = jnp.asarray(features, weights.dtype)
        require(
            columns.ndim == 2 and columns.shape[1] == len(weights),
            "features",
            columns.shape,
            f"an array of {len(weights)} columns",
        )
        return jnp.matmul(columns, weights, precision=jax.lax.Precision.HIGHEST)

    def interval(self, level: float = 0.95) -> PyTree:
        """Returns an interval for each of the params, from their standard errors.

        params -+ z standard_errors, for z the quantile of a normal law. It costs no
        privacy. What it covers, and when, the solver's docstring says.

        Args:
            level: the probability of each interval, in (0, 1).

        Returns:
            Lower and upper ends, shape (2, ...) in each leaf. An interval that is
            infinite says that no finite one is honest.

        Raises:
            ValueError: where the level is out of its range, or there are no errors.

        Example:
            >>> import jax.numpy as jnp
            >>> from dpjax.accounting import PrivacyGuarantee
            >>> privacy, errors = PrivacyGuarantee.non_private(), jnp.array([0.5])
            >>> solution = Solution(jnp.array([1.0]), privacy, {}, errors)
            >>> low, high = solution.interval(0.9)[:, 0]
            >>> print(f"{low:.2f} {high:.2f}")
            0.18 1.82
        """
        probability(level=level)
        errors = self.standard_errors
        if errors is None:
            rule = "those of a solver that was asked for intervals"
            raise ValueError(f"standard_errors is None; it must be {rule}")
        z = statistics.NormalDist().inv_cdf(0.5 + level / 2)

        def around(x: jax.Array, error: jax.Array) -> jax.Array:
            x = x.astype(error.dtype)  # counts are integers
            return jnp.stack([x - z * error, x + z * error])

        return jax.tree.map(around, self.params, errors)

    def shapes(self) -> dict[int, tuple[jax.Array, jax.Array]]:
        """Returns the grid and the curve of each column of an additive model.

        Returns:
            As of `Curves.shapes`.

        Raises:
            ValueError: where params are of another kind.
        """
        require(
            isinstance(self.params, Curves),
            "params",
            type(self.params),
            "those of an additive model, which have shapes",
        )
        return self.params.shapes()
