"""Sample and aggregate (paper 001, Algorithm 1)."""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._rounding import claim
from dpjax._sharding import check_key_of_rows, gathered
from dpjax._tree import arrays, flatten, like
from dpjax._types import Key, PyTree, Scalar
from dpjax.accounting._smooth import largest_smoothness, smooth_gaussian_multiplier
from dpjax.constraints import L2Ball
from dpjax.mechanisms import gaussian
from dpjax.solvers.papers import _smooth_center
from dpjax.solvers.training._calibration import check_budget, unsupported
from dpjax.solvers.training._solution import Solution

FitFn = Callable[[PyTree], PyTree]


def dp_sample_and_aggregate(
    fit_fn: FitFn,
    data: PyTree,
    *,
    key: Key,
    epsilon: float,
    delta: float,
    num_subsets: int,
    diameter: float,
    center: PyTree | None = None,
    overlap: int = 1,
    spread: float | None = None,
    vectorize: bool = True,
) -> Solution:
    """Applies any function to many subsets, and releases a center of the results.

    The center is the result with the smallest ball that holds a majority of results.
    The noise is small if three quarters of the results agree.

    Args:
        fit_fn: `fit_fn(subset) -> params`, for b records; it need not be private.
        data: pytree, leaves of shape (n, ...); n is public.
        key: a typed key.
        epsilon: privacy parameter, positive and finite.
        delta: privacy parameter in (0, 1).
        num_subsets: m. A subset has b = floor(n / ceil(m / overlap)) records.
        diameter: Lambda, the l2 diameter of a ball. Results are projected onto it.
        center: public center of this ball, in the shapes of a result; by default zero.
            It replaces entries of a result that are not finite.
        overlap: s, how many subsets have the same record. With 1, subsets are disjoint
            ranges of records: shuffle them if their order matters. Larger s adds ranges
            of s - 1 random orders: subsets grow, but the least noise depends on m / s.
        spread: guessed diameter of 3/4 of the results, public; Lambda / 100 by default.
        vectorize: whether fit_fn can be traced under `vmap`. If not, it gets subsets as
            NumPy arrays, center must be given, and `jit` and `vmap` are not possible.

    Returns:
        A `Solution` with params shaped as a result. Its stats hold subset_size, spread,
        smoothness, noise_multiplier (stddev / S), least_stddev (if all results agree).

    Raises:
        ValueError: If an argument is invalid, or least_stddev is at least the diameter.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every fit_fn that computes its result
        from the subset alone: a record is in at most s subsets. Gaussian noise is
        proportional to S, a smooth bound of the center's local sensitivity, and S is as
        private as the data (`solvers.papers._smooth_center`, `accounting._smooth`).
        Side effects of fit_fn, such as output and running time, are not protected. With
        vectorize=False, exceptions and results of other shapes count as not finite.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np
        >>> samples = 3.0 + np.random.default_rng(0).standard_t(2.5, (50_000, 2))
        >>> solution = dp_sample_and_aggregate(
        ...     lambda subset: subset.mean(axis=0), samples, key=jax.random.key(1),
        ...     epsilon=2.0, delta=1e-5, num_subsets=500, diameter=20.0)
        >>> print(jnp.abs(solution.params - 3.0) < 1.5)
        [ True  True]

    Reference:
        Wang, Xiao, Devadas, Xu (2020), Algorithm 1 and Theorem 1, with another S and
        other noise; Nissim, Raskhodnikova, Smith (2007), Section 4.
    """
    _validate.require(callable(fit_fn), "fit_fn", fit_fn, "callable")
    check_budget(epsilon, delta)
    check_key_of_rows(key, data)
    _validate.count(num_subsets=num_subsets, overlap=overlap)
    _validate.positive(diameter=diameter)
    spread = diameter / 100 if spread is None else spread
    _validate.positive(spread=spread)
    data = gathered(arrays(data))
    subsets = _Subsets(_validate.leading_size(data, "data"), num_subsets, overlap)
    rule = f"at most {overlap=} times the number of records, {subsets.num_samples}"
    is_fine = subsets.per_order <= subsets.num_samples
    _validate.require(is_fine, "num_subsets", num_subsets, rule)
    template = _template(fit_fn, data, subsets, center, vectorize)
    origin, unflatten = flatten(template, "the result of fit_fn")
    setting = float(epsilon), float(delta), origin.size
    smoothness, multiplier = _noise(setting, subsets, spread / diameter)
    steps = _smooth_center.num_steps(num_subsets, overlap)
    weights = _smooth_center.smooth_weights(smoothness, steps)
    subset_key, noise_key = jax.random.split(key)
    if vectorize:
        results = _fit_vectorized(fit_fn, subsets, data, subset_key)
    else:
        results = _fit_on_host(fit_fn, subsets, data, subset_key, template)
    args = noise_key, origin, diameter, weights, multiplier
    params = _release(overlap, results, *args)
    privacy = unsupported(epsilon, delta, subsets.num_samples)
    stats: dict[str, Scalar] = {
        "subset_size": subsets.size,
        "smoothness": smoothness,
        "noise_multiplier": multiplier,
        "least_stddev": diameter * multiplier * float(weights[-1]),
        "spread": spread,
    }
    return Solution(unflatten(params), privacy, stats)


