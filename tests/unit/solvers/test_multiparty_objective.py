"""Objective perturbation by several parties: its minimiser, its noise, its leak."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from dpjax.losses import MarginLoss
from dpjax.mechanisms import gaussian
from dpjax.parties import PartyError, SecureSum, run_parties
from dpjax.solvers import (
    dp_multiparty_objective_perturbation,
    dp_objective_perturbation,
)

FALSE_ALARM = 1e-6
ONE = np.float64(1).tobytes()  # the word by which gradients are asked for
SETTING = {"epsilon": 1.0, "delta": 1e-6, "regularization": 0.02}


def records(size, seed, d=3):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(size, d)) / 3
    return features, np.where(features @ np.arange(1, d + 1) > 0, 1.0, -1.0)


class Recorder:
    """A transport that writes down what its party hears."""

    def __init__(self, transport):
        self.party, self.num_parties = transport.party, transport.num_parties
        self.heard = []
        self._transport = transport

    def exchange(self, message, num_bytes):
        self.heard.append(self._transport.exchange(message, num_bytes))
        return self.heard[-1]


def solve(data, *, seeds=None, max_colluding=0, **setting):
    """All parties' solutions, and what the last party heard."""

    def party_fn(transport):
        recorder = Recorder(transport)
        source = None
        if seeds is not None:
            source = np.random.default_rng(seeds[transport.party]).bytes
        solution = dp_multiparty_objective_perturbation(
            *data[transport.party],
            secure_sum=SecureSum(
                recorder, max_colluding=max_colluding, test_only_random_bytes=source
            ),
            **(SETTING | setting),
        )
        return solution, recorder.heard

    results = run_parties(party_fn, len(data))
    return [solution for solution, _ in results], results[-1][1]


def drawn_noise(seed, d, stddev):
    source = np.random.default_rng(seed).bytes
    source(32)  # the secret key of the masks
    words = jnp.asarray(np.frombuffer(source(8), np.uint32))
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    with jax.enable_x64(True):
        return np.asarray(gaussian(key, jnp.zeros(d, jnp.float64), stddev=stddev))


@pytest.mark.quick(1)
@pytest.mark.parametrize("max_colluding", [0, 2])
def test_released_is_the_minimiser_for_the_noise_that_was_drawn(max_colluding):
    data = [records(size, seed) for seed, size in enumerate((300, 120, 81))]
    solutions, _ = solve(data, seeds=(7, 8, 9), max_colluding=max_colluding)
    stats = solutions[0].stats
    share = stats["stddev"] / np.sqrt(3 - max_colluding)
    eta = sum(drawn_noise(seed, 3, share) for seed in (7, 8, 9))
    features, labels = (np.concatenate(x) for x in zip(*data, strict=True))
    rows = labels[:, None] * features
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)
    convexity = 501 * stats["regularization"]

    def gradient(w):
        return rows.T @ -scipy.special.expit(-rows @ w) + convexity * w + eta

    exact = scipy.optimize.root(gradient, np.zeros(3), tol=1e-13).x
    for solution in solutions:
        # One-sided, seven stddevs in three coordinates: false alarm 1e-11.
        slack = 7 * stats["output_stddev"] * np.sqrt(3 / (3 - max_colluding))
        assert np.abs(np.asarray(solution.params) - exact).max() < slack + 1e-6
        np.testing.assert_array_equal(solution.params, solutions[0].params)


def test_the_noise_is_that_of_one_party_with_all_records():
    data = [records(size, seed) for seed, size in enumerate((300, 120, 81))]
    features, labels = (np.concatenate(x) for x in zip(*data, strict=True))
    pooled = dp_objective_perturbation(
        features, labels, key=jax.random.key(0), **SETTING
    )
    solution = solve(data)[0][0]
    for name in ("stddev", "regularization", "extra_regularization"):
        assert solution.stats[name] == pooled.stats[name]
    assert solution.stats["output_stddev"] < 20 * pooled.stats["output_stddev"]
    assert solution.privacy.epsilon == 1.0
    assert "501 records" in str(solution.privacy)
    assert "NOT private" in str(solution.privacy)


@pytest.mark.parametrize("max_colluding", [0, 1])
def test_the_minimiser_carries_the_noise_that_was_calibrated(max_colluding):
    # Without features it is -eta / (N Lambda).
    data = [(np.zeros((50, 600)), np.ones(50))] * 2
    solution = solve(data, max_colluding=max_colluding)[0][0]
    stats = solution.stats
    noise = np.asarray(solution.params) * 100 * stats["regularization"]
    stddev = stats["stddev"] * np.sqrt(2 / (2 - max_colluding))
    assert scipy.stats.kstest(noise / stddev, "norm").pvalue > FALSE_ALARM

    def fit(stddev):
        squares = scipy.stats.chi2(noise.size)
        total = np.sum((noise / stddev) ** 2)
        return 2 * min(squares.cdf(total), squares.sf(total))  # two-sided

    assert fit(stddev) > FALSE_ALARM
    assert fit(stddev * 2 / 3) < FALSE_ALARM
    assert fit(stddev * 3 / 2) < FALSE_ALARM


