"""Noise with full tails beside jax.random's, which stops near 5.4 in float32."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.speed.case import Case, Method, Target
from dpjax.mechanisms import (
    discrete_gaussian,
    exponential,
    gaussian,
    laplace,
    permute_and_flip,
)

CHOICE = {"epsilon": 1.0, "sensitivity_range": 1.0}
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
LAWS = {
    "jax.random.normal": ("jax", lambda key, x: x + jax.random.normal(key, x.shape)),
    "gaussian": ("dpjax", lambda key, x: gaussian(key, x, stddev=1.0)),
    "jax.random.laplace": ("jax", lambda key, x: x + jax.random.laplace(key, x.shape)),
    "laplace": ("dpjax", lambda key, x: laplace(key, x, scale=1.0)),
    "jax.random.categorical": ("jax", jax.random.categorical),
    "exponential": ("dpjax", lambda key, x: exponential(key, x, **CHOICE)),
    "jax.random.exponential": (
        "jax",
        lambda key, x: jnp.argmax(x + jax.random.exponential(key, x.shape)),
    ),
    "permute_and_flip": ("dpjax", lambda key, x: permute_and_flip(key, x, **CHOICE)),
}
PAIRS = {
    "gaussian": "jax.random.normal",
    "laplace": "jax.random.laplace",
    "exponential": "jax.random.categorical",
    "permute_and_flip": "jax.random.exponential",
}


def _draws(name, size):
    return f"{name}, {size:,} draws"


def _noise(quick):
    methods = []
    for size in SIZES[1:2] if quick else SIZES:
        for name, (package, function) in LAWS.items():

            def make(function=function, size=size):
                return jax.jit(function), (jax.random.key(0), jnp.zeros(size))

            methods.append(Method(_draws(name, size), make, package, count=size))
    size = 100_000
    bits = np.random.default_rng(0).bytes
    for stddev in (10, 1_000_000):
        draw = partial(discrete_gaussian, size, stddev=stddev, random_bytes=bits)
        name = f"discrete_gaussian of stddev {stddev:,}"
        methods.append(
            Method(_draws(name, size), lambda draw=draw: (draw, ()), count=size)
        )
    return methods


NOISE = Case(
    name="noise",
    title="Noise with full tails",
    build=_noise,
    unit="draw",
    has_peak=False,
    targets=[
        Target(_draws(name, size), [_draws(peer, size)], at_most=2)
        for name, peer in PAIRS.items()
        for size in SIZES
    ],
)
