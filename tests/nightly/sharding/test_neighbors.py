"""One record moves means of rows on several devices by the sensitivity, or raises."""

import functools
from functools import partial
from itertools import product

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import dpjax
from dpjax import estimators
from dpjax.gradients import by_user, per_sample_grad, robust_grad, streamed_grad
from dpjax.transforms import accumulate, aggregate, dp_sgd, privatize
from tests import registry
from tests.nightly.sharding.test_means import mapped, mesh_of, normal

N, DEVICES, SIZE = 16, 4, 16
if jax.device_count() < DEVICES:  # meshes stand below
    reason = "needs 4 devices: XLA_FLAGS=--xla_force_host_platform_device_count=8"
    pytest.skip(reason, allow_module_level=True)
PARAMS = {"w": jnp.zeros((3, 4)), "b": jnp.zeros(4)}
BATCH = {"x": normal(0, N, 3), "y": normal(1, N, 4)}
LAYOUT = by_user(BATCH, jnp.arange(N), num_users=N, records_per_user=1)
CLIPPING, WINSORIZATION = estimators.Clipping(1.0), estimators.Winsorization(0.5)
SMOOTHED = estimators.SmoothedTruncation(1.0, 50.0)
MEDIAN = estimators.MedianOfMeans(CLIPPING, 3)
TRIMMED = estimators.TrimmedMean(0.25, -1.0, 1.0)


def loss_fn(params, example):
    return (example["x"] @ params["w"] + params["b"]) @ example["y"]


stream = streamed_grad(loss_fn)


def mean_of(make_grads, estimator, n=N):
    def mean(params, batch, axis_name):
        return estimator(make_grads(params, batch), normalize_by=n, axis_name=axis_name)

    return mean


def grad_of(estimator=CLIPPING):
    def grad(params, batch, axis_name):
        where = {"normalize_by": N, "axis_name": axis_name}
        return robust_grad(loss_fn, estimator, **where)(params, batch)

    return grad


def grad_of_users(params, batch, axis_name):
    is_record = jnp.ones_like(batch["x"][:, :1], bool)
    records = type(LAYOUT)(jax.tree.map(lambda x: x[:, None], batch), is_record)
    return grad_of()(params, records, axis_name)


def update_of(optimizer_fn, num_pieces=1):
    """Returns the update of an optimizer without noise, of gradients in pieces."""

    def update(params, batch, axis_name):
        optimizer = optimizer_fn(axis_name=axis_name)
        state = optimizer.init(params)
        for i in range(num_pieces):
            piece = jax.tree.map(lambda x, i=i: x[i::num_pieces], batch)
            updates, state = optimizer.update(stream(params, piece), state, params)
        return updates

    return update


def private(make=privatize, *, axis_name):
    options = {"noise_multiplier": 0.0, "normalize_by": N, "axis_name": axis_name}
    return make(CLIPPING, key=jax.random.key(0), **options)


# A function, and the estimator whose sensitivity for N records bounds it.
SUMS = {
    "robust_grad": (grad_of(), CLIPPING),
    "by coordinate": (grad_of(WINSORIZATION), WINSORIZATION),
    "users": (grad_of_users, CLIPPING),
    "per_sample_grad": (mean_of(per_sample_grad(loss_fn), CLIPPING), CLIPPING),
    "streamed_grad": (mean_of(stream, WINSORIZATION), WINSORIZATION),
    "aggregate": (update_of(partial(aggregate, SMOOTHED, normalize_by=N)), SMOOTHED),
}
# Of all rows that they have, which are a device's where no axes are named.
MEANS = {
    "median": (mean_of(stream, MEDIAN, None), MEDIAN),
    "trimmed": (mean_of(stream, TRIMMED, None), TRIMMED),
}
# These add noise from one key.
NOISY = {
    "privatize": (update_of(private), CLIPPING),
    "dp_sgd": (update_of(partial(private, partial(dp_sgd, 1.0))), CLIPPING),
    "accumulate": (
        update_of(
            lambda axis_name: accumulate(private(axis_name=axis_name), num_pieces=2), 2
        ),
        CLIPPING,
    ),
}
MESH = mesh_of(DEVICES)


def run_all(functions, params, batch, axis_name=None):
    return {name: f(params, batch, axis_name) for name, (f, _) in functions.items()}


def jitted(kind, axis_name):
    place = NamedSharding(mesh_of(DEVICES, kind), P("records"))

    def made(function):
        run = jax.jit(partial(function, axis_name=axis_name))
        return lambda params, batch: run(params, jax.device_put(batch, place))

    return made


