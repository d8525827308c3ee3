"""Private l1 regression: its sensitivity in float32, its epsilon, its law, its risk."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from benchmarks.figures import printed
from dpjax.accounting import selection_event
from dpjax.constraints import Box, grid_net
from dpjax.solvers import _l1_scores, dp_l1_regression
from tests.unit.refusals import refused

WILD = [math.nan, math.inf, -math.inf, 1e38, -1e38, 1e-45, 1e-38, 0.0, -0.0, 0.3]
FALSE_ALARM = 1e-6
each_order = pytest.mark.parametrize("order", [2.0, 1.5, 1.1])


@jax.jit(static_argnums=4)
def scores_of(features, targets, candidates, truncation, order):
    fixed_point = _l1_scores.FixedPoint.of(targets.size, order)
    blocks = _l1_scores.row_blocks(features, targets, truncation, fixed_point)
    return _l1_scores.chunk_scores(blocks, candidates.T, fixed_point)


def settings(**changes):
    return {"key": jax.random.key(1), "epsilon": 1.0, "truncation": 1.0} | changes


def problem(num_samples, num_candidates=64, num_features=3):
    rng = np.random.default_rng(num_samples)
    features = rng.normal(size=(num_samples, num_features))
    targets = features.sum(axis=1) + rng.standard_t(1.5, num_samples)
    candidates = rng.uniform(-2, 2, (num_candidates, num_features))
    candidates[:2] = [[0.0], [1.0]]
    return [jnp.asarray(a, jnp.float32) for a in (features, targets, candidates)]


@pytest.mark.quick(2)
@each_order
@pytest.mark.parametrize("num_samples", [1, 65, 5000, 100_000])
def test_scores_are_the_formula(num_samples, order):
    features, targets, candidates = problem(num_samples)
    found = scores_of(features, targets, candidates, 0.7, order)
    x, y, w = (np.asarray(a, np.float64) for a in (features, targets, candidates))
    z = np.minimum(0.7 * np.abs(y[:, None] - x @ w.T), 1)
    psi = -np.log1p(-z + z**order / order)  # (6), (16)
    fixed_point = _l1_scores.FixedPoint.of(num_samples, order)
    expected = (math.log(order) - psi).sum(axis=0) / fixed_point.unit
    atol = 2.0**-fixed_point.score_bits + 1e-5 * num_samples
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.slow
def test_the_logarithm_is_as_good_as_the_proof_needs():
    # Every mantissa, and a part of them at every size of a block's product.
    log = jax.jit(jnp.log)
    steps = np.arange(2**23, dtype=np.uint32)
    first = (np.uint32(127 << 23) | steps).view(np.float32)
    for exponent in range(65):
        x = np.ldexp(first if exponent == 0 else first[exponent::997], exponent)
        exact = np.log(x, dtype=np.float64)
        error = np.abs(np.asarray(log(x), np.float64) - exact)
        assert (error <= 2.0**-18 * np.maximum(exact, 1)).all()
    assert np.asarray(log(jnp.ones(3)) == 0).all()


@each_order
@pytest.mark.parametrize("num_samples", [1, 41, 64, 65, 5000, 100_000, 2**24 - 1])
def test_units_hold_what_the_proof_says(num_samples, order):
    unit, length, fine, coarse = _l1_scores.FixedPoint.of(num_samples, order)[1:]
    assert length * math.log2(order) < 127  # no product overflows
    assert num_samples * 2**fine < 2**31
    assert num_samples * 2**coarse < 2**24
    assert fine >= coarse >= 0
    error = length * 2.0**-23 + 2.0**-17 * max(1, length * math.log(order))
    change = 2**fine * (math.log(order) + 2 * error) / unit + 1
    assert change <= 2**fine * (1 + 1e-12)
    assert unit / math.log(order) < (1.002 if num_samples <= 10**5 else 1.01)


@pytest.mark.quick(1)
@each_order
@pytest.mark.parametrize("num_samples", [1, 130, 100_000])
def test_neighbours_move_scores_by_one_at_most(num_samples, order):
    # All records fit, none does, some do; one is replaced by anything. The claim holds
    # for the computed numbers without any tolerance.
    features, targets, candidates = problem(num_samples)
    rows = jnp.array([[0.0, 0.0, 0.0, 0.0]] + [[x, 1.0, 0.5, -x] for x in WILD])
    rows = jnp.concatenate([rows, jnp.array([[1.0, -2.0, 1.0, x] for x in WILD])])

    @jax.jit
    def replaced(targets, position):
        def score(row):
            x, y = features.at[position].set(row[:3]), targets.at[position].set(row[3])
            return scores_of(x, y, candidates, 1.0, order)

        return jax.lax.map(score, rows)

    largest = 0.0
    for y in (features @ jnp.ones(3), targets, targets + 50.0):
        for position in {0, num_samples // 2, num_samples - 1}:
            found = np.asarray(replaced(y, position), np.float64)
            assert np.isfinite(found).all()
            largest = max(largest, np.ptp(found, axis=0).max())
    assert largest <= 1
    assert largest >= 0.99  # a smaller unit would break it


def two_candidates(num_first, num_records=41):
    """Records that fit one candidate and are truncated at the other."""
    is_first = (jnp.arange(num_records) < num_first)[:, None]
    features = jnp.where(is_first, jnp.array([[0.0, 10.0]]), jnp.array([[10.0, 0.0]]))
    return features, jnp.zeros(num_records), jnp.eye(2)


SOLVERS = {"needed": dp_l1_regression, "printed": printed.l1_regression}
LAWS = {  # probability of the candidate that has a higher score by `gap`
    "needed": lambda gap, epsilon: (
        1 - 0.5 * np.exp(-epsilon * gap / 2)
        if gap >= 0
        else 0.5 * np.exp(epsilon * gap / 2)
    ),
    "printed": lambda gap, epsilon: scipy.special.expit(epsilon * gap),
}


def law_of_two(num_first, name, epsilon):
    """The exact probabilities, from the scores as the solver computes them."""
    scores = scores_of(*two_candidates(num_first), 1.0, 2.0)
    gap = float(scores[0]) - float(scores[1])
    return np.array([LAWS[name](gap, epsilon), LAWS[name](-gap, epsilon)])


@pytest.mark.quick(1)
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("name", SOLVERS)
def test_two_candidates_attain_epsilon_and_never_pass_it(name, epsilon):
    # One of 41 records flips the candidate it fits.
    features, targets, candidates = two_candidates(3)
    options = settings(epsilon=epsilon, candidates=candidates)
    spent = SOLVERS[name](features, targets, **options).privacy.epsilon
    assert spent == (epsilon if name == "needed" else 2 * epsilon)
    laws = [law_of_two(k, name, epsilon) for k in range(42)]
    losses = [np.abs(np.log(a) - np.log(b)).max() for a, b in itertools.pairwise(laws)]
    assert max(losses) <= spent * (1 + 1e-9)
    assert max(losses) >= 0.99 * spent


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", SOLVERS)
def test_the_law_that_is_drawn(name, key):
    # 23 of 41: a gap of 5. Chi-square, false alarm 1e-6.
    epsilon, num_draws = 0.5, 100_000
    features, targets, candidates = two_candidates(23)

    def draw(key):
        options = settings(key=key, epsilon=epsilon, candidates=candidates)
        return SOLVERS[name](features, targets, **options).params

    params = jax.jit(jax.vmap(draw))(jax.random.split(key, num_draws))
    first = int((params[:, 0] == 1).sum())
    assert first + int((params[:, 1] == 1).sum()) == num_draws

    def rejects(epsilon):
        law = law_of_two(23, name, epsilon)
        counts = [first, num_draws - first]
        return scipy.stats.chisquare(counts, law * num_draws).pvalue < FALSE_ALARM

    assert not rejects(epsilon)
    assert rejects(epsilon * 2 / 3)
    assert rejects(epsilon * 3 / 2)


@pytest.mark.quick(1)
@pytest.mark.parametrize("chunk_size", [7, 1000])
def test_chunks_change_nothing(chunk_size, key):
    features, targets, candidates = problem(3000)
    best = candidates[scores_of(features, targets, candidates, 1.0, 2.0).argmax()]
    solution = dp_l1_regression(
        features,
        targets,
        **settings(epsilon=1e5, candidates=candidates, chunk_size=chunk_size),
    )
    np.testing.assert_array_equal(solution.params, best)
    assert solution.stats["num_chunks"] == -(-64 // chunk_size)


@pytest.mark.slow
def test_chunked_law_and_its_padding(key):
    # Five candidates in chunks of two, all with one score; false alarm 1e-6.
    candidates = jnp.arange(5.0)[:, None]

    def draw(key):
        return dp_l1_regression(
            jnp.zeros((9, 1)),
            jnp.zeros(9),
            **settings(key=key, candidates=candidates, chunk_size=2),
        ).params

    params = jax.jit(jax.vmap(draw))(jax.random.split(key, 20_000))
    counts = np.bincount(np.asarray(params[:, 0], int))
    assert len(counts) == 5
    assert scipy.stats.chisquare(counts).pvalue > FALSE_ALARM


@pytest.mark.quick(1)
@pytest.mark.parametrize("num_samples", [10_000, 100_000])
def test_memory_with_a_million_candidates(num_samples):
    def solve(key, features, targets, candidates):
        return dp_l1_regression(
            features, targets, **settings(key=key, candidates=candidates)
        )

    shapes = [(num_samples, 4), (num_samples,), (1_000_000, 4)]
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    compiled = jax.jit(solve).lower(jax.random.key(0), *arrays).compile()
    memory = compiled.memory_analysis()
    assert memory.temp_size_in_bytes < 2**26  # a copy of the candidates, mostly


@pytest.mark.quick(1)
@pytest.mark.parametrize("order", [2.0, 1.3])
def test_heavy_tails(order, key):
    # Noise with 1.5 degrees of freedom has no variance; targets are off by any amount
    # in one record of fifty. theta = 1.3: E|t|^1.3 < 3, and |x| adds to it.
    truth = jnp.array([0.6, -0.4])
    rng = np.random.default_rng(0)
    features = jnp.asarray(rng.normal(size=(20_000, 2)), jnp.float32)
    noise = jnp.asarray(rng.standard_t(1.5, 20_000), jnp.float32)
    targets = (features @ truth + 0.3 * noise).at[::50].set(1e30)
    net = grid_net(Box(-1.0, 1.0), 2, radius=0.03)
    wide = [np.asarray(a, np.float64) for a in (features, targets)]
    least = np.linalg.lstsq(*wide)[0]
    assert np.abs(least).max() > 2  # where squares fail
    solution = dp_l1_regression(
        features,
        targets,
        key=key,
        epsilon=4.0,
        candidates=net,
        moment_order=order,
        residual_moment_bound=3.0,
    )
    assert jnp.linalg.norm(solution.params - truth) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("order", [2.0, 1.4])
def test_risk_bound(order, key):
    # Features and noise are Gaussian: y - <x, w> is normal with variance 1 + |w - w*|^2
    # and E|.| = sqrt(2 variance / pi), E|.|^theta <= variance^(theta/2) <= 9^(theta/2).
    keys = jax.random.split(key, 2)
    features = jax.random.normal(keys[0], (50, 1000, 2))
    noise = jax.random.normal(keys[1], (50, 1000))
    candidates = grid_net(Box(-2.0, 2.0), 2, radius=0.5)
    best = candidates[jnp.linalg.norm(candidates, axis=1).argmin()]

    def solve(seed, features, targets):
        return dp_l1_regression(
            features,
            targets,
            key=jax.random.key(seed),
            epsilon=1.0,
            candidates=candidates,
            moment_order=order,
            residual_moment_bound=9 ** (order / 2),
        )

    solutions = jax.jit(jax.vmap(solve))(jnp.arange(50), features, noise)

    def risk(w):
        return jnp.sqrt(2 / jnp.pi * (1 + (w**2).sum(axis=-1)))

    excess = risk(solutions.params) - risk(best)
    assert (excess <= solutions.stats["risk_bound"]).all()
    assert excess.mean() < 0.5 * (risk(candidates).mean() - risk(best))


@pytest.mark.slow
@pytest.mark.parametrize("order", [2.0, 1.4])
def test_default_truncation_is_least_in_its_bound(order):
    features, targets, candidates = problem(500)
    options = settings(
        candidates=candidates, moment_order=order, residual_moment_bound=2.0
    )

    def stats(truncation, solve=dp_l1_regression):
        changes = {"truncation": truncation, "key": jax.random.key(3)}
        return solve(features, targets, **(options | changes)).stats

    taken = stats(None)
    for factor in (0.9, 1.1):
        other = stats(factor * taken["truncation"])
        assert other["risk_bound"] > taken["risk_bound"]
    # The bound at any iota, term by term (Lemmas 4, 5, 7, 8 and the choice).
    unit, iota = math.log(order) * taken["sensitivity_slack"], taken["truncation"]
    logs = (1 + 2 * unit) * math.log(3 * 64 / 0.01) + math.log(3 / 0.01)
    bound = 2 * 2.0 * iota ** (order - 1) / order + logs / (500 * iota)
    assert taken["risk_bound"] == pytest.approx(bound)
    # The printed minimisers of (14) and (26), at epsilon = 1.
    logs = math.log(64 / 0.01)
    if order == 2:
        expected = math.sqrt(2 * (3 + 4 * math.log(2)) * logs / (5 * 500 * 2.0))
    else:
        factor = 2 * 2 ** (order - 1) * 2.0 / order * (order - 1)
        expected = (8 * math.log(order) * logs / 500 / factor) ** (1 / order)
    found = stats(None, printed.l1_regression)["truncation"]
    assert found == pytest.approx(expected)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64])
def test_dtypes(dtype):
    features, targets, candidates = problem(300)
    with jax.enable_x64(dtype == jnp.float64):
        solution = dp_l1_regression(
            features.astype(dtype),
            targets.astype(dtype),
            **settings(candidates=candidates.astype(dtype)),
        )
        assert solution.params.dtype == dtype
        wide = scores_of(
            features.astype(dtype).astype(jnp.float32),
            targets.astype(dtype).astype(jnp.float32),
            candidates,
            1.0,
            2.0,
        )
        assert wide.dtype == jnp.float32
    half = dp_l1_regression(
        np.asarray(features, np.float64), targets, **settings(candidates=candidates)
    )
    assert half.params.dtype == jnp.float32


def test_many_features_take_a_matrix_product():
    features, targets, candidates = problem(200, 32, num_features=20)
    found = scores_of(features, targets, candidates, 0.1, 2.0)
    residuals = targets[:, None] - features @ candidates.T
    rest = np.maximum(1 - 0.1 * np.abs(np.asarray(residuals)), 0)
    np.testing.assert_allclose(found, np.log2(1 + rest**2).sum(axis=0), rtol=2e-3)


def test_blocks_side_by_side_give_the_scores_of_one_by_one(monkeypatch):
    # What other platforms run, run here.
    data = problem(9000)
    expected = scores_of(*data, 1.0, 2.0)

    def default(*, cpu, default):
        del cpu
        return default()

    monkeypatch.setattr(jax.lax, "platform_dependent", default)
    found = scores_of.__wrapped__(*data, 1.0, 2.0)
    # Products may be taken in another order, in which they round otherwise.
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.01)


def test_guarantee():
    solution = dp_l1_regression(*problem(41)[:2], **settings(candidates=jnp.eye(3)))
    assert (solution.privacy.epsilon, solution.privacy.delta) == (1.0, 0.0)
    assert "41 records" in str(solution.privacy)
    assert solution.stats["num_candidates"] == 3
    event = selection_event(1.0, mechanism="permute_and_flip")
    assert solution.privacy.dp_event == event


ARRAYS = {
    "features": jnp.zeros((8, 3)),
    "targets": jnp.zeros(8),
    "candidates": jnp.eye(3),
}

test_bad_arguments = refused(
    lambda changes: dp_l1_regression(**settings(**(ARRAYS | changes))),
    ({"moment_order": 2.1}, r"moment_order must be in \(1, 2\], got 2.1"),
    ({"candidates": jnp.zeros((1, 3))}, r"candidates must .* got .*\(1, 3\)"),
    ({"candidates": jnp.zeros((5, 2))}, r"candidates must .* got .*\(5, 2\)"),
    ({"candidates": jnp.zeros(3)}, r"candidates must be .* got .*shape=\(3,\)"),
    ({"candidates": jnp.zeros((5, 3), int)}, "candidates must be .* got .*int32"),
    ({"candidates": jnp.zeros((0, 3))}, r"candidates must be .* got .*\(0, 3\)"),
)


def test_too_many_records_are_refused():
    features = jax.ShapeDtypeStruct((2**24, 1), jnp.float32)
    targets = jax.ShapeDtypeStruct((2**24,), jnp.float32)
    with pytest.raises(ValueError, match=r"features must be of fewer than 2\^24 rows"):
        jax.eval_shape(
            lambda x, y: dp_l1_regression(
                x, y, **settings(candidates=jnp.zeros((2, 1)))
            ),
            features,
            targets,
        )
