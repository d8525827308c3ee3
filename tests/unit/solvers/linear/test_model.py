"""A linear model without settings: what it finds, what it costs, what it takes."""

import itertools
import math
from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

from dpjax import accounting, gradients, losses
from dpjax.solvers import dp_additive_model, dp_linear_model
from dpjax.solvers.linear import _columns, _fit
from dpjax.solvers.linear._kind import ModelKind, Shares
from dpjax.solvers.linear._steps import BlockClipping
from dpjax.solvers.statistics import _noisy_quantile
from dpjax.solvers.statistics._moments import noisy_second_moments, shrunk, whitening

TRUE = np.array([1.0, -2.0, 0.5, 3.0], np.float32)  # the last is the intercept
NUM = 4_000
CONSTANTS = [("squared", 0.8), ("logistic", math.log(4))]
CONSTANTS += [(losses.poisson(10.0), math.log(0.8))]
CONSTANTS += [(losses.softmax(2), [-math.log(2), math.log(2)])]


def table(seed=0, num=NUM):
    rng = np.random.default_rng(seed)
    features = np.c_[rng.standard_t(3, (num, 3)), np.ones(num)].astype(np.float32)
    return features, features @ TRUE, rng.standard_t(3, num).astype(np.float32)


def solve(loss="squared", data=None, **changes):
    if data is None:
        features, means, noise = table()
        data = features, means + noise
    options = {"key": jax.random.key(1), "epsilon": 8.0, "delta": 1e-5, "intercept": 3}
    return dp_linear_model(loss, data, **(options | changes))


def test_weights_are_found_in_any_unit_and_place_of_the_intercept():
    features, means, noise = table()
    solution = solve(max_features=3)
    np.testing.assert_allclose(solution.params, TRUE, atol=0.3)
    assert solution.stats["num_steps"] == 50
    # An intercept may stand anywhere.
    order = [3, 0, 1, 2]
    moved = solve(data=(features[:, order], means + noise), intercept=-4)
    np.testing.assert_allclose(moved.params, TRUE[order], atol=0.3)
    assert "selected" not in solution.stats  # all features may stay
    np.testing.assert_allclose(sum(solution.stats["shares"].values()), 1, rtol=1e-12)
    # The column of the intercept is not read.
    other = features.copy()
    other[:, 3] = 1e30
    same = solve(data=(other, means + noise))
    np.testing.assert_array_equal(same.params, solution.params)
    for unit, mean in ((1.0, 1e3), (1e-4, 0.0), (1e4, 0.0)):
        params = solve(data=(features, unit * (means + noise + mean))).params
        np.testing.assert_allclose(params[3] / unit, 3 + mean, atol=0.3 + 0.01 * mean)
        if not mean:
            np.testing.assert_allclose(params / unit, TRUE, atol=0.3)
    # Records of weight zero count for nothing.
    is_out = np.arange(NUM) % 4 == 0
    targets, weights = np.where(is_out, -50 * means, means + noise), 5.0 * ~is_out
    solution = solve(data=(features, targets), weights=weights, max_weight=5.0)
    np.testing.assert_allclose(solution.params, TRUE, atol=0.4)


def test_classes_are_told_apart():
    features, means, noise = table()
    labels = np.where(means + noise > 0, 7.0, 0.0)  # y > 0 is the positive class
    params = solve("logistic", data=(features, labels)).params
    assert np.mean((features @ params > 0) == (labels > 0)) > 0.8


@pytest.mark.parametrize(("loss", "constant"), CONSTANTS)
def test_a_constant_alone_takes_all_of_the_budget(loss, constant):
    data = np.ones((NUM, 1)), np.float32(np.arange(NUM) % 5 > 0)
    solution = solve(loss, data=data, intercept=0, epsilon=0.5)
    np.testing.assert_allclose(np.squeeze(solution.params, 0), constant, atol=0.1)
    shares = solution.stats["shares"]
    np.testing.assert_allclose(shares["target_size"] + shares["mean"], 1)
    for key in map(jax.random.key, range(6)):  # noise makes no class impossible
        solution = solve(loss, data=data, intercept=0, epsilon=1e-3, key=key)
        assert np.min(solution.params) > -3


