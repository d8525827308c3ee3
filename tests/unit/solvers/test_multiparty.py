"""Descent with several parties: right, private in every round, and robust to faults."""

from functools import partial

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import losses, mechanisms
from dpjax.estimators import Clipping, Mean, MedianOfMeans, Truncation, Winsorization
from dpjax.parties import SecureSum, run_parties
from dpjax.solvers import Checkpoint, Execution, dp_multiparty_gradient_descent
from dpjax.solvers.papers import _gradient_descent as _multiparty
from tests.parties import Recorder, records
from tests.unit.refusals import refused

SETTING = {"epsilon": 2.0, "delta": 1e-6, "estimator": Clipping(1.0)}
SETTING |= {"learning_rate": 0.5, "num_steps": 5}
SIZES = (40, 25, 60, 33)
BALL = partial(optax.projections.projection_l2_ball, scale=0.1)


def mean_grad(params, data):
    """Returns the clipped mean of gradients, compiled once a shape."""
    descent = _multiparty.Descent(None, False)
    method = _multiparty._Method(losses.logistic, None, None, descent)
    return _multiparty._mean_grad(method, params, data, Clipping(1.0))


def descend(transport, data, known=None, **changes):
    """One party's part in a descent of `SETTING`; known: the seed of random bytes."""
    if "secure_sum" not in changes:
        source = None if known is None else np.random.default_rng(known).bytes
        changes["secure_sum"] = SecureSum(transport, test_only_random_bytes=source)
    problem = {"loss_fn": losses.logistic, "params": jnp.zeros(3), "data": data}
    return dp_multiparty_gradient_descent(**(problem | SETTING | changes))


def solve(data, *, change=None, max_colluding=1, max_dropouts=0, **setting):
    """Runs parties in threads; their solutions, and what the first one heard."""
    threats = {"max_colluding": max_colluding, "max_dropouts": max_dropouts}

    def party_fn(transport):
        transport = Recorder(transport, change=change)
        own, secure_sum = data[transport.party], SecureSum(transport, **threats)
        return descend(transport, own, secure_sum=secure_sum, **setting), transport

    solutions, transports = zip(*run_parties(party_fn, len(data)), strict=True)
    return solutions, transports[0].heard


def noise_of(sizes, *, num_shares, num_params=3, **setting):
    setting = SETTING | setting | {"num_params": num_params, "num_shares": num_shares}
    setting["num_releases"] = setting.pop("num_steps")
    del setting["learning_rate"]
    estimator = setting.pop("estimator")
    return _multiparty._Noise.calibrated(estimator, sizes, **setting)


def pooled_descent(data, noise):
    """Descends in one process on all records, with the noise that the parties draw."""
    sources = [np.random.default_rng(party).bytes for party in range(len(data))]
    for source in sources:
        source(32)  # the secret key of the masks
    pool = tuple(np.concatenate(parts) for parts in zip(*data, strict=True))
    params = jnp.zeros(3)
    draw = partial(mechanisms.discrete_gaussian, (3,), stddev=noise.share)
    for _ in range(SETTING["num_steps"]):
        shares = sum(draw(random_bytes=source) for source in sources)
        added = noise.grid.to_reals(shares) / len(pool[0])
        noisy = (mean_grad(params, pool) + added).astype(jnp.float32)
        params = params - SETTING["learning_rate"] * noisy
    return params


