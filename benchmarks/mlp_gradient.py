"""The robust gradient of an MLP 784-256-10 at batch 256, beside its peers.

    python benchmarks/mlp_gradient.py

Every method gets per-example losses of the same model and one call of a jitted
function. jax_privacy runs at each microbatch size; optax gets the per-example gradients
that it asks for, made by vmap. Both draw no noise worth the name; neither does dpjax.
"""

import jax
import optax
from jax_privacy.clipping import clipped_grad
from models import mlp
from timing import compile_seconds, milliseconds, print_table, temporary_bytes

import dpjax
from dpjax.estimators import (
    Clipping,
    Mean,
    SmoothedTruncation,
    Truncation,
    Winsorization,
)

BATCH = 256
ESTIMATORS = {
    "fold without influence (Mean)": Mean(),
    "Truncation": Truncation(0.01),
    "Winsorization": Winsorization(0.01),
    "Clipping": Clipping(1.0),
    "SmoothedTruncation, beta 1": SmoothedTruncation(0.01),
    "SmoothedTruncation, beta 9.21": SmoothedTruncation(0.01, 9.21),
}


loss_fn, _, _ = mlp(1)


def plain(params, batch):
    losses = jax.vmap(loss_fn, in_axes=(None, 0))
    return jax.grad(lambda params: losses(params, batch).mean())(params)


def jax_privacy_grad(microbatch_size):
    return clipped_grad(
        loss_fn,
        l2_clip_norm=1.0,
        keep_batch_dim=False,
        normalize_by=BATCH,
        microbatch_size=microbatch_size,
    )


def optax_aggregate(params, batch):
    transform = optax.contrib.differentially_private_aggregate(
        l2_norm_clip=1.0, noise_multiplier=0.0, key=jax.random.key(0)
    )
    grads = dpjax.per_sample_grad(loss_fn)(params, batch)
    return transform.update(grads, transform.init(params))[0]


def main():
    _, params, batch = mlp(BATCH)
    functions = {"plain gradient, no influence, not per sample": plain}
    for name, estimator in ESTIMATORS.items():
        functions[name] = dpjax.robust_grad(loss_fn, estimator)
    for size in (1, 2, 4, 8, 16, 32, 64):
        functions[f"jax_privacy, microbatch {size}"] = jax_privacy_grad(size)
    functions["optax differentially_private_aggregate"] = optax_aggregate

    jitted = {name: jax.jit(function) for name, function in functions.items()}
    times = milliseconds(
        {
            name: lambda function=function: function(params, batch)
            for name, function in jitted.items()
        }
    )
    base = times["Truncation"]
    print_table(
        ["method", "ms", "times Truncation", "temporary MiB", "compile s"],
        [
            [
                name,
                times[name],
                times[name] / base,
                temporary_bytes(function, params, batch) / 2**20,
                compile_seconds(function, params, batch),
            ]
            for name, function in functions.items()
        ],
    )
    small, large = (
        temporary_bytes(dpjax.robust_grad(loss_fn, Truncation(0.01)), *mlp(size)[1:])
        for size in (16, 256)
    )
    print(f"temporary memory at batch 256 over batch 16: {large / small:.3f}")


if __name__ == "__main__":
    main()