@pytest.mark.parametrize("values", [(1.0, 0.0), (np.inf, -1e38), (1.0, 0.0, np.nan)])
def test_the_noise_of_a_constant_alone_is_what_the_budget_asks_for(values):
    # Shares of labels, which nothing but the noise moves from key to key.
    labels = np.resize(values, NUM)
    data = np.ones((NUM, 1)), labels.astype(np.float32)

    def share(key):
        solution = solve("logistic", data=data, intercept=0, key=key, epsilon=1.0)
        return jax.nn.sigmoid(solution.params[0]), solution.stats["noise_multiplier"]

    shares, multipliers = jax.vmap(share)(jax.random.split(jax.random.key(0), 500))
    expected = multipliers[0] / float(np.sum(~np.isnan(labels)))  # of ±1, halved
    np.testing.assert_allclose(np.std(shares), expected, rtol=0.15)
    assert abs(np.mean(shares) - 0.5) < expected


@pytest.mark.parametrize(
    ("power", "other"),
    [(1.5, 0.0), (1.5, np.nan), (1.5, 60.0), (1.0, 1e-6), (2.0, 0.0), (2.0, 60.0)],
)
def test_a_group_beyond_all_means_leaves_the_others_as_they_are(power, other):
    """Of a log link whose best predictions for the group would be infinite."""
    rng = np.random.default_rng(0)
    is_other = rng.random(NUM) < 0.3
    targets = np.where(is_other, other, rng.gamma(5, 1 / 5, NUM))
    loss, data = losses.log_link(power), (np.c_[is_other, np.ones(NUM)], targets)
    weight, level = solve(loss, data=data, intercept=1, epsilon=3.0).params
    np.testing.assert_allclose(np.exp(level), 1, rtol=0.3)
    if other < 1:
        assert loss.mean_of(level + weight) < 0.2
    elif other > 1:
        assert loss.mean_of(level + weight) > 5
    else:
        assert abs(weight) < 10


@pytest.mark.parametrize(
    ("loss", "epsilon", "share"),
    [
        *(("huber", 0.5, 0.01), ("huber", 8.0, 0.01), ("huber", 8.0, 0.0)),
        *((losses.huber(2.0), 1.0, 0.01), (losses.huber(1e30), 8.0, 0.0)),
    ],
)
def test_the_huber_loss_resists_whatever_the_budget(loss, epsilon, share):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 80, 20_000)
    targets = 10 * x + rng.normal(0, 20, 20_000)
    targets[: int(share * 20_000)] = 1e6
    features = np.c_[x, np.ones(20_000)]
    solution = solve(loss, (features, targets), epsilon=epsilon, intercept=1)
    assert np.median(np.abs(features @ solution.params - 10 * x)) < 0.5
    np.testing.assert_allclose(sum(solution.stats["shares"].values()), 1, rtol=1e-12)
    if loss == "huber":  # else the threshold is not in scales
        np.testing.assert_allclose(solution.stats["residual_scale"], 20, rtol=0.1)