def test_parties_do_as_one_process_does_with_the_same_noise():
    data = [records(size, seed) for seed, size in enumerate(SIZES)]
    solutions = run_parties(lambda x: descend(x, data[x.party], known=x.party), 4)
    expected = pooled_descent(data, noise_of(SIZES, num_shares=3))
    for solution in solutions:
        np.testing.assert_allclose(solution.params, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("replacement", [b"", bytes(8), bytes(32)])
def test_the_others_go_on_without_a_party_that_drops_or_it_is_named(replacement):
    def silent(party, index, message):
        return replacement if party == 2 and index >= 4 else message

    data = [records(30, seed) for seed in range(4)]
    solutions, heard = solve(data, change=silent, max_dropouts=1)
    for solution in solutions:
        assert solution.stats["num_live"] == 3
        assert np.all(np.isfinite(solution.params))
        np.testing.assert_array_equal(solution.params, solutions[0].params)
    # Keys, arguments, two rounds, the failed attempt, its restart and two rounds.
    assert len(heard) == 2 + 2 + 1 + 3
    steps = []
    shown = Execution(callback=lambda step, params: steps.append(step))
    with pytest.raises(RuntimeError, match="party 2"):
        solve(data, change=silent, execution=shown)
    assert max(steps) == 2  # nothing of the third round came out


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_pytree_a_schedule_an_average_and_a_projection(dtype):
    def loss_fn(params, example):
        features, target = example
        margin = (features @ params["w"])[0] + params["b"]
        return jax.nn.softplus(-target * margin)

    def party_fn(transport):
        with jax.enable_x64(dtype == "float64"):  # a setting of the thread
            return descend(
                transport,
                tuple(x.astype(dtype) for x in records(30, transport.party)),
                loss_fn=loss_fn,
                params={"w": jnp.zeros((3, 1), dtype), "b": jnp.zeros((), dtype)},
                learning_rate=optax.linear_schedule(0.5, 0.1, 5),
                projection_fn=BALL,
                averaging=True,
                execution=Execution(microbatch_size=7),
            ).params

    params = run_parties(party_fn, 2)[0]
    assert (params["w"].shape, params["b"].shape) == ((3, 1), ())
    assert params["w"].dtype == params["b"].dtype == dtype
    assert 0 < np.hypot(np.linalg.norm(params["w"]), params["b"]) < 0.1001


def test_the_guarantee_names_all_records_and_the_event_spends_what_is_claimed():
    data = [records(size, seed) for seed, size in enumerate(SIZES)]
    solution = solve(data, max_dropouts=1, num_steps=None)[0][0]
    assert "158 records" in str(solution.privacy)
    sizes = {"num_steps": 51, "num_samples": 158, "num_parties": 4}  # ceil(10 log 158)
    assert solution.stats.items() >= sizes.items()
    accountant = dp_accounting.pld.PLDAccountant().compose(solution.privacy.dp_event)
    np.testing.assert_allclose(accountant.get_epsilon(1e-6), 2.0, rtol=1e-3)


@jax.custom_jvp
def as_logistic(params, example):
    """Returns the logistic loss, with a derivative of its own."""
    return losses.logistic(params, example)


@as_logistic.defjvp
def _twice(primals, tangents):
    value, tangent = jax.jvp(losses.logistic, primals, tangents)
    return value, 2 * tangent


def scaled_logistic(scale):
    return lambda params, example: scale * losses.logistic(params, example)


# An argument, and what it is of party 0 and of party 1.
DIFFERENT = [
    ("epsilon", 2.0, 2.1),
    ("estimator", Clipping(1.0), Clipping(1.1)),
    ("estimator", Truncation(1.0), Winsorization(1.0)),
    ("num_steps", None, 41),
    ("averaging", False, True),
    ("params", jnp.zeros(3), jnp.full(3, 1e-9)),
    # What the loss is traced for.
    ("data", records(30, 0), (np.zeros((30, 3), "float32"), np.zeros(30, "int32"))),
    ("loss_fn", losses.logistic, as_logistic),
    ("loss_fn", scaled_logistic(2.0), scaled_logistic(2.0000002)),
    ("learning_rate", 0.5, lambda step: 0.5),
    ("learning_rate", *(optax.linear_schedule(0.5, x, 5) for x in (0.1, 0.2))),
    ("projection_fn", BALL, partial(BALL, scale=2.0)),
]


@pytest.mark.quick(6)
@pytest.mark.parametrize(("name", "first", "second"), DIFFERENT)
def test_the_argument_that_differs_is_named(name, first, second):
    heard = []

    def party_fn(transport):
        own = {"data": records(30, transport.party)}
        own[name] = second if transport.party else first
        return descend(Recorder(transport, heard), **own)

    differs = "data, loss_fn" if name == "data" else name
    with pytest.raises(RuntimeError, match=f"party 1: {differs} must be equal"):
        run_parties(party_fn, 2)
    assert len(heard) == 2 * 2  # keys and digests: nothing of any record


def test_functions_made_anew_by_each_party_are_the_same():
    def party_fn(transport):
        table = jnp.arange(200.0)
        return descend(
            transport,
            records(30, transport.party),
            loss_fn=lambda params, example: losses.logistic(params, example) * table[3],
            projection_fn=lambda params: params / 2,
            execution=Execution(microbatch_size=1 + transport.party),
            learning_rate=lambda step: 1 / (step + 2),
        )

    first, second = run_parties(party_fn, 2)
    np.testing.assert_array_equal(first.params, second.params)


test_bad_arguments_are_named = refused(
    lambda changes: run_parties(
        lambda x: descend(x, **{"data": records(30, x.party)} | changes), 2
    ),
    ({"estimator": Mean()}, "estimator"),
    ({"learning_rate": -1.0}, "learning_rate"),
    ({"secure_sum": None}, "secure_sum"),
    ({"execution": Execution(checkpoint=Checkpoint("states"))}, "checkpoint"),
    ({"data": ()}, "data"),
    ({"estimator": MedianOfMeans(Clipping(1.0), 31)}, "num_groups"),
    ({"epsilon": 1e30, "estimator": Clipping(1e-12)}, "at most 2\\^52"),
)
