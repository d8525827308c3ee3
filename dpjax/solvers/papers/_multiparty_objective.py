"""Objective perturbation for parties with a trusted aggregator (002, Algorithm 1).

Given C noise shares, the sum of the other shares has at least the stddev that
`dp_objective_perturbation` needs, so the proof there applies, with discrete Gaussian
shares on a grid for the output noise. Its certificate counts the rounding of the
parties' gradients to their grid as an error. Theorem 4.2 of the paper holds only for
the exact minimizer, and not for the view of a third party.
"""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from dpjax import _validate
from dpjax._tree import real_pair
from dpjax._types import PyTree
from dpjax.accounting import gaussian_stddev
from dpjax.accounting._discrete_gaussian import discrete_gaussian_stddev
from dpjax.losses import MarginLoss
from dpjax.mechanisms import discrete_gaussian, gaussian
from dpjax.parties import SecureSum
from dpjax.parties._secure_sum import Grid, PartyError
from dpjax.solvers.papers._objective_perturbation import (
    OUTPUT_SHARE,
    Objective,
    Perturbation,
    checked_loss,
    released_dtype,
    signed_rows,
)
from dpjax.solvers.training._calibration import check_budget, unsupported
from dpjax.solvers.training._solution import Solution

_OUTPUT_STEPS = 2**14  # steps of the output's grid in one stddev of its noise
_LENGTHS = 2.0 ** -np.arange(8)  # Newton step lengths; the ninth is a gradient step
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
    """Fits a classifier for a trusted aggregator; its transcript is NOT private.

    J(w) = sum over all parties' records of phi(y <w, x>) + (N Lambda / 2) ||w||^2
    + <sum_k eta_k, w>, where party k draws eta_k ~ N(0, stddev^2 / (K - C) I) once.
    Party 0, the aggregator, finds the minimizer from sums of gradients and Hessians.
    Only this point, with output noise, is released. Every party has the transcript. It
    distinguishes neighboring data sets, because the difference of two rounds' sums has
    no noise. Without mutual trust, use `dp_multiparty_gradient_descent`.

    Args:
        features: this party's rows, shape (n_k, d), clipped to norm 1. n_k is public.
        labels: shape (n_k,), as in `dp_objective_perturbation`.
        secure_sum: this party's `SecureSum`, without dropouts; C noise shares may leak.
        epsilon: privacy parameter, positive and finite.
        delta: privacy parameter in (0, 1).
        regularization: lambda >= 0, per record, public.
        loss: phi with its bounds; by default `losses.logistic`.

    Returns:
        A `Solution`, the same for all parties, with the stats of
        `dp_objective_perturbation`, num_samples and num_parties.

    Raises:
        ValueError: If an argument is invalid; never because of the data's values.
        RuntimeError: If another party's arguments differ (see `SecureSum.agree`),
            before any record is used; or if a party sends nothing, or a wrong size.

    Privacy:
        (epsilon, delta)-DP under replace-one for everyone who gets only the released
        parameters and C noise shares. The transcript, including the number of rounds,
        is not private. If the computed point has no certificate, NaN is released. The
        noise eta is floating point: no claim is made against attacks on its last bits.

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
        >>> predicted = features @ run_parties(train, 2)[0].params > 0
        >>> print((predicted == (labels > 0)).mean() > 0.95)
        True

    Reference:
        Rajkumar, Agarwal (2012), Algorithm 1 and Theorem 4.2; Iyengar et al. (2019).
    """
    check_budget(epsilon, delta)
    loss = checked_loss(loss, regularization)
    is_fine = isinstance(secure_sum, SecureSum) and secure_sum.max_dropouts == 0
    _validate.require(is_fine, "secure_sum", secure_sum, "a SecureSum(max_dropouts=0)")
    features, labels = real_pair(features, labels, "labels")
    num_features, dtype = features.shape[1], released_dtype(features)
    numbers = {"epsilon": epsilon, "delta": delta, "regularization": regularization}
    settings = {name: float(x) for name, x in numbers.items()}
    with jax.enable_x64(True):
        settings |= {"loss": _described(loss), "features": str((num_features, dtype))}
        num_records = secure_sum.agree(settings, len(features))
    num_samples, num_parties = sum(num_records), len(num_records)
    num_shares = secure_sum.num_secret_shares
    objective, share = Objective(loss, num_samples, num_features), 1 - OUTPUT_SHARE
    budget = share * epsilon, share * delta
    plan = Perturbation.of(objective, regularization, *budget)
    # The secret shares alone have plan.stddev; the shares of all parties have more.
    all_noise = plan.stddev * math.sqrt(num_parties / num_shares)
    least = plan.least_gradient_norm(all_noise)
    gradient_norm = max(1e-8 * plan.convexity, 2 * least)
    party = _Party(secure_sum, plan, gradient_norm, num_records)
    params = party.minimizer(features, labels)
    released, output_stddev = _with_noise(
        params, secure_sum, plan, all_noise, gradient_norm, (epsilon, delta)
    )
    counts = {"num_samples": num_samples, "num_parties": num_parties}
    stats = counts | plan.stats(gradient_norm, output_stddev)
    privacy = unsupported(epsilon, delta, num_samples)
    warning = (
        "This holds only for the released parameters: the transcript is NOT private, "
        "and every party has it."
    )
    privacy = replace(privacy, description=f"{privacy} {warning}")
    return Solution(jnp.asarray(released, dtype), privacy, stats)


