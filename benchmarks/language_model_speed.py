"""Steps of the private transformer beside those by jax_privacy's parts, in turns.

python -m benchmarks.language_model_speed
"""

import statistics
import time

import jax
import optax

import dpjax
from benchmarks.language_model import (
    BATCH_SIZE,
    L2_CLIP_NORM,
    LEARNING_RATE,
    init,
    loss_fn,
    windows,
)

NOISE_MULTIPLIER, ROUNDS = 0.5, 7


def our_step(params, batch, noise_multiplier=NOISE_MULTIPLIER):
    """One private step of dpjax as a compiled function, and its arguments."""
    optimizer = dpjax.dp_sgd(
        LEARNING_RATE,
        dpjax.estimators.Clipping(L2_CLIP_NORM),
        noise_multiplier=noise_multiplier,
        key=jax.random.key(1),
    )

    def step(params, state, batch):
        grads = dpjax.gradients.streamed_grad(loss_fn)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return jax.jit(step), (params, optimizer.init(params), batch)


def peer_step(params, batch, microbatch_size, noise_multiplier=NOISE_MULTIPLIER):
    """One private step by the parts that the example of jax_privacy is made of."""
    import jax_privacy
    from jax_privacy import noise_addition

    grad_fn = jax_privacy.clipped_grad(
        loss_fn,
        l2_clip_norm=L2_CLIP_NORM,
        keep_batch_dim=False,
        normalize_by=len(batch),
        microbatch_size=microbatch_size,
    )
    privatizer = noise_addition.gaussian_privatizer(
        stddev=noise_multiplier * 2 * L2_CLIP_NORM / len(batch),
        prng_key=jax.random.key(1),
    )
    optimizer = optax.chain(privatizer, optax.sgd(LEARNING_RATE))

    def step(params, state, batch):
        updates, state = optimizer.update(grad_fn(params, batch), state, params)
        return optax.apply_updates(params, updates), state

    return jax.jit(step), (params, optimizer.init(params), batch)


def main():
    """Prints the medians of steps that take turns."""
    data, alphabet = windows()
    params, batch = init(jax.random.key(0), len(alphabet)), data[:BATCH_SIZE]
    steps = {"dpjax": our_step(params, batch)}
    for size in (1, 8, None):
        name = "the whole batch" if size is None else f"microbatch {size}"
        steps[f"jax_privacy, {name}"] = peer_step(params, batch, size)
    times = {name: [] for name in steps}
    for step, arguments in steps.values():
        jax.block_until_ready(step(*arguments))
    for _ in range(ROUNDS):
        for name, (step, arguments) in steps.items():
            start = time.perf_counter()
            jax.block_until_ready(step(*arguments))
            times[name].append(time.perf_counter() - start)
    ours = statistics.median(times["dpjax"])
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(f"{name}: {1e3 * median:.0f} ms, {median / ours:.2f} times")


if __name__ == "__main__":
    main()
