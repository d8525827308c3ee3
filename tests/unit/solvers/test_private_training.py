"""One object for a private run: what it costs is what its parts cost, by hand."""

import dataclasses
import functools
import math
import pickle
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import ADD_OR_REMOVE_ONE, PrivateTraining, accounting, mechanisms, recommend
from dpjax.batching import BallsInBins, Disjoint, Full, Poisson
from dpjax.estimators import AdaptiveThreshold, Clipping, MedianOfMeans, Scaled
from dpjax.gradients import by_user, streamed_grad
from dpjax.transforms import chain, privatize
from tests import registry
from tests.unit.refusals import refused
from tests.unit.transforms.test_contract import with_keys, without_keys

N, T, D = 48, 5, 3
BUDGET = {"epsilon": 4.0, "delta": 1e-5}
BANDS = mechanisms.BandedToeplitz.square_root(T, 2)
BUFFERED = mechanisms.BufferedToeplitz(40, decays=(0.5,), scales=(0.5,))
CLIPPED = {"estimator": Clipping(1.0)}
SCALED = Scaled(dpjax.estimators.Truncation(1.0), {"w": 2.0, "b": 0.5})
CASES = {
    "poisson": (Clipping(1.0), Poisson(6.0), 0.2),
    "disjoint": (MedianOfMeans(Clipping(1.0), 3), Disjoint(), None),
    "bins": (AdaptiveThreshold(Clipping(1.0), 0.1, 9.0), BallsInBins(2), None),
    "scaled": (SCALED, Poisson(6.0), None),
}
TRIMMED = dpjax.estimators.TrimmedMean(0.2, -1.0, 1.0)
ADDED = {"relation": ADD_OR_REMOVE_ONE}
PARTS = [
    *({"batching": batching} for batching in registry.BATCHINGS.values()),
    {"batching": Poisson(6.0), "monitor": 0.2},
    {"batching": Full(), "estimator": TRIMMED},
    *({"batching": x} | ADDED for x in (Full(), Poisson(6.0), BallsInBins(5))),
]


def loss_fn(params, example):
    x, y = example
    return 0.5 * (x @ params["w"] + params["b"] - y) ** 2


def records():
    x = jax.random.normal(jax.random.key(1), (N, D - 1))
    return x, x @ jnp.array([1.0, -2.0])


def start():
    return {"w": jnp.zeros(D - 1), "b": jnp.zeros(())}


def training(**options):
    sizes = {"num_samples": N, "num_steps": T}
    problem = {"loss_fn": loss_fn, "optimizer": optax.sgd(0.1)}
    return PrivateTraining(**problem | sizes | BUDGET | options)


def finished(run, data=None):
    state, metrics = run.init(start(), jax.random.key(0)), None
    for _ in range(run.num_steps):
        state, metrics = run.step(state, records() if data is None else data)
    return state, metrics


def assert_same(one, other):
    chex.assert_trees_all_equal(*map(without_keys, (one, other)))


def assert_priced(run, multiplier, sampling):
    """The event of a run says what its steps cost, as the accountant does."""
    cost = accounting.epsilon_of(run.privacy.dp_event, BUDGET["delta"])
    given = multiplier, BUDGET["delta"], sampling
    exact = accounting.noise_multiplier_to_epsilon(*given)
    assert cost == pytest.approx(exact, rel=2e-3)


def by_hand(name, multiplier):
    estimator, batching, _ = CASES[name]
    private = privatize(
        estimator,
        noise_multiplier=multiplier,
        key=jax.random.split(jax.random.key(0), 3)[0],
        normalize_by=batching.divisor(N, T),
        sampled=batching.is_sampled,
    )
    return chain(private, optax.sgd(0.1))


@functools.partial(jax.jit, static_argnums=0)
def step_by_hand(name, multiplier, params, state, batches):
    batch, mask, batches = CASES[name][1].draw(batches, records())
    grads, marks = streamed_grad(loss_fn)(params, batch), {"is_padding_example": mask}
    updates, state = by_hand(name, multiplier).update(grads, state, params, **marks)
    return optax.apply_updates(params, updates), state, batches


