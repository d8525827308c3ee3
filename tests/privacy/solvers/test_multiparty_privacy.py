"""What parties hear of a descent: attacks on the transcript, and its noise."""

import jax.numpy as jnp
import numpy as np
import scipy.stats

from dpjax.parties import run_parties
from dpjax.solvers import Execution
from tests.parties import FALSE_ALARM, Recorder, records
from tests.unit.solvers import test_multiparty
from tests.unit.solvers.test_multiparty import SETTING, mean_grad, noise_of, solve


def released_sums(heard, grid, num_params):
    """Returns the sums that everybody reads from the messages of each round."""
    sums = []
    for messages in heard:
        if all(m is not None and len(m) == 8 * num_params for m in messages):
            total = sum(np.frombuffer(m, "<u8") for m in messages)
            sums.append(grid.to_reals(total.astype(np.int64)))
    return np.array(sums)


def attack(sums, iterates, candidates):
    """Returns the number of the candidate that the transcript fits better."""

    def residual(candidate):
        size = len(candidate[0])
        noise = [
            s - size * np.asarray(mean_grad(w, candidate), np.float64)
            for s, w in zip(sums, iterates, strict=True)
        ]
        return max(np.linalg.norm(z - noise[0]) for z in noise[1:])

    return int(np.argmin([residual(candidate) for candidate in candidates]))


def neighbours():
    there, other = records(20, 1), records(20, 1)
    for (features, targets), target in ((there, -1.0), (other, 1.0)):
        features[7], targets[7] = [3.0, -4.0, 5.0], target
    return records(20, 0), (there, other)


def pooled(first, second):
    return tuple(np.concatenate(pair) for pair in zip(first, second, strict=True))


def test_the_papers_transcript_tells_neighbors_apart():
    # One noise vector for all rounds, as large as one likes.
    first, seconds = neighbours()
    candidates = [pooled(first, second) for second in seconds]
    rng = np.random.default_rng(0)
    for trial in range(20):
        truth, eta = trial % 2, rng.normal(scale=1e6, size=3)
        params, sums, iterates = jnp.zeros(3), [], []
        for _ in range(3):
            mean = np.asarray(mean_grad(params, candidates[truth]), np.float64)
            sums.append(40 * mean + eta)
            iterates.append(params)
            # With the noise's step it would lie far away; any known w_t will do.
            params = params + jnp.asarray(rng.normal(size=3), jnp.float32)
        assert attack(sums, iterates, candidates) == truth


def test_our_transcript_does_not_tell_neighbors_apart():
    first, seconds = neighbours()
    candidates = [pooled(first, second) for second in seconds]
    epsilon, num_trials, right = 0.2, 40, 0
    setting = {"epsilon": epsilon, "num_steps": 3}
    noise = noise_of((20, 20), num_shares=1, **setting)
    for trial in range(num_trials):
        truth, iterates = trial % 2, [jnp.zeros(3)]
        show = Execution(callback=lambda step, x, iterates=iterates: iterates.append(x))
        parts = (first, show), (seconds[truth], Execution())

        def party_fn(transport, parts=parts):
            recorder, (own, how) = Recorder(transport), parts[transport.party]
            test_multiparty.descend(recorder, own, execution=how, **setting)
            return recorder.heard

        sums = released_sums(run_parties(party_fn, 2)[0], noise.grid, 3)
        assert len(sums) == 3
        right += attack(sums, iterates[:-1], candidates) == truth
    # No test is right more often than this, under (epsilon, delta)-DP. One-sided,
    # false alarm 1e-6; the attack on the paper's transcript is always right.
    most = np.exp(epsilon) / (1 + np.exp(epsilon)) + SETTING["delta"]
    assert right <= scipy.stats.binom.isf(FALSE_ALARM, num_trials, most) < num_trials


def test_the_sums_carry_the_noise_that_was_calibrated():
    # Without gradients the sums are the noise: K shares, of which K - C are counted.
    data = [(np.zeros((50, 400), np.float32), np.ones(50, np.float32))] * 3
    num_steps = 6
    solutions, heard = solve(data, params=jnp.zeros(400), num_steps=num_steps)
    noise = noise_of((50,) * 3, num_shares=2, num_params=400, num_steps=num_steps)
    sums = released_sums(heard, noise.grid, 400)
    assert sums.shape == (num_steps, 400)
    stddev = solutions[0].stats["stddev"] * np.sqrt(3 / 2)
    assert scipy.stats.kstest(sums.ravel() / stddev, "norm").pvalue > FALSE_ALARM
    for factor in (2 / 3, 3 / 2):
        scaled = sums.ravel() / (stddev * factor)
        assert scipy.stats.kstest(scaled, "norm").pvalue < FALSE_ALARM
    # Fresh in every round: two-sided, |correlation| of 400 pairs below 5 / sqrt(400).
    correlations = np.corrcoef(sums)[np.triu_indices(num_steps, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(400)


def test_noise_grows_with_colluders_and_dropouts():
    data = [records(30, seed) for seed in range(4)]

    def share(**threats):
        solutions, _ = solve(data, **threats)
        stats = solutions[0].stats
        shares = 4 - threats["max_colluding"] - threats.get("max_dropouts", 0)
        assert solutions[0].privacy.epsilon == 2.0
        return stats["stddev"] / np.sqrt(shares), stats["stddev"]

    none, all_none = share(max_colluding=0)
    one, all_one = share(max_colluding=1)
    three, _ = share(max_colluding=3)
    np.testing.assert_allclose(all_none, all_one, rtol=1e-5)
    ratios = [one / none, three / none]
    np.testing.assert_allclose(ratios, [np.sqrt(4 / 3), 2], rtol=1e-5)
    # A dropout costs a share and one more release.
    dropped, _ = share(max_colluding=1, max_dropouts=1)
    np.testing.assert_allclose(dropped / none, np.sqrt(4 / 2 * 6 / 5), rtol=1e-2)