def test_price_is_that_of_one_gaussian_or_with_a_choice_zcdp():
    solution = solve(epsilon=1.0)
    multiplier = solution.stats["noise_multiplier"]
    exact = accounting.gaussian_epsilon(multiplier, 1e-5, sensitivity=1.0)
    np.testing.assert_allclose(exact, 1.0, rtol=1e-6)
    assert solution.privacy.epsilon == 1.0
    assert solution.privacy.dp_event.event == GaussianDpEvent(multiplier)
    # The same from the multiplier, as where another release has a part of the budget.
    same = solve(epsilon=None, noise_multiplier=multiplier)
    np.testing.assert_array_equal(same.params, solution.params)
    np.testing.assert_allclose(same.privacy.epsilon, 1.0, rtol=1e-6)
    chosen = solve(epsilon=None, noise_multiplier=multiplier, max_features=2)
    expected = accounting.rho_to_epsilon(0.5 / multiplier**2, 1e-5)
    assert chosen.privacy.epsilon == expected > 1.0
    chosen = solve(epsilon=1.0, max_features=2)
    rho = accounting.epsilon_to_rho(1.0, 1e-5)
    assert chosen.privacy.dp_event.rho == rho
    # The model's part, the shares of the choice being the rest.
    spent = 0.5 / chosen.stats["noise_multiplier"] ** 2
    np.testing.assert_allclose(spent / rho, 0.55, rtol=1e-6)


def test_shares_compose_to_the_whole():
    pair = losses.squared, losses.logistic
    cases = itertools.product(pair, [True, False], [0.3, 30.0], [0, 20])
    for loss, has_intercept, multiplier, num_features in cases:
        kind = ModelKind(loss, has_intercept, False, axis_name=None)
        shares = Shares.of(kind, (1_000, num_features), multiplier)
        total = math.fsum(1 / x**2 for x in shares.multipliers(multiplier) if x)
        np.testing.assert_allclose(total, 1 / multiplier**2, rtol=1e-12)


def test_steps_have_the_noise_that_their_share_pays(monkeypatch):
    spy = mock.Mock(wraps=_fit.iterate)
    monkeypatch.setattr(_fit, "iterate", spy)
    solution = solve(epsilon=1.0)
    share = solution.stats["shares"]["steps"] / solution.stats["noise_multiplier"] ** 2
    step = spy.call_args.args[0]
    spent = step.batches.start.num_steps / step.noise_multiplier**2
    np.testing.assert_allclose(spent, share, rtol=1e-9)


class TestNoisyQuantile:
    def released(self, sizes, multiplier, **options):
        release = partial(_noisy_quantile.noisy_quantile, jax.random.key(1))
        return release(jnp.float32(sizes), noise_multiplier=multiplier, **options)

    def test_two_counts_move_so_noise_is_for_both(self, monkeypatch):
        spy = mock.Mock(wraps=_noisy_quantile.gaussian_of_padded)
        monkeypatch.setattr(_noisy_quantile, "gaussian_of_padded", spy)
        self.released(np.ones(100), 3.0, num_above=1)
        for call in spy.call_args_list:
            _, counts, stddevs = call.args
            assert counts.sum() == 100
            assert 3 * 2**0.5 <= stddevs.min() <= 3 * 2**0.5 * 1.001
        assert spy.called

    def test_without_noise_it_is_the_quantile(self):
        sizes = np.random.default_rng(0).exponential(size=10_000)
        quantile = self.released(sizes, 1e-6, num_above=100)
        np.testing.assert_allclose(quantile, np.quantile(sizes, 0.99), rtol=0.25)
        # A share is of records that are not zero.
        sizes = np.where(np.arange(10_000) % 3 == 0, 3.0, 0.0)
        sizes[:1_500] = 1e6
        assert 2 <= self.released(sizes, 1e-6, share_above=0.5) <= 4

    def test_what_noise_hides_is_not_seen(self):
        sizes = np.where(np.arange(10_000) < 3, 1e9, 1)
        assert self.released(sizes, 10.0) <= 2
        assert self.released(np.ones(10), 1e6, num_above=1) == 1.0
        # No bin but that of zeros has 5 stddevs of noise, but four have 8 together.
        for zero, unit in (0.0, 1e6), (1e-5, 1e5):
            sizes = np.repeat([zero, *unit * 2.0 ** np.arange(4)], [2_200, *[200] * 4])
            assert unit / 2 <= self.released(sizes, 40.0, share_above=0.2) < 10 * unit

    @pytest.mark.parametrize("value", [0.0, math.nan, math.inf, -math.inf, 1e-30])
    def test_any_number_is_in_a_bin(self, value):
        assert 0 < self.released(np.full(10_000, value), 1.0) < 1e14