@pytest.mark.parametrize("name", CASES)
def test_parameters_batches_and_price_are_those_of_parts_composed_by_hand(name):
    estimator, batching, monitor = CASES[name]
    run = training(estimator=estimator, batching=batching, monitor=monitor)
    scheme = batching.sampling(N, T)
    multiplier = accounting.noise_multiplier(*BUDGET.values(), scheme)
    assert run.noise_multiplier == multiplier
    assert (run.privacy.epsilon, run.privacy.delta) == tuple(BUDGET.values())
    assert_priced(run, multiplier, scheme)
    multiplier /= math.sqrt(1 - (monitor or 0.0))
    _, batch_key, _ = jax.random.split(jax.random.key(0), 3)
    divisor = batching.divisor(N, T)
    params, state = start(), by_hand(name, multiplier).init(start())
    batches = batching.init(batch_key, N, T, **BUDGET)
    for _ in range(T):
        params, state, batches = step_by_hand(name, multiplier, params, state, batches)
    final, metrics = finished(run)
    chex.assert_trees_all_close(final.params, params, rtol=1e-5, atol=1e-6)
    assert_same(final.batches, batches)
    assert int(metrics["step"]) == T
    if name == "poisson":
        parameters = estimator.noise_parameters(1, divisor, D, is_sampled=True)
        stddev = math.sqrt(D) * parameters["l2_sensitivity"]
        np.testing.assert_allclose(metrics["noise_norm"], multiplier * stddev, 1e-5)
    if name == "scaled":
        bound = estimator.measured.sampled_sensitivity(divisor, D, rounded=False).l2
        stddev = math.sqrt(2 * 2.0**2 + 0.5**2) * bound
        np.testing.assert_allclose(metrics["noise_norm"], multiplier * stddev, 1e-3)


def test_correlated_noise_is_that_of_the_strategy():
    run = training(estimator=Clipping(1.0), noise=BANDS, num_steps=None)
    assert run.num_steps == T
    assert run.batching == dpjax.batching.CyclicPoisson(6, cycle_length=2)
    sampling = run.batching.sampling(N, T, strategy=BANDS)
    multiplier = accounting.noise_multiplier(*BUDGET.values(), sampling)
    assert run.noise_multiplier == multiplier
    alone = multiplier / BANDS.sensitivity()
    sampling = run.batching.sampling(N, T)
    assert_priced(run, alone, sampling)
    _, metrics = finished(run)
    # As much independent noise as moves the sum of all steps alike.
    relative = np.linalg.norm(np.ones(T) @ np.linalg.inv(BANDS.matrix())) / math.sqrt(T)
    sensitivity = float(Clipping(1.0).sampled_sensitivity(6, D, rounded=False).l2)
    stddev = run.noise_multiplier * sensitivity * relative
    np.testing.assert_allclose(metrics["noise_norm"], math.sqrt(D) * stddev, rtol=1e-4)


def test_scanned_donated_and_restored_states_are_the_same_run():
    run, data = training(monitor=0.3), records()
    expected = finished(run)

    @jax.jit
    def scanned(state, data):
        return jax.lax.scan(lambda now, _: run.step(now, data), state, length=T + 2)

    final, metrics = scanned(run.init(start(), jax.random.key(0)), data)
    np.testing.assert_allclose(final.params["w"], expected[0].params["w"], rtol=1e-5)
    np.testing.assert_array_equal(metrics["step"], [*range(1, T + 1), T, T])
    donated = jax.jit(run.step, donate_argnums=0)
    state = run.init(start(), jax.random.key(0))
    for _ in range(T):
        state, last = donated(state, data)
        template = run.init(start(), jax.random.key(3))
        state = with_keys(pickle.loads(pickle.dumps(without_keys(state))), template)
    np.testing.assert_allclose(state.params["w"], expected[0].params["w"], rtol=1e-5)
    assert float(last["loss"]) == pytest.approx(float(expected[1]["loss"]), rel=1e-4)
    # A step too many changes nothing.
    before = jax.tree.map(np.array, without_keys(state))
    after, metrics = donated(state, data)
    assert_same(after, before)
    assert int(metrics.pop("step")) == T
    assert not any(map(float, metrics.values()))