def on_rows(function, axis, is_named):
    """Returns the function of an axis, or the sum of what devices compute of theirs."""

    def summed(params, batch):
        return jax.lax.psum(function(params, batch, axis_name=None), axis)

    return partial(function, axis_name=axis) if is_named else summed


def by_shard_map(mesh, axis="records", *, is_named, **options):
    """One axis is Manual, and rows are dealt out over all."""
    place = NamedSharding(mesh, P(mesh.axis_names))

    def made(function):
        function = on_rows(function, axis, is_named)
        run = mapped(function, mesh, inputs=(P(), P(axis)), **options)
        return lambda params, batch: run(params, jax.device_put(batch, place))

    return made


def by_pmap(*, is_named):
    def made(function):
        function = on_rows(function, "records", is_named)
        axes = {"axis_name": "records", "in_axes": (None, 0)}
        run = jax.pmap(function, devices=jax.devices()[:DEVICES], **axes)

        def first(params, batch):
            rows = jax.tree.map(lambda x: x.reshape(DEVICES, -1, *x.shape[1:]), batch)
            return jax.tree.map(lambda x: x[0], run(params, rows))

        return first

    return made


OF_TWO = {"axis_types": (AxisType.Auto,) * 2, "devices": jax.devices()[:DEVICES]}
HOSTS = jax.make_mesh((2, DEVICES // 2), ("hosts", "chips"), **OF_TWO)
MAPPED = {
    "shard_map": partial(by_shard_map, MESH),
    "shard_map, unchecked": partial(by_shard_map, MESH, check_vma=False),
    "pmap": by_pmap,
    "half a shard_map": partial(by_shard_map, HOSTS, "hosts", axis_names={"hosts"}),
}
WHOLE = {
    f"{kind.name}, {axis}": jitted(kind, axis)
    for kind, axis in product((AxisType.Auto, AxisType.Explicit), (None, "records"))
}
WHOLE |= {name: make(is_named=True) for name, make in MAPPED.items()}
BY_HAND = {name: make(is_named=False) for name, make in MAPPED.items()}
CASES = [(f"{name}, whole", x, SUMS | MEANS | NOISY, N) for name, x in WHOLE.items()]
CASES += [(f"{name}, by hand", x, SUMS, N) for name, x in BY_HAND.items()]
CASES += [("shard_map, means", BY_HAND["shard_map"], MEANS, N // DEVICES)]
VALUES = (1e3, -1e3, np.nan, 1e38, -np.inf)
ATTACKS = [
    {"x": BATCH["x"].at[where].set(value), "y": BATCH["y"]}
    for where in (0, 6, N - 1)
    for value in VALUES
]


@functools.cache
def on_one_device():
    run = jax.jit(partial(run_all, SUMS | MEANS | NOISY))
    return [run(PARAMS, batch) for batch in ATTACKS]


@pytest.mark.parametrize("case", CASES, ids=lambda x: x[0])
def test_a_record_moves_the_result_by_the_sensitivity_at_most(case):
    _, setting, functions, n = case
    run = setting(partial(run_all, functions))
    means = [run(PARAMS, batch) for batch in ATTACKS]
    for name, (_, estimator) in functions.items():
        results = [jax.flatten_util.ravel_pytree(x[name])[0] for x in means]
        results = np.float64(results).reshape(3, len(VALUES), SIZE)
        assert np.isfinite(results).all()
        moved = np.linalg.norm(results[:, None] - results[:, :, None], axis=-1).max()
        bound = estimator.sensitivity(n, SIZE).l2
        # A private mean counts in its noise what pieces add to it.
        assert moved <= bound * (1.001 if name == "accumulate" else 1), name
        assert moved > 0.3 * bound or estimator is TRIMMED, name
    if n == N:
        expected = [{name: x[name] for name in functions} for x in on_one_device()]
        chex.assert_trees_all_close(means, expected, atol=1e-6)


def test_gradients_of_several_records_would_be_seen(monkeypatch):
    case = next(case for case in CASES if case[0] == "shard_map, by hand")
    for module in ("gradients._robust", "_sharding"):
        monkeypatch.setattr(f"dpjax.{module}.varying_with", lambda tree, _: tree)
    with pytest.raises(ValueError, match="without collectives"):
        test_a_record_moves_the_result_by_the_sensitivity_at_most(case)
    monkeypatch.setattr("dpjax.gradients._loss.refuse_collectives", lambda _: None)
    with pytest.raises(AssertionError, match="robust_grad"):
        test_a_record_moves_the_result_by_the_sensitivity_at_most(case)


def trained(params, batch, axis_name):
    sizes = {"num_samples": N // DEVICES, "num_steps": 1}
    run = dpjax.PrivateTraining(loss_fn, epsilon=8.0, delta=1e-5, **sizes)
    state = run.init(params, jax.random.key(0))
    return run.step(state, batch, axis_name=axis_name)[0].params


def scored(params, batch, axis_name):
    del axis_name
    score = dpjax.tuning.clipped_loss(loss_fn, batch, limit=1.0, epsilon=1.0, delta=0.0)
    return score.fn(params, jax.random.key(0))


def grad_of_loss(reads_others):
    """Returns the mean gradient of a loss that reads the records of other devices."""

    def loss(params, example):
        return reads_others(loss_fn(params, example), params, example)

    def grad(params, batch, axis_name):
        del axis_name
        return CLIPPING(streamed_grad(loss)(params, batch), normalize_by=N)

    return grad


def by_constant(value, params, example):
    """JAX sums a derivative by what is the same on all devices, over them."""
    slope = jax.grad(lambda c: loss_fn(params, {**example, "y": c * example["y"]}))
    return value + slope(jnp.ones(4)).sum()


FORGOTTEN = {name: f for name, (f, _) in NOISY.items()}
FORGOTTEN |= {"PrivateTraining": trained, "clipped_loss": scored}
FORGOTTEN |= {
    name: lambda params, batch, axis_name, solver=solver: (
        solver((batch["x"], batch["y"][:, 0]), jax.random.key(0), 0).params
    )
    for name, solver in registry.SOLVERS.items()
}
REFUSED = {name: (f, "key must be different on") for name, f in FORGOTTEN.items()}
IDS = jnp.arange(N // DEVICES)
REFUSED |= {
    "by_user": (
        lambda params, batch, axis_name: (
            by_user(batch, IDS, num_users=N, records_per_user=1).records
        ),
        "records must be those of all devices",
    ),
}
COLLECTIVES = {
    "psum": lambda x, *_: jnp.square(jax.lax.pmean(x, "records")),
    "ppermute": lambda x, *_: x + jax.lax.ppermute(x, "records", [(0, 1), (1, 0)]),
}
REFUSED |= {
    name: (grad_of_loss(f), f"loss_fn must be the loss of one example.*{name}")
    for name, f in COLLECTIVES.items()
}
ALL_THREE = ["shard_map", "shard_map, unchecked", "pmap"]
MIXED = [*product(REFUSED, ALL_THREE), ("derivative", "shard_map")]
REFUSED["derivative"] = grad_of_loss(by_constant), "closes over and that is the same"


@pytest.mark.parametrize(("name", "setting"), MIXED)
def test_what_would_mix_devices_is_refused(name, setting):
    function, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason):
        BY_HAND[setting](function)(PARAMS, BATCH)


def test_records_that_all_devices_have_are_refused():
    def loss(params, example):  # as dropout, by a number of each device
        return loss_fn(params, example["batch"]) * example["drop"]

    def run(params, batch, drop):
        batch = {"batch": batch, "drop": drop}
        return robust_grad(loss, CLIPPING, axis_name="records")(params, batch)

    run = mapped(run, MESH, inputs=(P(), P(), P("records")))
    with pytest.raises(ValueError, match="would count several times"):
        run(PARAMS, BATCH, jnp.ones(DEVICES * N))


def test_a_mask_may_be_the_same_on_all_devices():
    def run(params, batch):
        grads = streamed_grad(loss_fn)(params, batch, jnp.zeros(N // DEVICES, bool))
        return CLIPPING(grads, normalize_by=N, axis_name="records")

    expected = grad_of()(PARAMS, BATCH, None)
    chex.assert_trees_all_close(mapped(run, MESH)(PARAMS, BATCH), expected, atol=1e-6)


def test_a_model_for_each_device_has_gradients_of_its_own():
    params = jax.tree.map(lambda x: normal(2, DEVICES, *x.shape), PARAMS)
    stiff = lambda w, example: jnp.square(loss_fn(w, example))  # noqa: E731

    def run(params, batch):
        own = jax.tree.map(lambda x: x[0], params)
        return jax.tree.map(lambda x: x[None], robust_grad(stiff, CLIPPING)(own, batch))

    means = mapped(run, MESH, P("records"), (P("records"), P()))(params, BATCH)
    expected = jax.vmap(robust_grad(stiff, CLIPPING), (0, None))(params, BATCH)
    chex.assert_trees_all_close(means, expected, atol=1e-6)