class TestNoisyMedian:
    def test_counts_move_by_two_and_share_the_budget(self, monkeypatch):
        stddevs = []

        def spy(key, value, *, stddev):
            stddevs.append(stddev)
            return value

        monkeypatch.setattr(_noisy_quantile, "gaussian", spy)
        inner = _noisy_quantile._median.__wrapped__  # not traced, nor from a cache
        monkeypatch.setattr(_noisy_quantile, "_median", inner)
        values = jnp.asarray(np.random.default_rng(0).standard_cauchy(5_001) + 3)
        weights = jnp.ones(5_001).at[jnp.argsort(values)[:1_000]].set(0.0)
        arrays = jax.random.key(0), values, weights
        released = _noisy_quantile.noisy_median(*arrays, bound=10, noise_multiplier=3)
        np.testing.assert_allclose(released, jnp.median(values[weights > 0]), atol=2e-3)
        assert all(6 <= stddev / 20**0.5 <= 6.001 for stddev in stddevs)

    def test_what_noise_hides_is_within_the_bound(self):
        arrays = jax.random.key(0), jnp.full(50, 1e9), jnp.ones(50)
        options = {"bound": 2.0, "noise_multiplier": 1e6}
        assert -2 <= _noisy_quantile.noisy_median(*arrays, **options) <= 2


@partial(jax.jit, static_argnames=("radius", "noise_multiplier"))
def moments_of(rows, radius=1.5, noise_multiplier=1e-5):
    """Second moments and the stddev of their noise, almost none by default."""
    options = {"radius": radius, "noise_multiplier": noise_multiplier}
    return noisy_second_moments(jax.random.key(0), rows, axis_name=None, **options)


class TestSecondMoments:
    def test_one_record_moves_them_by_what_is_stated(self):
        """The antipodal pair is no neighbor: x and -x have the same moments."""
        rows = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
        sensitivity = moments_of(rows)[1] / 1e-5

        def moments(new):
            rows[0] = new
            return np.asarray(moments_of(rows)[0])

        odd = [[1e9, 0, 0], [0, 1e9, 0], [math.nan, math.inf, 1.0], [0, -1e30, 9]]
        released = [moments(new) for new in odd]
        moved = [np.linalg.norm(x - y) for x, y in itertools.combinations(released, 2)]
        assert max(moved) <= sensitivity * (1 + 1e-4)
        assert moved[0] > 0.99 * sensitivity  # two rows at a right angle attain it

    def test_entries_are_not_rounded_again_before_the_noise(self):
        """Rounding of all entries may move more than one record of millions does."""
        row = np.float32(1 + np.arange(64) / 64)
        second, _ = moments_of(np.tile(row, (64, 1)), 16.0, 0.0)
        np.testing.assert_array_equal(second, np.outer(row, row))

    def test_noise_on_a_pair_is_one_draw(self):
        second, stddev = moments_of(np.zeros((50, 40), np.float32), 1.0, 1.0)
        np.testing.assert_array_equal(second, second.T)
        np.testing.assert_allclose(np.std(np.diag(second)), stddev, rtol=0.5)
        upper = np.asarray(second)[np.triu_indices(40, 1)]
        np.testing.assert_allclose(np.std(upper), stddev / 2**0.5, rtol=0.1)

    def test_what_noise_hides_leaves_one_scale_and_no_center_far_off(self):
        moments = jnp.diag(jnp.array([1.0, 1.0, 0.01])).at[:2, 2].set(0.5)
        assert jnp.linalg.norm(whitening(moments, 0.2, ones=1.0).center) < 2
        noise = np.random.default_rng(0).normal(size=(30, 30)) * 1.0
        noise = np.triu(noise) + np.triu(noise, 1).T
        white = whitening(jnp.asarray(noise / 2, "float32"), 1.0)
        assert white.share_kept < 0.2
        assert jnp.all(jnp.isfinite(white.matrix))
        noisy = jnp.asarray(np.eye(30) + noise / 9, "float32")
        off = shrunk(noisy, 0.15, jnp.arange(30) < 29)[0] - jnp.eye(30)
        assert jnp.linalg.norm(off) < 0.3 * np.linalg.norm(noise / 9)


