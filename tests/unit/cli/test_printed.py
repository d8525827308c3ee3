"""Truth of what is printed: with next to no noise, each number is that of pandas."""

import numpy as np
import pytest

from dpjax.sklearn import DPGammaRegressor, DPPoissonRegressor, score_privately
from tests.unit.sklearn.test_scoring import Line, Odds, Shares

N = 4000
NO_NOISE = {"epsilon": 1e6, "random_state": 0}


class Rate(DPPoissonRegressor):
    """As if it were fitted: a mean of exp(x) for an exposure of one."""

    target_scale_, _largest = 6.0, 3.0  # of the largest exposure

    def predict(self, X, exposure=None):
        held = np.clip(np.exp(X[:, 0]), 2e-3, 60)
        return held * np.clip(np.nan_to_num(np.asarray(exposure)), 0, 3)


def records(seed=0):
    """Features, and targets of which two in five are missing."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, 1))
    return rng, x, rng.uniform(size=N) < 0.4


def checked(measures, truth, rel):
    """Compares measures by the beginnings of their names with pairs of true numbers."""
    values = {one.name: one for one in measures}
    for start, pair in truth.items():
        (name,) = [name for name in values if name.startswith(start)]
        for one, true in zip(values[name][1:], pair, strict=False):
            assert one.value == pytest.approx(true, rel=rel, abs=1e-3), (name, true)
            assert one.low <= one.value <= one.high


def of_errors(errors, ends):
    """The true numbers of absolute errors, (2, m), which are clipped to ends."""
    held = np.minimum(errors, np.array(ends)[:, None])
    squares = np.mean(held**2, axis=1)
    return {
        "median": np.median(errors, axis=1),
        "90th": np.quantile(errors, 0.9, axis=1),
        "mean absolute": held.mean(axis=1),
        "root mean": np.sqrt(squares),
        "R2": [max(1 - squares[0] / squares[1], -1.0)],
    }


def ends_of(measures):
    """Where absolute errors are clipped, as it is printed."""
    (found,) = [one for one in measures if one.name == "absolute error: clipped to"]
    return [found.model.value, found.constant.value]


@pytest.mark.parametrize("is_missing", [False, True])
def test_numbers_are_those_of_records_with_a_target(is_missing):
    rng, x, missing = records()
    y = 100 * x[:, 0] + 60 * rng.standard_t(3, N)
    y[missing & is_missing] = np.nan
    model, baseline = Line(100.0).fit(x, y), Line(0.0).fit(x, y)
    scores, _ = score_privately(model, x, y, baseline=baseline, **NO_NOISE)
    known = ~np.isnan(y)
    assert scores.num_scored == pytest.approx(known.sum(), abs=1)
    errors = np.abs([100 * x[known, 0] - y[known], y[known]])
    checked(scores.measures, of_errors(errors, ends_of(scores.measures)), rel=0.05)


def test_labels_that_are_missing_have_no_weight():
    rng, x, missing = records(1)
    likely = rng.uniform(size=N) < 1 / (1 + np.exp(-2 * x[:, 0]))
    labels = np.where(likely, "yes", "no").astype(object)
    labels[missing] = np.resize(np.array([None, np.nan, "?"], object), missing.sum())
    scores, _ = score_privately(Odds().fit(x, labels), x, labels, **NO_NOISE)
    right, share = (x[:, 0] > 0) == likely, likely[~missing].mean()
    odds = np.where(likely, 2, -2) * x[:, 0]
    truth = {
        "accuracy": [right[~missing].mean(), max(share, 1 - share)],
        "mean logistic": [
            np.logaddexp(0, -odds)[~missing].mean(),
            -share * np.log(share) - (1 - share) * np.log(1 - share),
        ],
    }
    checked(scores.measures, truth, rel=0.01)
    for low, high, part in scores.calibration:
        shown = 1 / (1 + np.exp(-2 * x[:, 0]))
        chosen = ~missing & (low <= shown) & (shown < high)
        assert part.value == pytest.approx(likely[chosen].mean(), abs=0.01)


def test_classes_that_are_none_of_them_have_no_weight():
    rng, x, missing = records(2)
    model = Shares().fit(x, None)
    shares = model.predict_proba(x)
    places = np.array([rng.choice(3, p=row) for row in shares])
    labels = np.where(missing, "other", model.classes_[places])
    scores, _ = score_privately(model, x, labels, **NO_NOISE)
    right = shares.argmax(axis=1) == places
    level = np.bincount(places[~missing]) / np.sum(~missing)
    losses = -np.log(shares[np.arange(N), places])
    truth = {
        "accuracy": [right[~missing].mean(), level.max()],
        "mean logarithmic": [losses[~missing].mean(), -np.sum(level * np.log(level))],
    }
    checked(scores.measures, truth, rel=0.01)


@pytest.mark.parametrize(("usual", "spread"), [(1.0, 1), (0.01, 1), (1.0, 4)])
def test_a_rate_is_scored_beside_a_constant_rate(usual, spread):
    rng, x, missing = records(3)
    years = 3 * usual * rng.uniform(size=N) ** 3
    years[::20], years[::30] = 0.0, np.nan
    seen = years > 0
    y = rng.poisson(np.where(seen, years, 1) * np.exp(0.5 * x[:, 0])).astype(float)
    y[missing] = np.nan
    x = spread * x  # some means are then at the ends of their range
    scores, _ = score_privately(Rate(), x, y, exposure=years, **NO_NOISE)
    known = ~missing & seen
    assert scores.num_scored == pytest.approx(known.sum(), abs=1)
    held = np.clip(np.exp(x[:, 0]), 2e-3, 60)  # of 6 for 3 years
    errors = np.abs(np.array([held, np.full(N, 2.0)]) * years - y)[:, known]
    truth = of_errors(errors, ends_of(scores.measures))
    truth["share of means"] = [np.mean((held != np.exp(x[:, 0]))[known])]
    checked(scores.measures, truth, rel=0.06)
    assert (truth["share of means"][0] > 0.1) == (spread > 1)
    with pytest.raises(ValueError, match="baseline must be an estimator that was fitt"):
        score_privately(Rate(), x, y, exposure=years, baseline=Line(1.0))


@pytest.mark.parametrize(
    ("power", "unit"),
    [("poisson", "(in the unit of the target)"), ("gamma", "(without a unit)")],
)
def test_a_deviance_has_the_unit_of_its_power(power, unit):
    model = {"poisson": DPPoissonRegressor, "gamma": DPGammaRegressor}[power]()
    model.target_scale_ = 10.0
    model.predict = lambda X: np.full(len(X), 10.0)
    y = np.random.default_rng(0).gamma(4.0, 2.5, N)
    scores, _ = score_privately(model, np.zeros((N, 1)), y, **NO_NOISE)
    ratio = y / 10
    truth = {
        "poisson": 20 * (ratio * np.log(ratio) - ratio + 1),
        "gamma": 2 * (ratio - 1 - np.log(ratio)),
    }[power].mean()
    found = scores.measures[2]
    assert found.name == f"mean {power} deviance, clipped {unit}"
    assert found.model.value == pytest.approx(truth, rel=0.01)
