"""Solvers: descent beside its non-private twin, choices beside plain products."""

from functools import cache, lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks.speed.case import Case, Method, Target, Work
from benchmarks.speed.estimators import OPERATIONS, coordinatewise
from benchmarks.speed.models import heavy_tailed, normal
from dpjax.constraints import Box, halton_net
from dpjax.estimators import MedianOfMeans, SmoothedTruncation, Truncation
from dpjax.solvers import dp_gradient_descent, dp_l1_regression

NON_PRIVATE = "non-private full gradients"


@lru_cache(maxsize=1)
def logistic_data(n, d):
    """Heavy-tailed features, and labels +1 and -1 by the first of them."""
    rng = np.random.default_rng(0)
    features = heavy_tailed(rng, (n, d))
    return features, jnp.sign(features[:, 0] + heavy_tailed(rng, (n,)))


def descend(data, *, key, estimator, num_steps, epsilon=1.0, learning_rate=0.1):
    """Private descent on the logistic loss; returns the parameters."""
    return dp_gradient_descent(
        dpjax.losses.logistic,
        np.zeros(data[0].shape[1], np.float32),
        data,
        key=key,
        epsilon=epsilon,
        delta=1e-5,
        estimator=estimator,
        learning_rate=learning_rate,
        num_steps=num_steps,
    ).params


def descent(n, d, num_steps, estimator):
    """Returns a descent, and the data that it takes."""
    solve = partial(
        descend, key=jax.random.key(1), estimator=estimator, num_steps=num_steps
    )
    return solve, (logistic_data(n, d),)


def steps_work(n, d, num_steps, operations):
    """Full passes over the data, one a step."""
    sizes = {"n": n, "d": d, "T": num_steps, "c": operations}
    return Work("4*T*n*(d + 1)", "(4 + c)*T*n*d", "4*n*(d + 1)", sizes)


@partial(jax.jit, static_argnums=1)
def _plain_descent(data, num_steps):
    losses = jax.vmap(dpjax.losses.logistic, in_axes=(None, 0))

    def step(params, _):
        grads = jax.grad(lambda params: losses(params, data).mean())(params)
        return params - 0.1 * grads, None

    start = jnp.zeros(data[0].shape[1])
    return jax.lax.scan(step, start, length=num_steps)[0]


def _descents(quick):
    n, d, num_steps = (20_000, 50, 10) if quick else (100_000, 50, 100)
    group_median = "MedianOfMeans of Truncation, 40 groups"
    estimators = coordinatewise(1.0) | {
        group_median: MedianOfMeans(Truncation(1.0), 40)
    }
    del estimators["Mean"]  # it has no finite sensitivity
    if quick:
        estimators = {name: estimators[name] for name in ("Truncation", "Clipping")}
    methods = [
        Method(
            NON_PRIVATE,
            lambda: (_plain_descent, (logistic_data(n, d), num_steps)),
            "jax",
            count=num_steps,
        )
    ]
    for name, estimator in estimators.items():
        make = partial(descent, n, d, num_steps, estimator)
        operations = OPERATIONS.get(name, OPERATIONS["Truncation"])
        work = partial(steps_work, n, d, num_steps, operations)
        methods.append(Method(name, make, work=work, count=num_steps))
    return methods


DESCENT = Case(
    name="descent",
    title="dp_gradient_descent, n = 100,000, d = 50, 100 steps",
    build=_descents,
    yardstick=NON_PRIVATE,
    unit="step",
)


def _sweep(quick):
    n, num_steps = (2_000, 10) if quick else (10_000, 20)

    def make():
        data, key = logistic_data(n, 20), jax.random.key(1)

        def sweep():
            return [
                descend(
                    data,
                    key=key,
                    epsilon=epsilon,
                    estimator=SmoothedTruncation(scale),
                    learning_rate=learning_rate,
                    num_steps=num_steps,
                )
                for epsilon in (0.5, 1.0, 2.0)
                for scale in (0.5, 1.0)
                for learning_rate in (0.05, 0.1)
            ]

        return sweep, ()

    return [Method("sweep", make, count=12)]


SWEEP = Case(
    name="sweep",
    title="A sweep over epsilon, scale and step size",
    build=_sweep,
    unit="call",
    has_peak=False,
    targets=[Target("sweep", at_most=1, quantity="compilations")],
)


def _repetitions(quick):
    n, num_steps = (2_000, 10) if quick else (20_000, 20)

    def run(data, key):
        return descend(
            data, key=key, estimator=SmoothedTruncation(1.0), num_steps=num_steps
        )

    def one():
        return jax.jit(run), (logistic_data(n, 50), jax.random.key(1))

    def twenty():
        keys = jax.random.split(jax.random.key(1), 20)
        return jax.jit(jax.vmap(run, in_axes=(None, 0))), (logistic_data(n, 50), keys)

    return [Method("one run", one), Method("20 runs, vmap over keys", twenty)]


REPETITIONS = Case(
    name="repetitions",
    title="Twenty repetitions by vmap, on shared data",
    build=_repetitions,
    yardstick="one run",
)


CHUNK_SIZE = 4096
PRODUCTS = "plain products"


@jax.jit
def _plain_products(features, candidates):
    """The chunked (candidates, n) matrix product and the maximum of its rows."""
    num_features = features.shape[1]
    padding = -len(candidates) % CHUNK_SIZE
    chunks = jnp.pad(candidates, ((0, padding), (0, 0)))
    chunks = chunks.reshape(-1, CHUNK_SIZE, num_features)

    def largest(chunk):
        product = jnp.matmul(chunk, features.T, precision=jax.lax.Precision.HIGHEST)
        return product.max(axis=1)

    return jax.lax.map(largest, chunks)


def _selections(n, num_candidates, quick):
    n, num_candidates = (n // 10, num_candidates // 5) if quick else (n, num_candidates)

    @cache
    def data():
        rng = np.random.default_rng(0)
        features, noise = normal(rng, (n, 4)), heavy_tailed(rng, (n,))
        net = halton_net(Box(-2.0, 2.0), 4, num_candidates=num_candidates)
        return features, features.sum(axis=1) + noise, net

    def products():
        features, _, net = data()
        return _plain_products, (features, net)

    def choice(order):
        def solve(features, targets, candidates):
            return dp_l1_regression(
                features,
                targets,
                key=jax.random.key(2),
                epsilon=1.0,
                candidates=candidates,
                moment_order=order,
                chunk_size=CHUNK_SIZE,
            ).params

        return jax.jit(solve), data()

    methods = [Method(PRODUCTS, products, "jax")]
    for order in (2.0,) if quick else (2.0, 1.5):
        name = f"dp_l1_regression, order {order:g}"
        methods.append(Method(name, partial(choice, order)))
    return methods


def _selection_case(n, num_candidates):
    return Case(
        name=f"selection-{n}x{num_candidates}",
        title=(
            f"dp_l1_regression: {num_candidates:,} candidates, {n:,} records, d = 4"
        ),
        build=partial(_selections, n, num_candidates),
        yardstick=PRODUCTS,
        targets=[Target("dp_l1_regression, order 2", [PRODUCTS], at_most=3)],
    )


SELECTIONS = [_selection_case(10_000, 200_000), _selection_case(100_000, 25_000)]
