"""Synthetic records with the columns of a schema."""

import math

import numpy as np

from dpjax.datasets import Dataset
from dpjax.tables.cli._losses import FOR_AMOUNTS, LossName
from dpjax.tables.cli._schema import Schema

NUM_TEST = 20_000
BASE_RATE = 0.5
_AMOUNTS_WITHIN = 3.0  # scales


def made_records(
    schema: Schema,
    num_samples: int,
    loss: LossName,
    *,
    tail: float,
    signal: float,
    base_rate: float,
    seed: int,
) -> Dataset:
    """Draws records with the columns of a schema, for training and for tests.

    A column of numbers has Student's t-distribution, with the schema's center, a
    variance of scale^2, and values clipped to its limit. For amounts they are clipped
    to three scales, because a model's means are exponentials of the columns. A column
    of categories has each of them, or none, with equal probability. Every column has an
    effect: tanh((x - center) / scale) for numbers, even steps for categories, with
    alternating signs. Their sum explains the share `signal` of the variance of the
    target, of its log odds (with logistic noise; McKelvey and Zavoina 1975), or of the
    logarithm of an amount. The noise is Student's in targets and lognormal in amounts.
    The share `base_rate` of labels is positive, and with the tweedie loss of amounts.
    Exposures are 1, and weights equal.
    """
    rng = np.random.default_rng(seed)
    size = num_samples + NUM_TEST

    def student() -> np.ndarray:
        return rng.standard_t(tail, size) * math.sqrt((tail - 2) / tail)

    is_amount = loss in FOR_AMOUNTS
    names, features, effect = [], [], np.zeros(size)
    columns = {key: kind for key, kind in schema.columns.items() if kind is not None}
    for place, (key, kind) in enumerate(columns.items()):
        names += kind.names(key)
        if not kind.categories:
            most = min(kind.limit, _AMOUNTS_WITHIN if is_amount else math.inf)
            features.append(np.clip(student(), -most, most)[:, None])
            added = np.tanh(features[-1][:, 0])
        else:
            number = len(kind.categories)
            chosen = rng.integers(number + 1, size=size)  # the last is no category
            features.append(chosen[:, None] == np.arange(number))
            added = np.r_[np.linspace(1.0, -1.0, number), 0.0][chosen]
        effect += (-1) ** place * added
    effect = (effect - np.mean(effect)) / max(float(np.std(effect)), 1e-9)
    known, rest = math.sqrt(signal), math.sqrt(1 - signal)
    if loss == "logistic":
        odds = effect * math.pi / math.sqrt(3) * known / rest
        odds += rng.logistic(size=size)
        targets = np.where(odds > np.quantile(odds, 1 - base_rate), 1.0, -1.0)
    elif is_amount:
        targets = np.exp(known * effect + rest * rng.standard_normal(size) - 0.5)
        if loss == "poisson":
            targets = rng.poisson(targets)
        elif loss == "tweedie":
            targets = targets * (rng.random(size) < base_rate)
    else:
        targets = known * effect + rest * student()
    rows = np.hstack([*features, np.ones((size, 1))]).astype(np.float32)
    targets = targets.astype(np.float32)
    return Dataset(
        name="made records",
        task="classification" if loss == "logistic" else "regression",
        feature_names=(*names, "intercept"),
        features=rows[:num_samples],
        targets=targets[:num_samples],
        test_features=rows[num_samples:],
        test_targets=targets[num_samples:],
        target_unit="scale",
        licence="none",
        source="made",
        schema=columns,
    )
