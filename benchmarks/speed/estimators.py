"""Estimators on samples that lie in memory."""

from dataclasses import replace
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.speed.case import Case, Method, Target, Work
from benchmarks.speed.models import heavy_tailed
from dpjax._sums.stream import SampleStream
from dpjax.estimators import (
    Clipping,
    Mean,
    MedianOfMeans,
    SmoothedTruncation,
    TrimmedMean,
    Truncation,
    Winsorization,
)

# Operations a coordinate, the addition into the accumulator included: magnitude,
# comparison, choice; two comparisons; a square and its sum, a product; and for the
# smoothed ones two operations a degree of the series and a dozen around it.
OPERATIONS = {
    "Mean": 1,
    "Truncation": 4,
    "Winsorization": 3,
    "Clipping": 4,
    "SmoothedTruncation, beta 1": 33,
    "SmoothedTruncation, beta 9.21": 45,
}


def coordinatewise(threshold):
    """Returns the estimators that every table compares, at one threshold."""
    return {
        "Mean": Mean(),
        "Truncation": Truncation(threshold),
        "Winsorization": Winsorization(threshold),
        "Clipping": Clipping(1.0),
        "SmoothedTruncation, beta 1": SmoothedTruncation(threshold),
        "SmoothedTruncation, beta 9.21": SmoothedTruncation(threshold, 9.21),
    }


def one_pass(n, d, operations):
    """The work of one pass over (n, d) samples."""
    sizes = {"n": n, "d": d, "c": operations}
    return Work("4*n*d", "c*n*d", "4*n*d", sizes)


@lru_cache(maxsize=1)
def samples(n, d):
    """Heavy-tailed samples, shape (n, d)."""
    return heavy_tailed(np.random.default_rng(0), (n, d))


def mean_of(estimator, n, d):
    """The estimate as a compiled program, and its samples."""
    return jax.jit(lambda estimator, x: estimator(x)), (estimator, samples(n, d))


SORT = "jnp.sort(axis=0)"
TRIMMED = TrimmedMean(0.05, lower=-10.0, upper=10.0)


def _materialised(quick):
    n, d = (20_000 if quick else 100_000), 50
    methods = [
        Method(
            name,
            partial(mean_of, estimator, n, d),
            work=partial(one_pass, n, d, operations),
        )
        for (name, estimator), operations in zip(
            coordinatewise(1.0).items(), OPERATIONS.values(), strict=True
        )
    ]

    def host(function):
        return function, (np.asarray(samples(n, d)),)

    def trim_mean():
        from scipy import stats

        return host(lambda x: stats.trim_mean(x, 0.05, axis=0))

    return [
        *methods,
        Method(
            "MedianOfMeans of Truncation, 40 groups",
            partial(mean_of, MedianOfMeans(Truncation(1.0), 40), n, d),
            work=partial(one_pass, n, d, OPERATIONS["Truncation"]),
        ),
        Method(
            "TrimmedMean",
            partial(mean_of, TRIMMED, n, d),
            work=partial(one_pass, n, d, 1),
        ),
        Method(
            "TrimmedMean and its smooth sensitivity",
            lambda: (
                jax.jit(lambda x: TRIMMED.with_smooth_sensitivity(x, 0.05)),
                (samples(n, d),),
            ),
            work=partial(one_pass, n, d, 1),
        ),
        Method(
            SORT, lambda: (jax.jit(partial(jnp.sort, axis=0)), (samples(n, d),)), "jax"
        ),
        Method("mean(axis=0)", lambda: host(lambda x: x.mean(axis=0)), "numpy"),
        Method(
            "mean of clip(axis=0)",
            lambda: host(lambda x: np.clip(x, -1.0, 1.0).mean(axis=0)),
            "numpy",
        ),
        Method("trim_mean(axis=0)", trim_mean, "scipy"),
    ]


ESTIMATORS = Case(
    name="estimators",
    title="Estimators on samples in memory",
    build=_materialised,
    yardstick="Winsorization",
    targets=[
        Target("SmoothedTruncation, beta 1", ["Winsorization"], at_most=4),
        Target("SmoothedTruncation, beta 9.21", ["Winsorization"], at_most=6),
        Target("TrimmedMean", [SORT], times_faster=10),
    ],
)


@lru_cache(maxsize=1)
def _normal_samples(n, d):
    return jax.random.normal(jax.random.key(0), (n, d))  # made where it is needed


SHAPES = {False: ((2**20, 1024), (2**14, 2**16), (2**24, 64)), True: ((2**12, 64),)}


def _fold(estimator, n, d, microbatch_size):
    def mean(estimator, x):
        stream = replace(SampleStream.of(x), microbatch_size=microbatch_size)
        return estimator.with_aux(stream, normalize_by=n)[0]

    return jax.jit(mean), (estimator, _normal_samples(n, d))


def _plain_sum(n, d):
    return jax.jit(lambda x: x.sum(axis=0)), (_normal_samples(n, d),)


def _reduction(index, quick):
    n, d = SHAPES[quick][0 if quick else index]
    methods = [
        Method(
            "jnp.sum", partial(_plain_sum, n, d), "jax", work=partial(one_pass, n, d, 1)
        )
    ]
    for name, estimator in coordinatewise(0.5).items():
        for size in (None,) if quick else (None, 2**12, 2**14, 2**16, n):
            label = name if size is None else f"{name}, microbatch {size:,}"
            work = partial(one_pass, n, d, OPERATIONS[name])
            methods.append(
                Method(label, partial(_fold, estimator, n, d, size), work=work)
            )
    return methods


def _reduction_case(index):
    n, d = SHAPES[False][index]
    return Case(
        name=f"reduction-{n}x{d}",
        title=f"The mean of {n:,} samples of {d:,} coordinates in memory",
        build=partial(_reduction, index),
        yardstick="jnp.sum",
        has_peak=False,
        targets=[
            Target(name, quantity="copy_share", at_least=0.6) for name in OPERATIONS
        ],
    )


REDUCTIONS = [_reduction_case(index) for index in range(len(SHAPES[False]))]
