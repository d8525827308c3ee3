"""The mean of samples that lie in memory, beside a copy's bandwidth."""

from dataclasses import replace
from functools import lru_cache, partial

import jax

from benchmarks.speed.case import Case, Method, Target
from dpjax._sums.stream import SampleStream
from dpjax.estimators import (
    Clipping,
    Mean,
    SmoothedTruncation,
    Truncation,
    Winsorization,
)


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
    read = 4 * n * d
    methods = [Method("jnp.sum", partial(_plain_sum, n, d), "jax", moved_bytes=read)]
    for name, estimator in coordinatewise(0.5).items():
        for size in (None,) if quick else (None, 2**12, 2**14, 2**16, n):
            label = name if size is None else f"{name}, microbatch {size:,}"
            make = partial(_fold, estimator, n, d, size)
            methods.append(Method(label, make, moved_bytes=read))
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
            Target(name, quantity="copy_share", at_least=0.6)
            for name in coordinatewise(0.5)
        ],
    )


REDUCTIONS = [_reduction_case(index) for index in range(len(SHAPES[False]))]
