"""Objective perturbation by several parties: its minimiser, its noise, its leak."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from dpjax import losses, solvers
from dpjax.mechanisms import gaussian
from dpjax.parties import SecureSum, run_parties
from tests import parties
from tests.parties import FALSE_ALARM, Recorder
from tests.unit.refusals import refused

ONE = np.float64(1).tobytes()  # the word by which gradients are asked for
SETTING = {"epsilon": 1.0, "delta": 1e-6, "regularization": 0.02}


def records(size, seed):
    features, labels = parties.records(size, seed)
    return features.astype(float) / 3, labels.astype(float)


DATA = [records(size, seed) for seed, size in enumerate((300, 120, 81))]


def fit(transport, features, labels, secure_sum=None, **changes):
    """Takes one party's part: of `SETTING`, but for the changes."""
    secure_sum = secure_sum or SecureSum(transport)
    return solvers.dp_multiparty_objective_perturbation(
        features, labels, secure_sum=secure_sum, **SETTING | changes
    )


def solve(data, *, known=False, max_colluding=0):
    def party_fn(transport):
        recorder = Recorder(transport)
        source = np.random.default_rng(7 + transport.party).bytes if known else None
        options = {"max_colluding": max_colluding, "test_only_random_bytes": source}
        sums = SecureSum(recorder, **options)
        return fit(transport, *data[transport.party], secure_sum=sums), recorder.heard

    solutions, heard = zip(*run_parties(party_fn, len(data)), strict=True)
    return solutions, heard[-1]


def drawn_noise(seed, d, stddev):
    source = np.random.default_rng(seed).bytes
    source(32)  # the secret key of the masks
    words = jnp.asarray(np.frombuffer(source(8), np.uint32))
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    with jax.enable_x64(True):
        return np.asarray(gaussian(key, jnp.zeros(d, jnp.float64), stddev=stddev))


def unit_rows(features, labels):
    rows = labels[:, None] * features
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)


@pytest.mark.parametrize("max_colluding", [0, 2])
def test_released_is_the_minimizer_for_the_noise_that_was_drawn(max_colluding):
    solutions, _ = solve(DATA, known=True, max_colluding=max_colluding)
    stats = solutions[0].stats
    share = stats["stddev"] / np.sqrt(3 - max_colluding)
    eta = sum(drawn_noise(seed, 3, share) for seed in (7, 8, 9))
    rows = unit_rows(*map(np.concatenate, zip(*DATA, strict=True)))
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
    pool = (np.concatenate(x) for x in zip(*DATA, strict=True))
    pooled = solvers.dp_objective_perturbation(*pool, key=jax.random.key(0), **SETTING)
    solution = solve(DATA)[0][0]
    for name in ("stddev", "regularization", "extra_regularization"):
        assert solution.stats[name] == pooled.stats[name]
    assert solution.stats["output_stddev"] < 20 * pooled.stats["output_stddev"]
    assert solution.privacy.epsilon == 1.0
    assert "501 records" in str(solution.privacy)
    assert "NOT private" in str(solution.privacy)


@pytest.mark.parametrize("max_colluding", [0, 1])
def test_the_minimizer_carries_the_noise_that_was_calibrated(max_colluding):
    # Without features it is -eta / (N Lambda).
    data = [(np.zeros((50, 600)), np.ones(50))] * 2
    solution = solve(data, max_colluding=max_colluding)[0][0]
    stats = solution.stats
    noise = np.asarray(solution.params) * 100 * stats["regularization"]
    stddev = stats["stddev"] * np.sqrt(2 / (2 - max_colluding))
    assert scipy.stats.kstest(noise / stddev, "norm").pvalue > FALSE_ALARM
    squares = scipy.stats.chi2(noise.size)
    for factor in (1, 2 / 3, 3 / 2):
        total = np.sum((noise / stddev / factor) ** 2)
        pvalue = 2 * min(squares.cdf(total), squares.sf(total))  # two-sided
        assert (pvalue > FALSE_ALARM) == (factor == 1)


def test_the_transcript_is_not_private():
    # Of this the docstring warns: sums at two points differ by noise-free gradients.
    first = records(40, 0)
    features, labels = records(40, 1)
    changed = features.copy()
    changed[3] = [-0.9, 0.1, 0.2]
    pairs = [[first, (x, labels)] for x in (features, changed)]
    candidates = [
        unit_rows(*map(np.concatenate, zip(*pair, strict=True))) for pair in pairs
    ]
    for truth, pair in enumerate(pairs):
        _, heard = solve(pair)
        # The aggregator's nine points, and the sums of gradients at them.
        points, totals = [], []
        for messages in heard:
            if messages[0] and not messages[1] and messages[0][:8] == ONE:
                points.append(np.frombuffer(messages[0])[1:].reshape(9, 3))
            elif messages[1] and len(messages[1]) == 8 * 27:
                totals.append(sum(np.frombuffer(m, "<u8") for m in messages))
        points = points[1]  # the first ones are all zero
        sums = totals[1].astype(np.int64).reshape(9, 3).astype(np.float64)
        moves = sums[1:] - sums[0]  # in steps of a grid

        def unexplained(rows, points=points, moves=moves):
            gradients = -scipy.special.expit(-points @ rows.T) @ rows
            expected = gradients[1:] - gradients[0]
            step = np.vdot(expected, moves) / np.vdot(moves, moves)
            return np.linalg.norm(moves * step - expected) / np.linalg.norm(expected)

        errors = [unexplained(candidate) for candidate in candidates]
        assert errors[truth] < 1e-6 < 1e-4 < errors[1 - truth]


def test_a_silent_party_ends_the_run_and_is_named():
    def silent(party, index, message):
        return b"" if party == 1 and index >= 3 else message

    def party_fn(transport):
        return fit(Recorder(transport, change=silent), *records(100, transport.party))

    with pytest.raises(RuntimeError, match="party 1"):
        run_parties(party_fn, 3)


OWN = dict(zip(("features", "labels"), records(100, 0), strict=True))
test_bad_arguments_are_named = refused(
    lambda changes: run_parties(lambda transport: fit(transport, **OWN | changes), 2),
    ({"epsilon": 0.0}, "epsilon"),
    ({"delta": 0.0}, "delta"),
    ({"regularization": -1.0}, "regularization"),
    ({"loss": "logistic"}, "loss"),
    ({"features": np.zeros(3)}, "features"),
    ({"labels": np.zeros((100, 2))}, "labels"),
)
test_no_party_may_drop_out = refused(
    lambda make: run_parties(lambda x: fit(x, **OWN, secure_sum=make(x)), 3),
    (lambda x: SecureSum(x, max_dropouts=1), "secure_sum"),
    (lambda x: x, "secure_sum"),
)
STEEPER = losses.MarginLoss(lambda z: -2 * jax.nn.sigmoid(-z), 1.0, 0.25, True)
OTHER = [("epsilon", 1.1), ("delta", 2e-6), ("regularization", 0.03)]
OTHER += [("loss", x) for x in (STEEPER, losses.MarginLoss.smoothed_hinge())]
OTHER += [("features", np.zeros((100, 2)))]


@pytest.mark.parametrize(("name", "other"), OTHER)
def test_the_argument_that_differs_is_named(name, other):
    def party_fn(transport):
        return fit(transport, **OWN | ({name: other} if transport.party else {}))

    with pytest.raises(RuntimeError, match=f"party 1: {name} must be equal"):
        run_parties(party_fn, 2)
