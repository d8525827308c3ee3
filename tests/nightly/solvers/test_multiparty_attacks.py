"""Attacks on sums over parties: what noise is left, and how far a record moves them.

Colluders know their own shares and subtract them; parties drop. What is left is read
from the iterates, and compared with the stddev that the guarantee rests on.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import losses, mechanisms, solvers
from dpjax.estimators import Clipping, MedianOfMeans, SmoothedTruncation, Winsorization
from dpjax.parties import SecureSum, run_parties
from dpjax.solvers.papers import _gradient_descent as descent
from tests.parties import Recorder
from tests.privacy.solvers.test_multiparty_objective import drawn_noise

FALSE_ALARM_IN_ERRORS = 5  # standard errors, two-sided: 6e-7
BUDGET = {"epsilon": 1.0, "delta": 1e-5}
EXTREMES = (0.0, 1.0, -1.0, 1e-30, 1e20, 1e38, -1e38, np.inf, -np.inf, np.nan)
ESTIMATORS = {
    "clipping": Clipping(1.0),
    "large clipping": Clipping(1e6),
    "winsorization": Winsorization(0.3),
    "smoothed truncation": SmoothedTruncation(2.0),
    "median of means": MedianOfMeans(Winsorization(1.0), 3),
}


def check_residual(
    num_parties, colluders, dropouts, drops, size, num_steps, max_colluding=None
):
    """Returns noise of sums, less shares of colluders, over the stated; the error."""
    max_colluding = len(colluders) if max_colluding is None else max_colluding

    def party_fn(transport):
        iterates, source = [np.zeros(size)], np.random.default_rng(transport.party)
        recorder = Recorder(transport, ends=drops.get(transport.party))
        threats = {"max_colluding": max_colluding, "max_dropouts": dropouts}
        sums = SecureSum(recorder, test_only_random_bytes=source.bytes, **threats)

        def watch(_, params):
            iterates.append(np.asarray(params, float))

        options = {"execution": solvers.Execution(callback=watch), "secure_sum": sums}
        options |= {"estimator": Clipping(1.0), "learning_rate": 1.0} | BUDGET
        problem = losses.squared, jnp.zeros(size), (jnp.zeros((2, size)), jnp.zeros(2))
        solution = solvers.dp_multiparty_gradient_descent(
            *problem, num_steps=num_steps, **options
        )
        return np.array(iterates), solution.stats

    iterates, stats = run_parties(party_fn, num_parties)[0]
    counts = {"num_shares": num_parties - max_colluding - dropouts, "num_params": size}
    counts |= {"num_releases": num_steps + dropouts} | BUDGET
    noise = descent._Noise.calibrated(Clipping(1.0), [2] * num_parties, **counts)
    assert noise.stddev == stats["stddev"]
    # Exchanges: keys, numbers of records, and then a vector an attempt.
    ends = {party: start - 2 for party, start in drops.items()}
    live = [
        sum(ends.get(party, np.inf) > step for party in range(num_parties))
        for step in range(num_steps)
    ]
    sums = -np.diff(iterates, axis=0) * 2 * np.array(live)[:, None]
    for party in colluders:
        source = np.random.default_rng(party).bytes
        source(32)  # the secret key of the masks
        for step in range(num_steps):
            for _ in range(1 + (step in ends.values())):  # a failed attempt has its own
                draw = {"stddev": noise.share, "random_bytes": source}
                share = mechanisms.discrete_gaussian((size,), **draw)
            sums[step] -= noise.grid.to_reals(share)
    left = sums[max(ends.values(), default=0) :]  # after all have dropped
    ratio = np.sqrt(np.mean(left**2)) / stats["stddev"]
    error = FALSE_ALARM_IN_ERRORS / np.sqrt(2 * left.size)
    shares = num_parties - len(colluders) - len(drops)
    expected = np.sqrt(shares / (num_parties - max_colluding - dropouts))
    assert ratio == pytest.approx(expected, abs=error)
    assert stats["num_live"] == num_parties - len(drops)
    return ratio, error


def test_colluders_and_dropouts_leave_the_noise_that_is_stated():
    # Worst: every admitted party colludes or drops, and the ratio is 1.
    ratio, error = check_residual(5, [1, 3], 1, {4: 4}, size=400, num_steps=12)
    assert ratio >= 1 - error
    # A party that need not have dropped adds to what is stated.
    check_residual(4, [2], 1, {}, size=400, num_steps=8)


def test_a_colluder_more_than_is_admitted_finds_less_noise():
    # The measure has power: two of four collude where one is admitted.
    ratio, error = check_residual(4, [0, 2], 0, {}, 400, 8, max_colluding=1)
    assert ratio == pytest.approx(np.sqrt(2 / 3), abs=error)


@pytest.mark.parametrize("num_parties", [2, 3, 4, 6])
def test_every_admitted_number_of_colluders_and_dropouts(num_parties):
    for num_colluders in range(num_parties):
        for dropouts in range(num_parties - num_colluders):
            drops = {num_parties - 1 - i: 3 + i for i in range(dropouts)}
            colluders = list(range(num_colluders))
            check_residual(num_parties, colluders, dropouts, drops, 500, 20)


def farthest_move(estimator, rng, num_cases):
    worst, steps = 0.0, descent.Descent(None, False)
    # A loss whose gradient is the record, whatever it holds.
    method = descent._Method(lambda w, row: jnp.sum(w * row), None, None, steps)
    for _ in range(num_cases):
        size, d = int(rng.choice([3, 7, 40])), int(rng.choice([1, 2, 9]))
        shares = {"num_params": d, "num_shares": 1, "num_releases": 1}
        noise = descent._Noise.calibrated(estimator, [size, 3], **shares, **BUDGET)

        def integers(rows, noise=noise, size=size, d=d):
            mean = descent._mean_grad(method, jnp.zeros(d), rows, estimator)
            return noise.grid.to_integers(size * descent._to_vector(mean))

        for _ in range(8):
            rows = rng.choice(EXTREMES, (size, d)).astype(np.float32)
            if rng.random() < 0.5:
                scale = 10.0 ** rng.integers(-3, 8)
                rows = (scale * rng.standard_cauchy((size, d))).astype(np.float32)
            other = rows.copy()
            other[-1] = rng.choice([-rows[-1], rng.choice(EXTREMES, d)])
            moved = np.linalg.norm((integers(rows) - integers(other)).astype(float))
            assert np.abs(integers(rows)).max() <= 2**52
            worst = max(worst, moved * noise.grid.step / noise.l2_sensitivity)
    return worst


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_record_moves_the_integers_of_a_sum_by_what_is_stated(name):
    assert 0.5 < farthest_move(ESTIMATORS[name], np.random.default_rng(2), 60) <= 1


@pytest.mark.parametrize(("num_colluders", "num_runs"), [(2, 12), (0, 80), (1, 80)])
def test_shares_of_a_perturbed_objective_leave_what_is_stated(num_colluders, num_runs):
    d, left = 32, []
    for run in range(num_runs):

        def party_fn(transport, run=run):
            source = np.random.default_rng([run, transport.party]).bytes
            options = {"max_colluding": num_colluders, "test_only_random_bytes": source}
            options = {"secure_sum": SecureSum(transport, **options)} | BUDGET
            data = np.zeros((2, d), np.float32), np.ones(2, np.float32)
            return solvers.dp_multiparty_objective_perturbation(
                *data, regularization=1.0, **options
            )

        solution = run_parties(party_fn, 3)[0]
        stats = solution.stats
        convexity = stats["regularization"] * stats["num_samples"]
        eta = -convexity * np.asarray(solution.params, float)
        share = stats["stddev"] / np.sqrt(3 - num_colluders)
        for party in range(num_colluders):
            eta = eta - drawn_noise([run, party], d, share)
        left.append(eta / stats["stddev"])
    left = np.array(left)
    ratio = np.sqrt(np.mean(left**2))
    assert ratio == pytest.approx(1, abs=FALSE_ALARM_IN_ERRORS / np.sqrt(2 * left.size))
