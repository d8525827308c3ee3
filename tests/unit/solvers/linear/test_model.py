"""A linear model without settings: what it finds, what it costs, what it takes."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import losses
from dpjax.accounting import (
    Sample,
    epsilon_to_rho,
    gaussian_epsilon,
    gaussian_event,
    noise_multiplier,
    rho_to_epsilon,
)
from dpjax.mechanisms._shared import gaussian_of_padded
from dpjax.solvers import Execution, dp_linear_model
from dpjax.solvers._loop import iterate
from dpjax.solvers.linear import _fit, _noisy_quantile, _on_sample, _robust
from dpjax.solvers.linear._kind import ModelKind, Shares
from dpjax.solvers.linear._moments import noisy_second_moments, whitening
from dpjax.solvers.linear._noisy_quantile import noisy_quantile
from dpjax.solvers.linear._robust import noisy_median
from dpjax.solvers.linear._steps import BlockClipping
from tests.unit.refusals import refused

TRUE = np.array([1.0, -2.0, 0.5, 3.0], np.float32)  # the last is the intercept
NUM = 4_000


def table(seed=0, num=NUM):
    rng = np.random.default_rng(seed)
    features = np.c_[rng.standard_t(3, (num, 3)), np.ones(num)].astype(np.float32)
    noise = rng.standard_t(3, num).astype(np.float32)
    return features, features @ TRUE, noise


def solve(loss="squared", data=None, **changes):
    if data is None:
        features, means, noise = table()
        data = features, means + noise
    options = {"key": jax.random.key(1), "epsilon": 8.0, "delta": 1e-5, "intercept": 3}
    return dp_linear_model(loss, data, **(options | changes))


def test_squared_loss():
    solution = solve()
    np.testing.assert_allclose(solution.params, TRUE, atol=0.3)
    assert solution.stats["num_steps"] == 50
    np.testing.assert_allclose(sum(solution.stats["shares"].values()), 1, rtol=1e-12)


def test_an_intercept_may_stand_anywhere():
    features, means, noise = table()
    order = [3, 0, 1, 2]
    moved = solve(data=(features[:, order], means + noise), intercept=0)
    np.testing.assert_allclose(moved.params, TRUE[order], atol=0.3)
    last = solve(data=(features[:, order], means + noise), intercept=-4)
    np.testing.assert_array_equal(moved.params, last.params)


@pytest.mark.parametrize(
    ("loss", "constant"),
    [
        ("squared", 0.8),
        ("logistic", math.log(4)),
        (losses.poisson(10.0), math.log(0.8)),
        (losses.softmax(2), [-math.log(2), math.log(2)]),
    ],
)
def test_a_constant_alone_takes_all_of_the_budget(loss, constant):
    ones, labels = np.ones((NUM, 1)), np.arange(NUM) % 5 > 0
    data = ones, labels.astype(np.float32)
    solution = solve(loss, data=data, intercept=0, epsilon=0.5)
    found = np.squeeze(solution.params, axis=0)
    np.testing.assert_allclose(found, constant, atol=0.1)
    shares = solution.stats["shares"]
    np.testing.assert_allclose(shares["target_size"] + shares["mean"], 1)


@pytest.mark.parametrize("values", [(1.0, 0.0), (np.inf, -1e38), (1.0, 0.0, np.nan)])
def test_the_noise_of_a_constant_alone_is_what_the_budget_asks_for(values):
    # Shares of labels, which nothing but the noise moves from key to key.
    labels = np.resize(values, NUM)
    data = np.ones((NUM, 1)), labels.astype(np.float32)

    def share(key):
        solution = solve("logistic", data=data, intercept=0, key=key, epsilon=1.0)
        return jax.nn.sigmoid(solution.params[0]), solution.stats["noise_multiplier"]

    shares, multipliers = jax.vmap(share)(jax.random.split(jax.random.key(0), 500))
    # Of a mean of ±1, halved.
    expected = multipliers[0] / float(np.sum(~np.isnan(labels)))
    np.testing.assert_allclose(np.std(shares), expected, rtol=0.15)
    assert abs(np.mean(shares) - 0.5) < expected


@pytest.mark.slow
def test_a_constant_alone_has_its_offsets():
    rng = np.random.default_rng(0)
    exposures = rng.uniform(0.2, 1.0, NUM)
    solution = solve(
        losses.poisson(10.0),
        data=(np.ones((NUM, 1)), rng.poisson(2 * exposures)),
        intercept=0,
        offsets=np.log(exposures),
    )
    np.testing.assert_allclose(solution.params, [math.log(2)], atol=0.2)


@pytest.mark.parametrize(
    ("power", "other"),
    [
        *itertools.product([1.0, 1.5, 2.0], [0.0, 1e-6, np.nan]),
        (1.5, 60.0),
        (2.0, 60.0),
    ],
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


@pytest.mark.parametrize("unit", [0.5, 20.0])
def test_a_log_link_has_its_best_weights_in_any_unit(unit):
    rng = np.random.default_rng(0)
    x = np.c_[rng.normal(size=(NUM, 6)), np.ones(NUM)]
    x[:, 1] = 0.9 * x[:, 0] + 0.3 * x[:, 1]
    targets = rng.poisson(
        np.exp(x @ [0.5, -0.3, 0.2, 0.1, 0, 0, 1]) * rng.exponential(size=NUM)
    )
    data = x, targets / unit
    params = solve(losses.log_link(1.0), data=data, intercept=6, epsilon=1e6).params
    best = np.zeros(7)
    for _ in range(30):  # Newton's steps
        means = np.exp(np.clip(x @ best, -9, 9))
        best += np.linalg.solve((x.T * means) @ x, x.T @ (targets - means))
    residuals = targets - np.exp(x @ best)
    bread = np.linalg.inv((x.T * np.exp(x @ best)) @ x)
    errors = np.sqrt(np.diag(bread @ (x.T * residuals**2) @ x @ bread))
    found = np.asarray(params) + np.log(unit) * (np.arange(7) == 6)
    assert np.max(np.abs(found - best) / errors) < 0.5


@pytest.mark.slow
def test_steps_are_fewer_where_noise_is_great():
    assert solve(epsilon=0.1).stats["num_steps"] == 50


def test_targets_of_great_mean_need_their_intercept():
    features, means, noise = table()
    solution = solve(data=(features, means + noise + 1_000))
    np.testing.assert_allclose(solution.params[3], 1_003, rtol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("unit", [1e-4, 1e4])
def test_units_of_targets_change_nothing(unit):
    features, means, noise = table()
    solution = solve(data=(features, unit * (means + noise)))
    np.testing.assert_allclose(solution.params / unit, TRUE, atol=0.3)


@pytest.mark.slow
def test_long_rows_of_no_use_cost_little():
    # The best constant has 0.5004. A center with the noise of long rows left 0.66.
    rng = np.random.default_rng(0)
    features = np.c_[rng.normal(0.7, 0.5, size=(20_000, 150)), np.ones(20_000)]
    labels = np.where(rng.random(20_000) < 0.2, 1.0, -1.0)
    found = [
        solve(
            "logistic", (features, labels), key=key, epsilon=0.1, intercept=150
        ).params
        for key in jax.random.split(jax.random.key(0), 4)
    ]
    margins = labels[:, None] * (features @ np.transpose(found))
    assert np.mean(np.logaddexp(0, -margins)) < 0.55


def test_classes():
    features, means, noise = table()
    labels = np.where(means + noise > 0, 7.0, 0.0)  # y > 0 is the positive class
    solution = solve("logistic", data=(features, labels))
    assert np.mean((features @ solution.params > 0) == (labels > 0)) > 0.8


@pytest.mark.parametrize(
    ("loss", "epsilon", "share"),
    [
        ("huber", 0.5, 0.01),
        ("huber", 8.0, 0.01),
        ("huber", 8.0, 0.0),
        pytest.param(losses.huber(2.0), 1.0, 0.01, marks=pytest.mark.slow),
        pytest.param(losses.huber(1e30), 8.0, 0.0, marks=pytest.mark.slow),
    ],
)
def test_the_huber_loss_resists_whatever_the_budget(loss, epsilon, share):
    # A start at a mean of clipped targets left 2,000 to 6,000, at more epsilon more.
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 80, 20_000)
    targets = 10 * x + rng.normal(0, 20, 20_000)
    targets[: int(share * 20_000)] = 1e6
    features = np.c_[x, np.ones(20_000)]
    solution = solve(loss, (features, targets), epsilon=epsilon, intercept=1)
    assert np.median(np.abs(features @ solution.params - 10 * x)) < 0.5
    np.testing.assert_allclose(sum(solution.stats["shares"].values()), 1, rtol=1e-12)
    if loss == "huber":
        np.testing.assert_allclose(solution.stats["residual_scale"], 20, rtol=0.1)


@pytest.mark.slow
def test_the_huber_loss_of_a_constant_alone_and_of_offsets():
    _, _, noise = table()
    noise[:200] = 1e9
    offsets = np.where(np.arange(NUM) % 3 == 0, -1e4, 1.0)
    solution = solve(
        "huber", (np.ones((NUM, 1)), 7 + noise + offsets), intercept=0, offsets=offsets
    )
    np.testing.assert_allclose(solution.params, [7], atol=0.3)
    # Half of the records have weight zero: scales are those of the others.
    weights = np.arange(NUM) % 2
    features, means, noise = table()
    targets = np.where(weights, means + noise, 1e12)
    solution = solve("huber", (features, targets), weights=weights)
    np.testing.assert_allclose(solution.params, TRUE, atol=0.4)


@pytest.mark.slow
def test_several_classes():
    features, means, _ = table()
    scores = np.c_[means, -means, np.zeros(NUM)]
    labels = scores.argmax(axis=1)
    solution = solve(losses.softmax(3), data=(features, labels))
    assert solution.params.shape == (4, 3)
    assert np.mean((features @ solution.params).argmax(axis=1) == labels) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("most", [1.0, 0.1])
def test_counts_with_exposures(most):
    rng = np.random.default_rng(0)
    features = np.c_[rng.uniform(-1, 1, (5 * NUM, 2)), np.ones(5 * NUM)]
    exposures = most * rng.uniform(0.05, 1.0, 5 * NUM)
    counts = rng.poisson(exposures * np.exp(features @ [0.8, -0.5, 0.3]))
    solution = solve(
        losses.poisson(10.0),
        data=(features, counts),
        intercept=2,
        offsets=np.log(exposures),
    )
    # The constant is that of a unit of exposure, not the mean count.
    rate = np.sum(counts) / np.sum(exposures)
    np.testing.assert_allclose(solution.stats["constant"], np.log(rate), atol=0.3)
    np.testing.assert_allclose(solution.params, [0.8, -0.5, 0.3], atol=0.2)


def test_records_of_weight_zero_count_for_nothing():
    features, means, noise = table()
    targets = np.where(np.arange(NUM) % 4 == 0, -50.0 * means, means + noise)
    weights = np.where(np.arange(NUM) % 4 == 0, 0.0, 5.0)
    solution = solve(data=(features, targets), weights=weights, max_weight=5.0)
    np.testing.assert_allclose(solution.params, TRUE, atol=0.4)


@pytest.mark.slow
@pytest.mark.parametrize("intercept", [None, 0])
def test_few_of_many_features(intercept):
    rng = np.random.default_rng(0)
    features = rng.standard_t(5, (5_000, 300))
    features[:, 0] = 1
    targets = features[:, [7, 50, 200]] @ [1.0, -0.7, 0.5] + rng.standard_t(3, 5_000)
    solution = solve(
        data=(features, targets), epsilon=4.0, intercept=intercept, max_features=4
    )
    found = set(np.flatnonzero(solution.params).tolist()) - {intercept}
    assert {7, 50, 200} <= found
    assert len(found) == 4
    assert found == set(np.asarray(solution.stats["selected"]).tolist())


@pytest.mark.slow
def test_the_order_of_chosen_features_says_nothing(key):
    # In the order of peeling's values odd columns came last on one table in 59 of 60
    # runs, and on its neighbour in 1 of 60: epsilon 2.96 at a claimed 0.1.
    rng = np.random.default_rng(0)
    labels = rng.choice([-1.0, 1.0], 1_000)
    features = np.repeat(labels[:, None], 60, 1)
    labels[0] = 1
    for sign in (1e6, -1e6):
        features[0] = sign * np.where(np.arange(60) % 2 == 0, 1, -1)
        selected = dp_linear_model(
            "logistic",
            (features, labels),
            key=jax.random.clone(key),
            epsilon=0.1,
            delta=1e-5,
            max_features=50,
        ).stats["selected"]
        assert (np.diff(np.asarray(selected)) > 0).all()


def test_no_choice_where_all_features_may_stay():
    assert "selected" not in solve(max_features=3).stats


def test_price_is_that_of_one_gaussian():
    solution = solve(epsilon=1.0)
    multiplier = solution.stats["noise_multiplier"]
    exact = gaussian_epsilon(multiplier, 1e-5, sensitivity=1.0)
    np.testing.assert_allclose(exact, 1.0, rtol=1e-6)
    assert solution.privacy.epsilon == 1.0
    assert solution.privacy.dp_event == gaussian_event(multiplier, num_steps=1)
    # The same from the multiplier, as where another release has a part of the budget.
    same = solve(epsilon=None, noise_multiplier=multiplier)
    np.testing.assert_array_equal(same.params, solution.params)
    np.testing.assert_allclose(same.privacy.epsilon, 1.0, rtol=1e-6)
    chosen = solve(epsilon=None, noise_multiplier=multiplier, max_features=1)
    assert chosen.privacy.epsilon == rho_to_epsilon(0.5 / multiplier**2, 1e-5) > 1.0


@pytest.mark.parametrize("loss", [losses.squared, losses.logistic])
@pytest.mark.parametrize("has_intercept", [True, False])
@pytest.mark.parametrize("multiplier", [0.3, 30.0])
@pytest.mark.parametrize("num_features", [0, 20])
def test_shares_compose_to_the_whole(loss, has_intercept, multiplier, num_features):
    kind = ModelKind(loss, has_intercept, False, axis_name=None)
    each = Shares.of(kind, (1_000, num_features), multiplier).multipliers(multiplier)
    total = math.fsum(1 / x**2 for x in each if x)
    np.testing.assert_allclose(total, 1 / multiplier**2, rtol=1e-12)


@pytest.mark.slow
def test_choices_are_priced_as_zcdp():
    solution = solve(epsilon=1.0, max_features=2)
    rho = epsilon_to_rho(1.0, 1e-5)
    assert solution.privacy.dp_event.rho == rho
    # The model's part, the shares of the choice being the rest.
    spent = 0.5 / solution.stats["noise_multiplier"] ** 2
    np.testing.assert_allclose(spent / rho, 0.55, rtol=1e-6)


def test_steps_have_the_noise_that_their_share_pays(monkeypatch):
    seen = {}

    def spy(step, *args, **options):
        num_steps = step.batches.start.num_steps
        seen.update(multiplier=step.noise_multiplier, num_steps=num_steps)
        return iterate(step, *args, **options)

    monkeypatch.setattr(_fit, "iterate", spy)
    solution = solve(epsilon=1.0)
    share = solution.stats["shares"]["steps"] / solution.stats["noise_multiplier"] ** 2
    spent = seen["num_steps"] / seen["multiplier"] ** 2
    np.testing.assert_allclose(spent, share, rtol=1e-9)


def test_what_stands_in_the_column_of_the_intercept_is_not_read():
    features, means, noise = table()
    other = features.copy()
    other[:, 3] = 1e30
    one, two = (solve(data=(x, means + noise)).params for x in (features, other))
    np.testing.assert_array_equal(one, two)


class TestNoisyQuantile:
    def test_two_counts_move_so_noise_is_for_both(self, monkeypatch):
        stddevs = []

        def spy(key, value, of_entries):
            assert value.sum() == 100
            stddevs.append(float(of_entries.min()))
            return gaussian_of_padded(key, value, of_entries)

        monkeypatch.setattr(_noisy_quantile, "gaussian_of_padded", spy)
        noisy_quantile(
            jax.random.key(0), jnp.ones(100), num_above=1, noise_multiplier=3.0
        )
        assert 3 * 2**0.5 <= stddevs[0] <= 3 * 2**0.5 * 1.001

    def test_without_noise_it_is_the_quantile(self):
        sizes = jnp.asarray(np.random.default_rng(0).exponential(size=50_000))
        found = noisy_quantile(
            jax.random.key(0), sizes, num_above=500, noise_multiplier=1e-6
        )
        np.testing.assert_allclose(found, jnp.quantile(sizes, 0.99), rtol=0.25)

    def test_a_share_is_of_records_that_are_not_zero(self):
        sizes = jnp.where(jnp.arange(9_000) % 3 == 0, 3.0, 0.0).at[:1_500].set(1e6)
        found = noisy_quantile(
            jax.random.key(0),
            sizes,
            num_above=0.0,
            share_above=0.5,
            noise_multiplier=1e-6,
        )
        assert 2 <= found <= 4

    def test_outliers_that_noise_hides_are_not_seen(self):
        sizes = jnp.ones(10_000).at[:3].set(1e9)
        found = noisy_quantile(
            jax.random.key(0), sizes, num_above=0, noise_multiplier=10.0
        )
        assert found <= 2

    @pytest.mark.parametrize("value", [0.0, math.nan, math.inf, -math.inf, 1e-30])
    def test_any_number_is_in_a_bin(self, value):
        found = noisy_quantile(
            jax.random.key(0), jnp.full(1_000, value), num_above=0, noise_multiplier=1.0
        )
        assert 0 < found < 1e14

    def test_nothing_stands_out_of_great_noise(self):
        found = noisy_quantile(
            jax.random.key(1), jnp.ones(10), num_above=1, noise_multiplier=1e6
        )
        assert found == 1.0


class TestNoisyMedian:
    def test_counts_move_by_two_and_share_the_budget(self, monkeypatch):
        stddevs = []

        def spy(key, value, *, stddev):
            stddevs.append(stddev)
            return value

        monkeypatch.setattr(_robust, "gaussian", spy)
        halved = _robust._halved.__wrapped__  # not traced, nor from a cache
        monkeypatch.setattr(_robust, "_halved", halved)
        values = jnp.asarray(np.random.default_rng(0).standard_cauchy(5_001) + 3)
        weights = jnp.ones(5_001).at[jnp.argsort(values)[:1_000]].set(0.0)
        found = noisy_median(
            jax.random.key(0), values, weights, bound=10.0, noise_multiplier=3.0
        )
        median = jnp.median(values[weights > 0])
        np.testing.assert_allclose(found, median, atol=2e-3)
        assert all(6 <= stddev / 20**0.5 <= 6.001 for stddev in stddevs)

    def test_what_noise_hides_is_within_the_bound(self):
        found = noisy_median(
            jax.random.key(0),
            jnp.full(50, 1e9),
            jnp.ones(50),
            bound=2.0,
            noise_multiplier=1e6,
        )
        assert -2 <= found <= 2


@jax.jit
def moments_of(rows):
    """Second moments almost without noise, and their sensitivity."""
    found, stddev = noisy_second_moments(
        jax.random.key(0), rows, radius=1.5, noise_multiplier=1e-5, axis_name=None
    )
    return found, stddev / 1e-5


class TestSecondMoments:
    @pytest.mark.parametrize("seed", range(3))
    def test_one_record_moves_them_by_what_is_stated(self, seed):
        """The antipodal pair is no neighbour: x and -x have the same moments."""
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(20, 3)).astype(np.float32)

        def moments(new):
            return np.asarray(moments_of(np.concatenate([[new], rows[1:]], 0))[0])

        whole, sensitivity = moments(rows[0]), moments_of(rows)[1]
        for new in ([1e30, 0, 0], [0, 1e30, 0], [math.nan, math.inf, 1.0], 3 * rows[0]):
            moved = np.linalg.norm(whole - moments(np.float32(new)))
            assert moved <= sensitivity * (1 + 1e-4)
        # Two rows at a right angle attain it.
        first, second = (
            moments(np.float32([1e9, 0, 0])),
            moments(np.float32([0, 1e9, 0])),
        )
        attained = float(np.linalg.norm(first - second) / sensitivity)
        assert 0.99 < attained <= 1 + 1e-4

    def test_entries_are_not_rounded_again_before_the_noise(self):
        """Rounding of all entries may move more than one record of millions does."""
        row = np.float32(1 + np.arange(64) / 64)
        found, _ = jax.jit(noisy_second_moments, static_argnames="axis_name")(
            jax.random.key(0),
            np.tile(row, (64, 1)),
            radius=16.0,
            noise_multiplier=0.0,
            axis_name=None,
        )
        np.testing.assert_array_equal(found, np.outer(row, row))

    def test_noise_on_a_pair_is_one_draw(self):
        @jax.jit
        def moments(rows):
            return noisy_second_moments(
                jax.random.key(0),
                rows,
                radius=1.0,
                noise_multiplier=1.0,
                axis_name=None,
            )

        found, stddev = map(np.asarray, moments(np.zeros((50, 40), np.float32)))
        np.testing.assert_array_equal(found, found.T)
        np.testing.assert_allclose(np.std(np.diag(found)), stddev, rtol=0.5)
        upper = found[np.triu_indices(40, 1)]
        np.testing.assert_allclose(np.std(upper), stddev / 2**0.5, rtol=0.1)

    @pytest.mark.parametrize("ones", [0.01, 1.0, 30.0])
    def test_round_coordinates(self, ones):
        rng = np.random.default_rng(0)
        rows = rng.normal(size=(5_000, 3)) @ rng.normal(size=(3, 3)) + [5.0, 0.0, 1.0]
        rows = np.c_[rows, np.full(5_000, ones)].astype(np.float32)
        moments = jnp.asarray(rows.T.astype(float) @ rows / 5_000)
        white = whitening(moments, 1e-9, ones=ones)
        z = (rows[:, :3] - np.asarray(white.center)) @ white.matrix
        np.testing.assert_allclose(white.center, rows.mean(axis=0)[:3], atol=1e-3)
        spread = np.var(np.asarray(z), axis=0)
        assert spread.max() < 1.01
        assert spread.min() > 0.05

    def test_a_mean_weight_that_noise_hides_throws_no_center_off(self):
        moments = jnp.diag(jnp.array([1.0, 1.0, 0.01])).at[:2, 2].set(0.5)
        center = whitening(moments, 0.2, ones=1.0).center
        assert jnp.linalg.norm(center) < 2

    def test_nothing_but_noise_leaves_one_scale(self):
        noise = np.random.default_rng(0).normal(size=(30, 30)) * 1.0
        noise = np.triu(noise) + np.triu(noise, 1).T
        white = whitening(jnp.asarray(noise / 2, "float32"), 1.0)
        assert white.share_kept < 0.2
        assert jnp.all(jnp.isfinite(white.matrix))


def test_blocks_are_clipped_apart_and_noise_holds_for_both():
    estimator = BlockClipping(
        {"weights": 2.0, "intercept": 0.5}, (("weights", 0.9), ("intercept", 0.1))
    )
    sample = {"weights": jnp.array([30.0, 40.0]), "intercept": jnp.array(-9.0)}
    clipped = estimator.influence(sample)
    np.testing.assert_allclose(
        clipped["weights"], [0.6 * 0.9**0.5, 0.8 * 0.9**0.5], rtol=1e-6
    )
    np.testing.assert_allclose(clipped["intercept"], -(0.1**0.5), rtol=1e-6)
    length = sum(float(jnp.sum(x**2)) for x in jax.tree.leaves(clipped)) ** 0.5
    assert length <= 1
    assert estimator.sensitivity(100, 3).l2 >= 2 / 100


BAD = {
    "all NaN": lambda x, y: (np.full_like(x, np.nan), np.full_like(y, np.nan)),
    "huge": lambda x, y: (np.full_like(x, 1e38), np.full_like(y, -1e38)),
    "infinite": lambda x, y: (np.full_like(x, np.inf), np.full_like(y, np.inf)),
    "equal targets": lambda x, y: (x, np.full_like(y, 5.0)),
    "constant columns": lambda x, y: (np.ones_like(x), y),
    "zeros": lambda x, y: (np.zeros_like(x), np.zeros_like(y)),
    "one record": lambda x, y: (x[:1], y[:1]),
    "few records": lambda x, y: (x[:3], y[:3]),
}


# Of additive models too.
REFUSED = [
    ({"loss": "cubic"}, "loss must be 'squared' or 'logistic' or 'huber' or a"),
    ({"loss": losses.absolute}, "loss must be a convex loss of bounded"),
    ({"epsilon": None}, "epsilon must be given where noise_multiplier is not"),
    ({"noise_multiplier": 1.0}, "epsilon must be given where noise_multiplier is"),
    ({"epsilon": None, "noise_multiplier": 0.0}, "noise_multiplier must be posi"),
    ({"data": np.ones(3)}, "data must be a pair"),
    ({"data": (np.ones(3), np.ones(3))}, "features must be a real array with 2"),
    ({"offsets": np.ones(3)}, "offsets must be one real number for each of 4000"),
]

test_bad_arguments_are_named = refused(
    lambda changes: solve(**changes),
    *REFUSED,
    ({"loss": losses.biweight(1.0)}, "loss must be a convex loss of bounded"),
    ({"data": (np.ones((3, 2)), np.ones(2))}, "targets must be one number for"),
    ({"intercept": 4}, "intercept must be the index of one of 4 columns"),
    ({"intercept": 1.0}, "intercept must be the index of one of 4 columns"),
    ({"intercept": True}, "intercept must be the index of one of 4 columns"),
)


@pytest.mark.slow
def test_a_callback_sees_every_iterate():
    seen = []

    def callback(step, params):
        seen.append((int(step), params))

    solve("logistic", epsilon=0.1, execution=Execution(callback=callback))
    jax.effects_barrier()
    assert sorted(step for step, _ in seen) == list(range(1, 51))
    assert set(seen[0][1]) == {"weights", "intercept"}


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
    own = Sample(4_000, 1_000).budget(0.5, 1e-6)
    found = float(solution.stats["noise_multiplier"])
    assert found == pytest.approx(noise_multiplier(*own, num_steps=1), rel=1e-6)
    few = {"key": jax.random.key(0), "max_records": 10}
    with pytest.raises(ValueError, match="epsilon must be given with max_records"):
        fit(**few, noise_multiplier=1.0, delta=1e-6)
    with pytest.raises(ValueError, match="delta must be below sample_size"):
        fit(**few, epsilon=1.0, delta=0.1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss": losses.softmax(3), "intervals": True},
        {"max_features": 0},
        {"max_features": 2, "intervals": True},
        {"intercept": 4},
        {"max_weight": 0.0},
        {"weights": np.ones(3)},
        {"offsets": np.ones(3)},
        {"execution": print},
        {"delta": 0.5},
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_what_is_refused_draws_no_sample(wrong, monkeypatch):
    def never(*arguments):
        raise AssertionError("a sample was drawn")

    monkeypatch.setattr(_on_sample, "uniform_subset", never)
    with pytest.raises(ValueError, match="must be"):
        solve(**{"max_records": 10} | wrong)
