"""Objective perturbation for parties with a trusted aggregator (002, Algorithm 1)."""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from dp_accounting import UnsupportedDpEvent

from dpjax import _validate
from dpjax._types import REPLACE_ONE, Scalar
from dpjax.accounting import PrivacyGuarantee, discrete_gaussian_stddev, gaussian_stddev
from dpjax.accounting._objective import objective_noise
from dpjax.losses import MarginLoss
from dpjax.mechanisms import discrete_gaussian, gaussian
from dpjax.parties import PartyError, SecureSum
from dpjax.parties._secure_sum import Grid
from dpjax.solvers.papers._perturbed_objective import (
    Objective,
    check_data,
    least_gradient_norm,
    released_dtype,
    signed_rows,
)
from dpjax.solvers.training._calibration import check_budget
from dpjax.solvers.training._solution import Solution

_OUTPUT_SHARE = 0.01  # of the budget, as in `dp_objective_perturbation`
_OUTPUT_STEPS = 2**14  # of the output's grid, in a stddev of its noise
_LENGTHS = 2.0 ** -np.arange(8)  # of Newton's step; a gradient step is the ninth point
_STOP, _GRADIENTS, _HESSIAN = 0.0, 1.0, 2.0


def dp_multiparty_objective_perturbation(
    features: jax.Array,
    labels: jax.Array,
    *,
    secure_sum: SecureSum,
    epsilon: float,
    delta: float,
    regularization: float,
    loss: MarginLoss | None = None,
) -> Solution:
    """Objective perturbation for a trusted aggregator; its transcript is NOT private.

    J(w) = sum over all parties' records of phi(y <w, x>) + (N Lambda / 2) ||w||^2
    + <sum of eta_k, w>, where party k draws eta_k ~ N(0, stddev^2 / (K - C) I) once.
    Party 0, the aggregator, computes the minimizer from sums of gradients and Hessians
    at points that it chooses. Only this point, with output noise, is released.

    This is the private part of the paper's algorithm: `dp_objective_perturbation` with
    the records and the noise distributed over the parties. Secure sums hide the
    contribution of each party, but the difference of the sums of two rounds is a
    difference of gradients without noise, and the aggregator's points depend on it. So
    the transcript, which every party has, distinguishes neighboring data sets. Use
    `dp_multiparty_gradient_descent` if the parties do not trust each other.

    Args:
        features: this party's rows, shape (n_k, d); all n_k are public. Rows are
            clipped to norm 1.
        labels: shape (n_k,); above zero is the class +1, anything else the class -1,
            and a record of the label NaN has no gradient.
        secure_sum: `parties.SecureSum(transport)` of this party. Those who get the
            result may know the noise shares of C parties, but not their transcript. No
            party may drop out.
        epsilon: privacy parameter, positive and finite.
        delta: privacy parameter in (0, 1).
        regularization: lambda >= 0, per record, public.
        loss: phi with its bounds; by default `MarginLoss.logistic()`.

    Returns:
        A `Solution`, the same for all parties. Its stats are those of
        `dp_objective_perturbation`, and num_samples and num_parties.

    Raises:
        ValueError: If an argument is out of its range; never because of the values of
            features or labels.
        PartyError: If another party's arguments differ, before any record is used; it
            names the arguments. The loss is compared by its bounds and its program (see
            `SecureSum.agree`), features by d and the dtype of the result; labels are
            not compared. Later, if a party sends nothing, or a wrong size.

    Privacy:
        (epsilon, delta)-DP under replace-one for those who get only the released
        parameters and C noise shares. Given these, the sum of the other shares has at
        least the stddev, and the proof is that of `dp_objective_perturbation`: the
        exact minimizer has 99 per cent of the budget, and discrete Gaussian shares on a
        grid hide its distance to the computed one
        (`accounting.discrete_gaussian_stddev`). Rounding the parties' gradients to
        their grid counts as an error in the certificate ||grad J|| <= gamma. A point
        without this certificate is never released; NaN is released instead. The
        transcript, including the number of rounds, is not private. The noise eta is
        floating point, and no claim is made against attacks on its last bits.

    Example:
        >>> import jax
        >>> from dpjax.parties import SecureSum, run_parties
        >>> features = jax.random.normal(jax.random.key(0), (2, 3000, 3)) / 3
        >>> labels = features[..., 0] - features[..., 1]
        >>> def train(transport):
        ...     k = transport.party
        ...     return dp_multiparty_objective_perturbation(
        ...         features[k], labels[k], secure_sum=SecureSum(transport),
        ...         epsilon=1.0, delta=1e-6, regularization=0.01)
        >>> solution = run_parties(train, 2)[0]
        >>> predicted = features @ solution.params > 0
        >>> print((predicted == (labels > 0)).mean() > 0.95)
        True

    Reference:
        Rajkumar, Agarwal (2012), Algorithm 1 and Theorem 4.2, which holds only for the
        exact minimizer and not for the view of a third party. Iyengar et al. (2019),
        for the approximate one.
    """
    check_budget(epsilon, delta)
    _validate.non_negative(regularization=regularization)
    loss = MarginLoss.logistic() if loss is None else loss
    _validate.require(isinstance(loss, MarginLoss), "loss", loss, "a MarginLoss")
    is_fine = isinstance(secure_sum, SecureSum) and secure_sum.max_dropouts == 0
    _validate.require(is_fine, "secure_sum", secure_sum, "a SecureSum without dropouts")
    num_shares = secure_sum.num_secret_shares
    num_mine, num_features = check_data(features, labels)
    dtype = released_dtype(features)
    with jax.enable_x64(True):
        row = jnp.zeros((1, 1, 1))
        settings = {
            "epsilon": float(epsilon),
            "delta": float(delta),
            "regularization": float(regularization),
            "loss": (
                (loss.derivative_bound, loss.curvature_bound, loss.is_non_increasing),
                _gradients.trace(loss, row, row[0]),
                _hessian.trace(loss, row, row[0, 0]),
            ),
            "features": str((num_features, dtype)),
        }
        num_records = secure_sum.agree(settings, num_mine)
    num_parties = len(num_records)
    num_samples = sum(num_records)

    noise = objective_noise(
        (1 - _OUTPUT_SHARE) * epsilon,
        (1 - _OUTPUT_SHARE) * delta,
        regularization=regularization,
        is_non_increasing=loss.is_non_increasing,
        num_samples=num_samples,
        curvature_bound=loss.curvature_bound,
        derivative_bound=loss.derivative_bound,
    )
    total = regularization + noise.extra_regularization
    convexity = num_samples * total
    objective = Objective(loss, num_samples, num_features)
    all_noise = noise.stddev * math.sqrt(num_parties / num_shares)
    least = least_gradient_norm(objective, convexity, all_noise)
    gradient_norm = max(1e-8 * convexity, 2 * least)

    share_stddev = noise.stddev / math.sqrt(num_shares)
    most_records = max(num_records)
    # The rounding of a party moves a coordinate of the sum by at most one step.
    # Noise beyond 40 stddevs would be clipped; its probability is e^-800.
    most_rounding = gradient_norm / 8
    step = most_rounding / (num_parties * math.sqrt(num_features))
    search = _Search(
        objective,
        convexity,
        gradient_norm,
        most_rounding,
        Grid(
            _power_of_two(step),
            bound=most_records * loss.derivative_bound + 40 * share_stddev,
        ),
        Grid(
            _power_of_two(2.0**-44 * num_samples * loss.curvature_bound),
            bound=most_records * loss.curvature_bound,
        ),
    )
    random_bytes = secure_sum.random_bytes
    is_aggregator = secure_sum.transport.party == 0
    with jax.enable_x64(True):
        key = jax.random.wrap_key_data(
            jnp.asarray(np.frombuffer(random_bytes(8), np.uint32)), impl="threefry2x32"
        )
        share = gaussian(key, jnp.zeros(num_features, jnp.float64), stddev=share_stddev)
        rows = signed_rows(jnp.asarray(features), jnp.asarray(labels))
        party = _Party(secure_sum, search, _chunks(rows), np.asarray(share))
        params = party.minimize() if is_aggregator else party.serve()

    # The largest distance of the computed minimizers of neighbors.
    sensitivity = 2 * gradient_norm / convexity
    output_budget = (_OUTPUT_SHARE * epsilon, _OUTPUT_SHARE * delta)
    continuous = gaussian_stddev(*output_budget, sensitivity=sensitivity)
    slopes = num_samples * loss.derivative_bound
    longest = (slopes + all_noise * (math.sqrt(num_features) + 60)) / convexity
    grid = Grid(
        _power_of_two(continuous / math.sqrt(num_shares)) / _OUTPUT_STEPS, bound=longest
    )
    output_share = discrete_gaussian_stddev(
        *output_budget,
        sensitivity=grid.sensitivity(sensitivity, num_features),
        num_shares=num_shares,
        num_coordinates=num_features,
    )

    def output() -> np.ndarray:
        mine = params if is_aggregator else np.zeros(num_features)
        draw = discrete_gaussian(
            num_features, stddev=output_share, random_bytes=random_bytes
        )
        return grid.to_integers(mine) + draw

    released = grid.to_reals(secure_sum(output, num_features))
    released = np.where(np.isnan(params), np.nan, released)
    stats: dict[str, Scalar] = {
        "num_samples": num_samples,
        "num_parties": num_parties,
        "stddev": noise.stddev,
        "regularization": total,
        "extra_regularization": noise.extra_regularization,
        "gradient_norm": gradient_norm,
        "output_stddev": math.sqrt(num_shares) * output_share * grid.step,
    }
    guarantee = PrivacyGuarantee.of(
        epsilon,
        delta,
        dp_event=UnsupportedDpEvent(),
        relation=REPLACE_ONE,
        num_samples=num_samples,
    )
    return Solution(
        jnp.asarray(released, dtype),
        PrivacyGuarantee(
            epsilon,
            delta,
            REPLACE_ONE,
            guarantee.dp_event,
            f"{guarantee} This holds only for the released parameters: the transcript "
            "is NOT private, and every party has it.",
        ),
        stats,
    )