def test_the_transcript_is_not_private():
    # What the docstring warns of: sums at two points differ by noise-free gradients.
    first = records(40, 0)
    features, labels = records(40, 1)
    changed = features.copy()
    changed[3] = [-0.9, 0.1, 0.2]
    candidates = [
        (np.concatenate([first[0], x]), np.concatenate([first[1], labels]))
        for x in (features, changed)
    ]
    for truth, x in enumerate((features, changed)):
        _, heard = solve([first, (x, labels)])
        # The aggregator's nine points, and the sums of gradients at them.
        points, totals = [], []
        for messages in heard:
            if messages[0] and not messages[1] and messages[0][:8] == ONE:
                points.append(np.frombuffer(messages[0])[1:].reshape(9, 3))
            elif messages[1] and len(messages[1]) == 8 * 27:
                totals.append(sum(np.frombuffer(each, "<u8") for each in messages))
        points = points[1]  # the first ones are all zero
        sums = totals[1].astype(np.int64).reshape(9, 3).astype(np.float64)
        moves = sums[1:] - sums[0]  # in steps of a grid

        def explained(candidate, points=points, moves=moves):
            rows = candidate[1][:, None] * candidate[0]
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)
            gradients = -scipy.special.expit(-points @ rows.T) @ rows
            expected = gradients[1:] - gradients[0]
            step = np.vdot(expected, moves) / np.vdot(moves, moves)
            return np.linalg.norm(moves * step - expected) / np.linalg.norm(expected)

        errors = [explained(candidate) for candidate in candidates]
        assert errors[truth] < 1e-6 < 1e-4 < errors[1 - truth]


@pytest.mark.quick(1)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38, 1e300, 3e-320])
def test_odd_records_neither_raise_nor_leak_into_the_result(value):
    data = [records(100, seed) for seed in range(2)]
    data[1][0][4], data[1][1][5] = value, value
    params = np.asarray(solve(data)[0][0].params)
    assert np.all(np.isfinite(params))


def test_another_loss_and_float32_features():
    data = [tuple(x.astype(np.float32) for x in records(100, s)) for s in range(2)]
    solution = solve(data, loss=MarginLoss.smoothed_hinge())[0][0]
    assert solution.params.dtype == jnp.float32
    assert np.all(np.isfinite(solution.params))


def test_a_silent_party_ends_the_run_and_is_named():
    data = [records(100, seed) for seed in range(3)]

    def party_fn(transport):
        class Silent(Recorder):
            def exchange(self, message, num_bytes):
                is_silent = self.party == 1 and len(self.heard) >= 3
                return super().exchange(b"" if is_silent else message, num_bytes)

        return dp_multiparty_objective_perturbation(
            *data[transport.party], secure_sum=SecureSum(Silent(transport)), **SETTING
        )

    with pytest.raises(PartyError, match="party 1"):
        run_parties(party_fn, 3)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("epsilon", {"epsilon": 0.0}),
        ("delta", {"delta": 0.0}),
        ("regularization", {"regularization": -1.0}),
        ("loss", {"loss": "logistic"}),
        ("features", {"features": np.zeros(3)}),
        ("labels", {"labels": np.zeros((100, 2))}),
    ],
)
def test_bad_arguments_are_named(name, change):
    features, labels = records(100, 0)
    arguments = {"features": features, "labels": labels} | SETTING | change

    def party_fn(transport):
        secure_sum = SecureSum(transport)
        return dp_multiparty_objective_perturbation(secure_sum=secure_sum, **arguments)

    with pytest.raises(ValueError, match=name):
        run_parties(party_fn, 2)


@pytest.mark.parametrize("threats", [{"max_dropouts": 1}, None])
def test_no_party_may_drop_out(threats):
    def party_fn(transport):
        secure_sum = transport if threats is None else SecureSum(transport, **threats)
        return dp_multiparty_objective_perturbation(
            *records(100, 0), secure_sum=secure_sum, **SETTING
        )

    with pytest.raises(ValueError, match="secure_sum"):
        run_parties(party_fn, 3)


STEEPER = MarginLoss(lambda z: -2 * jax.nn.sigmoid(-z), 1.0, 0.25, True)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("epsilon", {"epsilon": 1.1}),
        ("delta", {"delta": 2e-6}),
        ("regularization", {"regularization": 0.03}),
        ("loss", {"loss": STEEPER}),
        ("loss", {"loss": MarginLoss.smoothed_hinge()}),
        ("features", {"features": np.zeros((100, 2))}),
    ],
)
def test_the_argument_that_differs_is_named(name, change):
    def party_fn(transport):
        features, labels = records(100, transport.party)
        arguments = {"features": features, "labels": labels} | SETTING
        return dp_multiparty_objective_perturbation(
            secure_sum=SecureSum(transport),
            **(arguments | change if transport.party == 1 else arguments),
        )

    with pytest.raises(PartyError, match=f"party 1: other {name} than party 0"):
        run_parties(party_fn, 2)


def test_features_may_be_of_the_types_that_one_result_comes_from():
    def party_fn(transport):
        features, labels = records(100, transport.party)
        features = features.astype(np.float64 if transport.party else np.float32)
        return dp_multiparty_objective_perturbation(
            features, labels, secure_sum=SecureSum(transport), **SETTING
        )

    for solution in run_parties(party_fn, 2):
        assert solution.params.dtype == jnp.float32
