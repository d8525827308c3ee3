"""dp_l1_regression: scoring many candidates against n records with d = 4 features.

    python benchmarks/selection.py

The baseline is the same chunked (candidates, n) matrix product and the maximum of its
rows, without a loss.
"""

import jax
import jax.numpy as jnp
from timing import milliseconds, print_table, temporary_bytes

from dpjax.constraints import Box, halton_net
from dpjax.solvers import dp_l1_regression

NUM_FEATURES, CHUNK_SIZE = 4, 4096
# The second row is a twentieth of a million candidates against 100,000 records.
SIZES = [(10_000, 200_000), (100_000, 50_000)]
ORDERS = [2.0, 1.5]


@jax.jit
def plain_products(features, candidates):
    padding = -len(candidates) % CHUNK_SIZE
    chunks = jnp.pad(candidates, ((0, padding), (0, 0)))
    chunks = chunks.reshape(-1, CHUNK_SIZE, NUM_FEATURES)

    def largest(chunk):
        product = jnp.matmul(chunk, features.T, precision=jax.lax.Precision.HIGHEST)
        return product.max(axis=1)

    return jax.lax.map(largest, chunks)


def solve(key, features, targets, candidates, moment_order=2.0):
    return dp_l1_regression(
        features,
        targets,
        key=key,
        epsilon=1.0,
        candidates=candidates,
        moment_order=moment_order,
        chunk_size=CHUNK_SIZE,
    ).params


def data(num_samples, num_candidates):
    features = jax.random.normal(jax.random.key(0), (num_samples, NUM_FEATURES))
    noise = jax.random.t(jax.random.key(1), 1.5, (num_samples,))
    net = halton_net(Box(-2.0, 2.0), NUM_FEATURES, num_candidates=num_candidates)
    return features, features.sum(axis=1) + noise, net


def main():
    rows = []
    for num_samples, num_candidates in SIZES:
        features, targets, net = data(num_samples, num_candidates)
        functions = {"plain products": lambda x=features, w=net: plain_products(x, w)}
        for order in ORDERS:
            functions[f"dp_l1_regression, order {order}"] = (
                lambda x=features, y=targets, w=net, order=order: solve(
                    jax.random.key(2), x, y, w, order
                )
            )
        times = milliseconds(functions, repeats=5)
        base = times["plain products"]
        rows += [
            [f"{num_samples:,}", f"{num_candidates:,}", name, time, time / base]
            for name, time in times.items()
        ]
    print_table(["n", "candidates", "method", "ms", "times plain products"], rows)

    rows = []
    for num_samples in (10_000, 100_000):
        shapes = [(num_samples, NUM_FEATURES), (num_samples,), (10**6, NUM_FEATURES)]
        arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        scratch = temporary_bytes(solve, jax.random.key(0), *arrays)
        rows.append([f"{num_samples:,}", scratch / 2**20])
    print_table(["n, with a million candidates", "temporary MiB"], rows)


if __name__ == "__main__":
    main()