def test_monitor_pays_with_its_share_and_tells_the_mean_loss():
    options = {"epsilon": 1e4, "monitor": 0.25, "num_steps": 40}
    run = training(batching=Full(), optimizer=optax.sgd(1e-6), **options)
    data = records()[0].at[0].set(jnp.nan), records()[1] + 3.0
    state = run.init(start(), jax.random.key(0))
    for _ in range(40):
        before = state.params
        state, metrics = run.step(state, data)
    losses = np.asarray(jax.vmap(loss_fn, (None, 0))(before, data))
    bound = float(metrics["loss_bound"])
    clipped = np.nan_to_num(np.minimum(losses, bound))
    stddev = float(metrics["loss_stddev"])
    assert abs(float(metrics["loss"]) - clipped.mean()) < 6 * stddev + 1e-4
    # Of mean and counts, of which these have a hundredth of the monitor's share.
    counting = AdaptiveThreshold(Clipping(bound), lower=1e-4, upper=1e4).counting
    moved = counting.sensitivity(N, 1, rounded=False).l2
    of_loss = run.noise_multiplier / math.sqrt(0.25) * moved
    assert stddev == pytest.approx(float(of_loss), rel=1e-5)
    assert 0.5 < np.mean(losses[1:] <= bound) < 1.0


def test_users_are_the_records_and_aux_changes_nothing():
    x, y = records()
    users = by_user((x, y), jnp.arange(N) // 4, num_users=12, records_per_user=4)
    options = {"num_samples": 12, "batching": Full(), "monitor": 0.1}
    run = training(loss_fn=lambda p, x: (loss_fn(p, x), x), has_aux=True, **options)
    state, metrics = finished(run, users)
    expected, plain_metrics = finished(training(**options), users)
    assert_same(state.params, expected.params)
    assert_same(metrics["loss"], plain_metrics["loss"])
    with pytest.raises(ValueError, match=r"data must be of length 12, .*'length 48'"):
        finished(run)


@pytest.mark.parametrize("batching", [Poisson(6.0), BallsInBins(5)])
def test_add_or_remove_costs_what_its_batches_cost(batching):
    run = training(relation=ADD_OR_REMOVE_ONE, batching=batching)
    # Its n is public, so that a row may be blanked, but not added or removed.
    assert run.privacy.relation is type(ADD_OR_REMOVE_ONE).REPLACE_SPECIAL
    words = f"Blanking any one of the {N} rows of data, whose number is public, changes"
    assert str(run.privacy).startswith(words)
    scheme = batching.sampling(N, T, relation=ADD_OR_REMOVE_ONE)
    assert run.noise_multiplier == accounting.noise_multiplier(*BUDGET.values(), scheme)


@pytest.mark.parametrize("options", PARTS, ids=lambda options: str([*options.values()]))
def test_the_first_steps_cost_what_a_shorter_run_with_their_noise_costs(options):
    run = training(**options | {"num_steps": 9})
    curve = [run.privacy_after(step) for step in range(10)]
    epsilons = [part.epsilon for part in curve]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] == 0 < epsilons[1]
    assert curve[0].tradeoff(0.1) == pytest.approx(0.1, abs=1e-4)
    assert curve[-1] is run.privacy
    for step in (1, 7):
        part = curve[step]
        shorter = training(**options | {"num_steps": step, "epsilon": part.epsilon})
        needed, short = shorter.noise_multiplier, shorter.privacy
        assert run.noise_multiplier == pytest.approx(needed, rel=2e-3)
        assert part == dataclasses.replace(short, dp_event=part.dp_event)
        number = r"(noise_multiplier|rho)=[^,)]+"
        first, second = (re.sub(number, "", str(x.dp_event)) for x in (part, short))
        assert first == second