def _described(loss: MarginLoss) -> PyTree:
    """Returns the bounds and the programs of a loss, which the parties compare."""
    row = jnp.zeros((1, 1, 1))
    return (
        (loss.derivative_bound, loss.curvature_bound, loss.is_non_increasing),
        _gradients.trace(loss, row, row[0]),
        _hessian.trace(loss, row, row[0, 0]),
    )


def _with_noise(
    params: np.ndarray,
    secure_sum: SecureSum,
    plan: Perturbation,
    all_noise: float,
    gradient_norm: float,
    budget: tuple[float, float],
) -> tuple[np.ndarray, float]:
    """Releases party 0's params (d,) with noise of all parties, by a secure sum.

    Returns them, and the stddev of the noise that stays secret, which hides how far the
    computed params are from the exact minimizer of plan.objective. Params of NaN are
    released as NaN. all_noise is the stddev of all noise in the objective; `budget` has
    the run's epsilon and delta.
    """
    (objective, convexity), num_shares = plan[:2], secure_sum.num_secret_shares
    num_samples, num_features = objective.num_samples, objective.num_features
    # A computed minimizer is within gradient_norm / convexity of the exact minimizer.
    sensitivity = 2 * gradient_norm / convexity
    epsilon, delta = (OUTPUT_SHARE * part for part in budget)
    continuous = gaussian_stddev(epsilon, delta, sensitivity=sensitivity)
    slopes = num_samples * objective.loss.derivative_bound
    longest = (slopes + all_noise * (math.sqrt(num_features) + 60)) / convexity
    step = continuous / math.sqrt(num_shares) / _OUTPUT_STEPS
    grid = Grid.of(step, bound=longest)
    stddev = discrete_gaussian_stddev(
        epsilon,
        delta,
        sensitivity=grid.sensitivity(sensitivity, num_features),
        num_shares=num_shares,
        num_coordinates=num_features,
    )

    def output() -> np.ndarray:
        is_aggregator = secure_sum.transport.party == 0
        mine = params if is_aggregator else np.zeros(num_features)
        draw = discrete_gaussian(
            num_features, stddev=stddev, random_bytes=secure_sum.random_bytes
        )
        return grid.to_integers(mine) + draw

    released = grid.to_reals(secure_sum(output, num_features))
    released = np.where(np.isnan(params), np.nan, released)
    return released, math.sqrt(num_shares) * stddev * grid.step