class _Search(NamedTuple):
    """The objective, the required accuracy, and the grids of the sums; all public."""

    objective: Objective
    convexity: float
    gradient_norm: float
    most_rounding: float
    gradient_grid: Grid
    hessian_grid: Grid


class _Party(NamedTuple):
    """One party's side of the search that the aggregator, party 0, directs."""

    secure_sum: SecureSum
    search: _Search
    chunks: jax.Array  # this party's rows y x
    noise: np.ndarray  # eta_k

    def minimize(self) -> np.ndarray:
        """Directs the search; returns w with a certified gradient, or NaN.

        As in `dp_objective_perturbation`, each round tries Newton's step at several
        lengths and a gradient step, and keeps the point with the smallest gradient.
        """
        objective, convexity = self.search.objective, self.search.convexity
        smoothness = convexity + objective.num_samples * objective.loss.curvature_bound
        params = np.zeros(objective.num_features)
        gradient = self._sum_gradients(np.tile(params, (len(_LENGTHS) + 1, 1)))[0]
        norm = float(np.linalg.norm(gradient))
        while not self._is_certified(params, norm):
            hessian = self._sum_hessians(params)
            newton = scipy.linalg.solve(hessian, gradient, assume_a="pos")
            moves = np.vstack([np.outer(_LENGTHS, newton), gradient / smoothness])
            points = params - moves
            gradients = self._sum_gradients(points)
            norms = np.linalg.norm(gradients, axis=1)
            best = int(np.argmin(norms))
            if norms[best] >= norm:  # rounding has been reached
                params = np.full_like(params, np.nan)
                break
            params, gradient = points[best], gradients[best]
            norm = float(norms[best])
        self._broadcast(_STOP, params)
        return params

    def serve(self) -> np.ndarray:
        """Takes part in the sums until the aggregator sends the result; returns it."""
        while True:
            kind, points = self._broadcast()
            if kind == _STOP:
                return points[0]
            self._add(kind, points)

    def _is_certified(self, params: np.ndarray, norm: float) -> bool:
        # The noise is rounded only with the gradients, to their grid.
        objective = self.search.objective
        rounding = objective.rounding(
            self.search.convexity, np.linalg.norm(params), 0.0
        )
        norm *= 1 + (objective.num_features + 8) * 2.0**-52
        slack = rounding + self.search.most_rounding
        return bool(norm + slack <= self.search.gradient_norm)

    def _sum_gradients(self, points: np.ndarray) -> np.ndarray:
        self._broadcast(_GRADIENTS, points)
        total = self._add(_GRADIENTS, points).reshape(points.shape)
        return self.search.gradient_grid.to_reals(total) + (
            self.search.convexity * points
        )

    def _sum_hessians(self, point: np.ndarray) -> np.ndarray:
        self._broadcast(_HESSIAN, point)
        total = self._add(_HESSIAN, point[None]).reshape(point.size, point.size)
        return self.search.hessian_grid.to_reals(total) + (
            self.search.convexity * np.eye(point.size)
        )

    def _broadcast(
        self, kind: float = _STOP, points: np.ndarray | None = None
    ) -> tuple[float, np.ndarray]:
        """Sends the aggregator's message to all, padded with zeros to one size."""
        words = np.zeros(1 + (len(_LENGTHS) + 1) * self.search.objective.num_features)
        if points is not None:
            words[: 1 + points.size] = [kind, *points.reshape(-1)]
        transport = self.secure_sum.transport
        message = transport.exchange(
            words.tobytes() if transport.party == 0 else b"", words.nbytes
        )[0]
        if message is None:
            raise PartyError([0], "the aggregator sent nothing")
        words = np.frombuffer(message)
        return words[0], words[1:].reshape(len(_LENGTHS) + 1, -1)

    def _add(self, kind: float, points: np.ndarray) -> np.ndarray:
        """Takes part in one sum over all parties."""
        loss = self.search.objective.loss
        if kind == _GRADIENTS:
            grid = self.search.gradient_grid
            values = np.asarray(_gradients(loss, self.chunks, points)) + self.noise
        else:
            grid = self.search.hessian_grid
            values = np.asarray(_hessian(loss, self.chunks, points[0]))
        integers = grid.to_integers(values.reshape(-1))
        return self.secure_sum(lambda: integers, integers.size)


def _chunks(rows: jax.Array) -> jax.Array:
    """About sqrt(n) chunks of as many rows, as the rounding bound counts them."""
    size = math.isqrt(len(rows) - 1) + 1
    rows = jnp.pad(rows, ((0, -len(rows) % size), (0, 0)))
    return rows.reshape(-1, size, rows.shape[1])


@partial(jax.jit, static_argnums=0)
def _gradients(loss: MarginLoss, chunks: jax.Array, points: jax.Array) -> jax.Array:
    slopes = loss.derivative(jnp.einsum("pd,cbd->cpb", points, chunks))
    return jnp.einsum("cpb,cbd->cpd", slopes, chunks).sum(axis=0)


@partial(jax.jit, static_argnums=0)
def _hessian(loss: MarginLoss, chunks: jax.Array, point: jax.Array) -> jax.Array:
    weights = loss.curvature(chunks @ point)
    return jnp.einsum("cb,cbd,cbe->de", weights, chunks, chunks)


def _power_of_two(value: float) -> float:
    """The largest power of two that is not above a value."""
    return math.ldexp(0.5, math.frexp(value)[1])