class _Subsets(NamedTuple):
    """Chooses the records of each subset; all fields are static."""

    num_samples: int
    number: int
    overlap: int

    @property
    def per_order(self) -> int:
        """Returns the number of disjoint subsets from one order of the records."""
        return -(-self.number // self.overlap)

    @property
    def size(self) -> int:
        """Returns the number of records of a subset, rounded down."""
        return self.num_samples // self.per_order

    def rows(self, key: Key) -> jax.Array:
        """Returns the indices of each subset's records, shape (m, b)."""
        # `key` draws the orders after the first. No record is in more than `overlap`
        # subsets, on which privacy rests.
        orders = [jnp.arange(self.num_samples)]
        if self.overlap > 1:
            keys = jax.random.split(key, self.overlap - 1)
            orders += [jax.random.permutation(k, self.num_samples) for k in keys]
        used = self.per_order * self.size
        rows = [order[:used].reshape(self.per_order, self.size) for order in orders]
        return jnp.concatenate(rows)[: self.number]


def _template(
    fit_fn: FitFn, data: PyTree, subsets: _Subsets, center: PyTree, vectorize: bool
) -> PyTree:
    """Returns the center of the ball onto which results of fit_fn are projected."""
    # It is `center`, or zeros for None, in the shapes and dtypes of a result. They come
    # from tracing fit_fn, or from center without vectorize; not from data.
    if not vectorize:
        rule = "given if vectorize is False, with the shapes of a result of fit_fn"
        _validate.require(center is not None, "center", center, rule)
        return jax.tree.map(jnp.asarray, center)

    def subset_like(x: Any) -> jax.ShapeDtypeStruct:
        array = jax.eval_shape(jnp.asarray, x)
        return jax.ShapeDtypeStruct((subsets.size, *array.shape[1:]), array.dtype)

    result = jax.eval_shape(fit_fn, jax.tree.map(subset_like, data))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), result)
    if center is None:
        return zeros
    rule = f"shaped as the result of fit_fn, {_shapes(zeros)}"
    is_fine = _shapes(center) == _shapes(zeros)
    _validate.require(is_fine, "center", _shapes(center), rule)
    return jax.tree.map(lambda x, leaf: like(x, leaf), center, zeros)


def _shapes(tree: PyTree) -> PyTree:
    return jax.tree.map(np.shape, tree)