class _Party:
    """The part of one party in the search for the minimizer, which party 0 directs."""

    def __init__(self, secure_sum: SecureSum, plan, gradient_norm, num_records) -> None:
        """Computes a party's share of the noise, and the grids that round its sums."""
        # `plan` has objective and noise, gradient_norm bounds the objective's gradient
        # at the minimizer, and num_records has each party's number of records.
        self.secure_sum, self.gradient_norm = secure_sum, gradient_norm
        self.objective, self.convexity = plan.objective, plan.convexity
        self.share_stddev = plan.stddev / math.sqrt(secure_sum.num_secret_shares)
        loss, most = self.objective.loss, max(num_records)
        # The rounding of a party moves a coordinate of the sum by at most one step.
        self.most_rounding = gradient_norm / 8
        root = math.sqrt(self.objective.num_features)
        step = self.most_rounding / (len(num_records) * root)
        # The grid would clip noise beyond 40 stddevs, with probability e^-800.
        slopes = most * loss.derivative_bound + 40 * self.share_stddev
        fine = 2.0**-44 * self.objective.num_samples * loss.curvature_bound
        curvature = most * loss.curvature_bound
        self.grids = {
            _GRADIENTS: Grid.of(step, bound=slopes),
            _HESSIAN: Grid.of(fine, bound=curvature),
        }

    def minimizer(self, features: jax.Array, labels: jax.Array) -> np.ndarray:
        """Returns the minimizer of all parties' objective J, shape (d,), or NaN."""
        # The party draws its noise in J. Party 0 directs the search; each other party
        # takes part in sums over its records, until party 0 sends the result.
        words = np.frombuffer(self.secure_sum.random_bytes(8), np.uint32)
        with jax.enable_x64(True):
            key = jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
            zeros = jnp.zeros(self.objective.num_features, jnp.float64)
            self.noise = np.asarray(gaussian(key, zeros, stddev=self.share_stddev))
            rows = signed_rows(jnp.asarray(features), jnp.asarray(labels))
            self.chunks = self.objective.chunked(rows)
            if self.secure_sum.transport.party == 0:
                return self._direct()
            while (message := self._broadcast())[0] != _STOP:
                self._add(*message)
            return message[1][0]

    def _direct(self) -> np.ndarray:
        """Returns w, (d,), with a certified ||grad J(w)|| <= gradient_norm, or NaN."""
        # Only party 0 calls this. Gradients and Hessians of the objective J are sums
        # over all parties.
        # As in `dp_objective_perturbation`, each round tries Newton steps of several
        # lengths and a gradient step, and keeps the point with the shortest gradient.
        objective, convexity = self.objective, self.convexity
        smoothness = convexity + objective.num_samples * objective.loss.curvature_bound
        params, eye = np.zeros(objective.num_features), np.eye(objective.num_features)
        gradient = self._sum_gradients(np.tile(params, (len(_LENGTHS) + 1, 1)))[0]
        norm = float(np.linalg.norm(gradient))
        while not self._is_certified(params, norm):
            hessian = self._sum(_HESSIAN, params[None], eye.shape) + convexity * eye
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

    def _is_certified(self, params: np.ndarray, norm: float) -> bool:
        # The noise norm is 0.0 here: noise is rounded only with the gradients, to their
        # grid, as most_rounding counts.
        length = np.linalg.norm(params)
        rounding = self.objective.rounding(self.convexity, length, 0.0)
        norm *= 1 + (self.objective.num_features + 8) * 2.0**-52
        return bool(norm + (rounding + self.most_rounding) <= self.gradient_norm)

    def _sum_gradients(self, points: np.ndarray) -> np.ndarray:
        return self._sum(_GRADIENTS, points, points.shape) + self.convexity * points

    def _sum(self, kind: float, points: np.ndarray, shape: tuple) -> np.ndarray:
        """Asks all parties for a sum at points, and takes part in it."""
        self._broadcast(kind, points)
        return self.grids[kind].to_reals(self._add(kind, points)).reshape(shape)

    def _broadcast(
        self, kind: float = _STOP, points: np.ndarray | None = None
    ) -> tuple[float, np.ndarray]:
        """Returns party 0's message to all: its kind, and points of shape (9, d)."""
        # The kind asks for a sum of gradients or Hessians at the points, or ends the
        # search. Other parties send nothing. Points are padded with zeros to one size.
        words = np.zeros(1 + (len(_LENGTHS) + 1) * self.objective.num_features)
        if points is not None:
            words[: 1 + points.size] = [kind, *points.reshape(-1)]
        transport = self.secure_sum.transport
        mine = words.tobytes() if transport.party == 0 else b""
        message = transport.exchange(mine, words.nbytes)[0]
        if message is None:
            raise PartyError([0], "the aggregator sent nothing; start the job again")
        words = np.frombuffer(message)
        return words[0], words[1:].reshape(len(_LENGTHS) + 1, -1)

    def _add(self, kind: float, points: np.ndarray) -> np.ndarray:
        """Returns all parties' sum of gradients or Hessians, in integer grid steps."""
        # `kind` says which of the two is computed at points; only gradients have noise.
        loss = self.objective.loss
        if kind == _GRADIENTS:
            values = np.asarray(_gradients(loss, self.chunks, points)) + self.noise
        else:
            values = np.asarray(_hessian(loss, self.chunks, points[0]))
        integers = self.grids[kind].to_integers(values.reshape(-1))
        return self.secure_sum(lambda: integers, integers.size)


@partial(jax.jit, static_argnums=0)
def _gradients(loss: MarginLoss, chunks: jax.Array, points: jax.Array) -> jax.Array:
    slopes = loss.derivative(jnp.einsum("pd,cbd->cpb", points, chunks))
    return jnp.einsum("cpb,cbd->cpd", slopes, chunks).sum(axis=0)


@partial(jax.jit, static_argnums=0)
def _hessian(loss: MarginLoss, chunks: jax.Array, point: jax.Array) -> jax.Array:
    weights = loss.curvature(chunks @ point)
    return jnp.einsum("cb,cbd,cbe->de", weights, chunks, chunks)