def test_blocks_are_clipped_apart_and_noise_holds_for_both():
    shares = ("weights", 0.9), ("intercept", 0.1)
    estimator = BlockClipping({"weights": 2.0, "intercept": 0.5}, shares)
    sample = {"weights": jnp.array([30.0, 40.0]), "intercept": jnp.array(-9.0)}
    clipped = estimator.influence(sample)
    weights = np.array([0.6, 0.8]) * 0.9**0.5
    np.testing.assert_allclose(clipped["weights"], weights, rtol=1e-6)
    np.testing.assert_allclose(clipped["intercept"], -(0.1**0.5), rtol=1e-6)
    length = sum(float(jnp.sum(x**2)) for x in jax.tree.leaves(clipped)) ** 0.5
    assert length <= 1
    assert estimator.sensitivity(100, 3).l2 >= 2 / 100


def test_a_fit_on_a_sample_costs_what_was_asked_for_all():
    x = jax.random.normal(jax.random.key(5), (4_000, 3))
    data = x, x @ jnp.array([1.0, -2.0, 0.5])
    fit = partial(dp_linear_model, "squared", data, weights=np.ones(4_000))
    ask = {"epsilon": 0.5, "delta": 1e-6}
    solution = fit(key=jax.random.key(0), max_records=1_000, **ask)
    assert solution.privacy.epsilon == pytest.approx(0.5, rel=1e-6)
    assert solution.privacy.delta == pytest.approx(1e-6, rel=1e-6)
    assert "4,000 records" in solution.privacy.description
    np.testing.assert_allclose(solution.params, [1, -2, 0.5], atol=0.4)
    own = accounting.Sample(4_000, 1_000).budget(0.5, 1e-6)
    expected = accounting.noise_multiplier(*own, accounting.Sampling(num_steps=1))
    np.testing.assert_allclose(solution.stats["noise_multiplier"], expected, rtol=1e-6)


@pytest.mark.parametrize("fit", [dp_linear_model, dp_additive_model])
def test_what_is_refused_draws_no_sample(fit, monkeypatch):
    monkeypatch.setattr(_columns, "uniform_subset", None)
    features, means, _ = table()
    given = {"key": jax.random.key(1), "epsilon": 8.0, "delta": 1e-5, "max_records": 9}
    given |= {} if fit is dp_linear_model else {"smooth": (0, 1)}
    of_all = [{"max_weight": 0.0}, {"execution": print}, {"intercept": 4}]
    of_all += [{"delta": 0.5}, {"epsilon": None, "noise_multiplier": 1.0}]
    of_all += [{"loss": losses.softmax(3), "intervals": True}]
    ids, sizes = np.arange(len(means)), {"num_users": 9, "records_per_user": 2}
    users = {"data": gradients.by_user((features, means), ids, **sizes)}
    of_all += [{"max_records": 9} | users]
    of_all += [{"weights": np.ones(18), "max_records": None} | users]
    of_one = [{"max_features": 0}, {"max_features": 2, "intervals": True}]
    of_one += [{"weights": np.ones(3)}, {"offsets": np.ones(3)}]
    of_other = [{"smooth": x} for x in ((0, 0), (0, 4))]
    of_other += [{"smooth": (3,), "intercept": 3}]
    for wrong in of_all + (of_one if fit is dp_linear_model else of_other):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            fit(**{"loss": "squared", "data": (features, means)} | given | wrong)