def _noise(
    setting: tuple[float, float, int], subsets: _Subsets, relative_spread: float
) -> tuple[float, float]:
    """Returns beta for a beta-smooth sensitivity S of the center, and stddev / S."""
    # `setting` has epsilon, delta, and the size of a result: all is public. Noise is
    # least with this beta if 3/4 of the results are within relative_spread diameters.
    pairs = _tight_pairs(*setting)
    steps = _smooth_center.num_steps(subsets.number, subsets.overlap)
    # With K at least enough, the least noise c e^(-beta K) is below the diameter.
    enough = [max(0, math.floor(math.log(c) / beta) + 1) for beta, c in pairs]
    needed = _smooth_center.least_num_points(min(enough), subsets.overlap)
    epsilon, delta, size = setting
    rule = (
        f"at least {needed} for {claim(epsilon, delta)}, results of size {size} and "
        f"overlap = {subsets.overlap}: with fewer, the noise exceeds the diameter"
    )
    _validate.require(subsets.number >= needed, "num_subsets", subsets.number, rule)

    def expected(pair: tuple[float, float]) -> float:
        # If three quarters of the results are within the spread, S is about the larger
        # of the spread and the weight after K/2 records.
        beta, multiplier = pair
        return multiplier * max(relative_spread, math.exp(-beta * steps / 2))

    feasible = [p for p, least in zip(pairs, enough, strict=True) if steps >= least]
    return min(feasible, key=expected)


@lru_cache(maxsize=128)
def _tight_pairs(
    epsilon: float, delta: float, num_coordinates: int
) -> tuple[tuple[float, float], ...]:
    """Returns pairs (beta, stddev / S) that are private for a beta-smooth bound S."""
    # The betas are 2 to 98 percent of the largest; `_noise` takes the best pair.
    how = {"num_coordinates": num_coordinates}
    most = largest_smoothness(epsilon, delta, **how)
    betas = [most * float(share) for share in np.geomspace(0.02, 0.98, 24)]
    multiplier = partial(smooth_gaussian_multiplier, epsilon, delta, **how)
    return tuple((beta, multiplier(smoothness=beta)) for beta in betas)


@partial(jax.jit, static_argnums=(0, 1))
def _fit_vectorized(
    fit_fn: FitFn, subsets: _Subsets, data: PyTree, key: Key
) -> jax.Array:
    """Returns fit_fn's results for m subsets, (m, d), a center of which is released."""

    def fit(rows: jax.Array) -> jax.Array:
        subset = jax.tree.map(lambda x: jnp.asarray(x)[rows], data)
        return flatten(fit_fn(subset), "params")[0]

    return jax.vmap(fit)(subsets.rows(key))


def _fit_on_host(
    fit_fn: FitFn, subsets: _Subsets, data: PyTree, key: Key, template: PyTree
) -> jax.Array:
    """Returns fit_fn's results for m subsets, (m, d), a center of which is released."""
    # fit_fn is called outside of JAX. Its vector is NaN if it raises an exception, or
    # if its result does not have the shapes of template, a pytree.
    arrays = jax.tree.map(np.asarray, data)
    origin, _ = flatten(template, "center")

    def fit(rows: np.ndarray) -> np.ndarray:
        """Returns the result for a subset with records `rows` as a vector, or NaN."""
        try:
            result = fit_fn(jax.tree.map(lambda x: x[rows], arrays))
            if _shapes(result) == _shapes(template):
                leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(result)]
                with np.errstate(all="ignore"):
                    return np.concatenate(leaves).astype(origin.dtype)
        except Exception:  # an exception may depend on records, so it must be hidden
            pass
        return np.full(origin.size, np.nan, origin.dtype)

    return jnp.stack([fit(rows) for rows in np.asarray(subsets.rows(key))])


@partial(jax.jit, static_argnums=0)
def _release(overlap, results, key, origin, diameter, weights, multiplier):
    """Returns the center of the results with noise, (d,), which may be published."""
    # `results` have shape (m, d), `origin` is the ball's center, `weights` give
    # the center's smooth sensitivity S, and `multiplier` is stddev / S.

    def point_of(result: jax.Array) -> jax.Array:
        # `smooth_center` needs points in a set of diameter 1.
        offset = (result - origin) / like(diameter, origin)
        return L2Ball(0.5).project(jnp.where(jnp.isfinite(offset), offset, 0))

    points = jax.vmap(point_of)(results)
    point, sensitivity = _smooth_center.smooth_center(points, weights, overlap=overlap)
    noisy = gaussian(key, point, stddev=sensitivity * like(multiplier, origin))
    return origin + like(diameter, origin) * noisy