@pytest.mark.parametrize("noise", [BANDS, BUFFERED])
def test_the_first_rows_of_correlated_noise_cost_no_more_than_is_stated(noise):
    run = training(batching=Full(), noise=noise, num_steps=None, **CLIPPED)
    stated = [run.privacy_after(step).epsilon for step in range(run.num_steps + 1)]
    assert stated == sorted(stated)
    for step in range(1, run.num_steps + 1):
        # A record that enters all steps moves the released rows by this.
        moved = np.linalg.norm(noise.matrix()[:step, :step] @ np.ones(step))
        costs = {"delta": 1e-5, "sensitivity": float(moved)}
        exact = accounting.gaussian_epsilon(run.noise_multiplier, **costs)
        assert (1 - 1e-6) * exact <= stated[step]


test_steps_that_are_refused = refused(
    lambda step: training().privacy_after(step),
    *((step, "step must be an integer from 0 to 5") for step in (-1, 6, 2.0, True)),
    *((step, "step must be an integer from 0 to 5") for step in (None, np.arange(2))),
)


def test_noise_that_follows_the_data_has_no_public_norm():
    run = training(estimator=TRIMMED, batching=Full(), monitor=0.1)
    with pytest.raises(ValueError, match="estimator must be one whose noise has"):
        run.relative_noise(D)
    shown = "<PrivateTraining: 5 steps, Full(), epsilon = 4, delta = 1e-05>"
    assert repr(run) == shown
    scheme = accounting.Sampling(num_steps=T, noise=TRIMMED.noise)
    assert run.noise_multiplier == accounting.noise_multiplier(*BUDGET.values(), scheme)
    names = "gradient_norm loss loss_bound loss_stddev step"
    assert sorted(finished(run)[1]) == names.split()


def test_settings_that_are_left_out_follow_from_the_budget_and_the_sizes():
    default = PrivateTraining(loss_fn, num_samples=N, **BUDGET)
    assert (default.num_steps, default.batching) == (400, Poisson(6))
    relative = default.relative_noise(D)
    noise = relative / math.sqrt(400)
    peak, quantile = 24 / 400 / (0.001 + noise), 1 / (1 + (50 * noise) ** 2)
    advice = recommend(N, D, **BUDGET)
    settings = 6, 400, default.noise_multiplier, relative, quantile, peak
    np.testing.assert_allclose(advice, settings, rtol=1e-6)
    options = {"quantile": quantile, "learning_rate": 0.3}
    clipping = AdaptiveThreshold(Clipping(0.03), 1e-4, 1e4, **options)
    given = training(estimator=clipping, batching=Poisson(6), num_steps=400)
    assert given.noise_multiplier == default.noise_multiplier
    assert given.relative_noise(D) == pytest.approx(relative)
    after, metrics = default.step(default.init(start(), jax.random.key(0)), records())
    moved = optax.tree.norm(optax.tree.sub(after.params, start()))
    clip_norm = metrics["noise_norm"] / relative
    assert float(clip_norm) == pytest.approx(0.03, rel=1e-3)  # the first
    rate = moved * clip_norm / metrics["gradient_norm"]
    # The rate rises in the first 40 of 400 steps; a tenth of a step is made at once.
    assert float(rate) == pytest.approx(peak / 400, rel=1e-3)


NO_RELATION = {"relation": ADD_OR_REMOVE_ONE, "batching": Disjoint()}
test_wrong_combinations_are_named = refused(
    lambda options: training(**options),
    ({"estimator": CASES["disjoint"][0]}, r"batching must be Full\(\) or Disjoint"),
    ({"noise": BANDS}, "estimator must be given with correlated noise"),
    ({"noise": 3} | CLIPPED, "noise must be a strategy"),
    ({"noise": BUFFERED} | CLIPPED, "batching must be given with Buffered"),
    ({"monitor": 0.1, "noise": BANDS} | CLIPPED, "monitor must be None with corr"),
    ({"optimizer": None, "estimator": SCALED}, "optimizer must be given with Scaled"),
    ({"optimizer": 3}, r"transforms\[1\] must be an optax"),
    (NO_RELATION, "relation must be REPLACE_ONE with Disjoint"),
)
