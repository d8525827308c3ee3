"""Private scores of a model on held-out records.

The index of a record, or the name of its unit, decides whether it is held out. So a
replaced record changes the training or the evaluation, never both, and each may spend
the whole budget (parallel composition), if nothing else uses both parts.
"""

from typing import Any, NamedTuple

import numpy as np

from dpjax._types import Key
from dpjax.accounting import (
    PrivacyGuarantee,
    Sampling,
    gaussian_event,
    noise_multiplier,
)
from dpjax.datasets import Dataset
from dpjax.solvers import Solution
from dpjax.tables.cli._fit import Plan, predictions_of
from dpjax.tables.models._scores import PrivateScores, private_scores
from dpjax.tables.models._terms import MEANS


class Evaluation(NamedTuple):
    """Private scores on the held-out records.

    Attributes:
        num_samples: number of held-out records.
        constant: description of the constant that the model is compared with.
        scores: private scores, and numbers computed from them.
    """

    num_samples: int
    constant: str
    scores: PrivateScores

    def report(self) -> dict[str, Any]:
        """Returns the evaluation for JSON."""
        return {
            "num_samples": self.num_samples,
            "num_scored": self.scores.num_scored,
            "constant": self.constant,
            "measures": {
                name: {"model": model._asdict(), "constant": constant._asdict()}
                for name, model, constant in self.scores.measures
            },
            "calibration": [
                {"from": low, "to": high, "share": share._asdict()}
                for low, high, share in self.scores.calibration
            ],
        }


def evaluation_privacy(
    training: PrivacyGuarantee, num_samples: int, unit: str
) -> PrivacyGuarantee:
    """Returns the guarantee of an evaluation at the budget of the training.

    The evaluation uses one record of each unit, so a unit costs as much as a record.
    """
    budget = training.epsilon, training.delta
    releases = Sampling(num_steps=2)
    event = gaussian_event(noise_multiplier(*budget, releases), releases)
    return PrivacyGuarantee.of(
        *budget, dp_event=event, num_samples=num_samples, unit=unit
    )


def evaluate(
    plan: Plan,
    data: Dataset,
    solution: Solution,
    privacy: PrivacyGuarantee,
    target: Any,
    *,
    key: Key,
) -> Evaluation:
    """Releases private scores on the held-out records, which training must not use.

    With units, neighboring data sets differ in all records of one unit.

    Privacy:
        The guarantee is `privacy`, which `evaluation_privacy` returns.
    """
    features, targets = data.test
    known = "constant" in solution.stats
    constant: Any = float(solution.stats["constant"]) if known else 0.0
    name = "the best constant, released in training"
    predicted = np.asarray(predictions_of(solution.params, features), np.float64)
    is_end = None
    if plan.loss_fn.has_log_link:
        # Predictions are logarithms of means; the model's range bounds them.
        low, high = np.log(MEANS)
        is_end = (predicted <= low) | (predicted >= high)
        predicted = np.clip(predicted, low, high)
    if data.test_exposures is not None:
        # A record without exposure was not observed: no weight, as in training.
        is_seen = data.test_exposures > 0
        offsets = np.log(np.where(is_seen, data.test_exposures, 1.0).astype(float))
        predicted, constant = predicted + offsets, constant + offsets
        targets = np.where(is_seen, targets, np.nan)
        name += ", in proportion to the exposure"
    event: Any = privacy.dp_event
    scores = private_scores(
        predicted,
        targets,
        beside=constant,
        loss=plan.loss_fn,
        loss_name=plan.loss,
        scale=None if target.categories else target.scale,
        key=key,
        noise_multiplier=event.event.noise_multiplier,
        is_end=is_end,
    )
    return Evaluation(len(targets), name if known else "zero weights", scores)
