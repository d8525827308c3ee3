"""Noise with full tails beside jax.random's, which stops near 5.4 in float32.

python benchmarks/noise.py
"""

import jax
import jax.numpy as jnp
from timing import milliseconds, print_table

from dpjax.mechanisms import gaussian, laplace


def main():
    key = jax.random.key(0)
    rows = []
    for size in (10_000, 100_000, 1_000_000, 10_000_000):
        zeros = jnp.zeros(size)
        functions = {
            "jax.random.normal": lambda key, x: x + jax.random.normal(key, x.shape),
            "gaussian": lambda key, x: gaussian(key, x, stddev=1.0),
            "jax.random.laplace": lambda key, x: x + jax.random.laplace(key, x.shape),
            "laplace": lambda key, x: laplace(key, x, scale=1.0),
        }
        jitted = {name: jax.jit(function) for name, function in functions.items()}
        times = milliseconds(
            {
                name: lambda function=function, zeros=zeros: function(key, zeros)
                for name, function in jitted.items()
            },
            repeats=15,
        )
        normal, gauss, jax_laplace, ours = times.values()
        rows.append([f"{size:,}", normal, gauss, gauss / normal])
        rows[-1] += [jax_laplace, ours, ours / jax_laplace]
    header = ["draws", "jax.random.normal ms", "gaussian ms", "ratio"]
    print_table([*header, "jax.random.laplace ms", "laplace ms", "ratio"], rows)


if __name__ == "__main__":
    main()
