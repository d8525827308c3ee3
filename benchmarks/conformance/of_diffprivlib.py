"""Adapters for diffprivlib's tests: mechanisms, and statistics at a delta of 1e-6."""

import numbers
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import UnsupportedDpEvent

from benchmarks.conformance.adapter import absent, stands_for
from dpjax import accounting, mechanisms, solvers
from dpjax.accounting._discrete_gaussian import discrete_gaussian_stddev
from dpjax.estimators import Winsorization

_DELTA = 1e-6


def _seed(random_state):
    if random_state is None or isinstance(random_state, numbers.Integral):
        return np.random.default_rng(random_state).integers(2**31)
    return random_state.randint(2**31)


class _Mechanism:
    """Draws from keys of its own, and states its guarantee."""

    def __init__(self, *, epsilon, delta=0.0, random_state=None, **options):
        event = UnsupportedDpEvent()
        accounting.PrivacyGuarantee.of(epsilon, delta, dp_event=event)
        self.seed = _seed(random_state)
        self.key = jax.random.key(self.seed)
        self.draw = self.of(epsilon, delta, **options)

    def randomise(self, value=None):
        self.key, key = jax.random.split(self.key)
        return self.draw(key, value).item()

    def __getattr__(self, name):
        absent(f"`{name}` of a mechanism")

    def __repr__(self):
        absent("the text of a mechanism")


def _number(value):
    return float(value) if isinstance(value, numbers.Real) else value


@stands_for("diffprivlib.mechanisms.laplace.Laplace")
class _Laplace(_Mechanism):
    def of(self, epsilon, delta, *, sensitivity):
        if delta or isinstance(sensitivity, str):
            absent("Laplace noise with a delta, or of a sensitivity in words")
        draw = partial(mechanisms.laplace, scale=sensitivity / epsilon)
        draw(self.key, 0.0)  # refuses it now
        return lambda key, value: draw(key, _number(value))


@stands_for("diffprivlib.mechanisms.gaussian.GaussianAnalytic")
@stands_for("diffprivlib.mechanisms.gaussian.Gaussian")
class _Gaussian(_Mechanism):
    def of(self, *budget, sensitivity):
        stddev = accounting.gaussian_stddev(*budget, sensitivity=sensitivity)
        draw = partial(mechanisms.gaussian, stddev=stddev)
        return lambda key, value: draw(key, _number(value))


@stands_for("diffprivlib.mechanisms.gaussian.GaussianDiscrete")
class _DiscreteGaussian(_Mechanism):
    def of(self, *budget, sensitivity=1):
        given = {"sensitivity": sensitivity, "num_coordinates": 1}
        stddev = discrete_gaussian_stddev(*budget, **given)
        source = np.random.default_rng(self.seed).bytes
        draw = partial(mechanisms.discrete_gaussian, (), random_bytes=source)

        def add(key, value):
            is_integer = isinstance(value, int)
            return value + draw(stddev=stddev) if is_integer else absent("no integer")

        return add


class _Selection(_Mechanism):
    def of(self, epsilon, delta, *, utility, sensitivity, monotonic=False, **options):
        if any(options.values()):
            absent("candidates or weights as an argument")
        scores = jnp.asarray(utility, jnp.float32)
        given = {"sensitivity_range": sensitivity if monotonic else 2 * sensitivity}
        draw = partial(self.choose, scores=scores, epsilon=epsilon, **given)
        draw(self.key)  # refuses them now
        return lambda key, value: draw(key) if value is None else absent("a value")


@stands_for("diffprivlib.mechanisms.exponential.Exponential")
class _Exponential(_Selection):
    choose = staticmethod(mechanisms.exponential)


@stands_for("diffprivlib.mechanisms.exponential.PermuteAndFlip")
class _PermuteAndFlip(_Selection):
    choose = staticmethod(mechanisms.permute_and_flip)


def _key(random_state=None, **options):
    for name in (name for name, value in options.items() if value is not None):
        absent(f"`{name}`, not taken by the adapter")
    return jax.random.key(_seed(random_state))


@stands_for("diffprivlib.tools.utils.mean")
def mean(array, epsilon=1.0, bounds=None, **options):
    key, samples = _key(**options), np.ravel(array)
    given = {"key": key, "epsilon": epsilon, "delta": _DELTA}
    if bounds is None:
        return solvers.dp_mean(samples, **given).params.item()
    middle, reach = np.mean(bounds), (bounds[1] - bounds[0]) / 2
    given["estimator"] = Winsorization(reach)
    found = solvers.dp_mean(samples - middle, **given).params.item()
    return float(np.clip(found + middle, *bounds))


@stands_for("diffprivlib.tools.utils.sum")
def total(array, *args, **options):
    return np.size(array) * mean(array, *args, **options)


@stands_for("diffprivlib.tools.utils.count_nonzero")
def count_nonzero(array, epsilon=1.0, **options):
    key, is_other = _key(**options), np.ravel(array).astype(bool)
    given = {"key": key, "epsilon": epsilon, "delta": _DELTA, "edges": [-1, 0, 1]}
    return solvers.dp_histogram(is_other * 1.0, **given).params[1].item()


@stands_for("diffprivlib.tools.quantiles.quantile")
def quantile(array, quant, epsilon=1.0, bounds=None, **options):
    key = _key(**options)
    edges = None if bounds is None else np.linspace(*bounds, 1_001)
    given = {"quantile": quant, "epsilon": epsilon, "edges": edges, "key": key}
    return np.asarray(solvers.dp_quantile(np.ravel(array), **given).params).tolist()


@stands_for("diffprivlib.tools.quantiles.median")
def median(array, *args, **options):
    return quantile(array, 0.5, *args, **options)


@stands_for("diffprivlib.tools.quantiles.percentile")
def percentile(array, percent, *args, **options):
    share = np.asarray(percent) / 100
    return quantile(array, share.tolist(), *args, **options)
