"""Private scores of a model on held-out records.

The index of a record, or the name of its unit, decides whether it is held out. So a
replaced record changes the training or the evaluation, never both, and each may spend
the whole budget (parallel composition), if nothing else uses both parts.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting import ComposedDpEvent

from dpjax._types import Key
from dpjax.accounting import (
    PrivacyGuarantee,
    Sampling,
    gaussian_event,
    noise_multiplier,
)
from dpjax.datasets import Dataset
from dpjax.tables.cli._plan import Plan
from dpjax.tables.cli._report import statement
from dpjax.tables.cli._runs import Run, predictions_of
from dpjax.tables.cli._units import Units
from dpjax.tables.models._noisy_counts import Interval
from dpjax.tables.models._scores import Measure, private_scores
from dpjax.tables.models._terms import MEANS


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Private scores on the held-out records.

    Attributes:
        num_samples: number of held-out records.
        num_scored: number of those with a target and an exposure, by a noisy count;
            the others have no weight.
        constant: description of the constant that the model is compared with.
        measures: private scores, and numbers computed from them.
        calibration: for classes, the share of the positive label among records whose
            predicted probability is in a range (low, high).
        privacy: the guarantee for the held-out records.
    """

    num_samples: int
    num_scored: float
    constant: str
    measures: list[Measure]
    calibration: list[tuple[float, float, Interval]]
    privacy: PrivacyGuarantee

    def report(self) -> dict[str, Any]:
        """Returns the evaluation for JSON."""
        return {
            "num_samples": self.num_samples,
            "num_scored": self.num_scored,
            "constant": self.constant,
            "measures": {
                name: {"model": model._asdict(), "constant": constant._asdict()}
                for name, model, constant in self.measures
            },
            "calibration": [
                {"from": low, "to": high, "share": share._asdict()}
                for low, high, share in self.calibration
            ],
            "privacy": statement(self.privacy),
        }

    def joined(self, run: Run, num_samples: int, units: Units | None = None) -> Run:
        """Returns the run with one guarantee for training and held-out records."""
        parts = run.solution.privacy, self.privacy
        events: Any = tuple(part.dp_event for part in parts)
        privacy = PrivacyGuarantee.of(
            max(part.epsilon for part in parts),
            max(part.delta for part in parts),
            dp_event=ComposedDpEvent(events),  # more than in parallel, hence a bound
            num_samples=num_samples,
            unit=units.words if units is not None else "record",
        )
        return run.stated(lambda _: privacy)


def evaluate(
    plan: Plan,
    data: Dataset,
    run: Run,
    target: Any,
    *,
    key: Key,
    units: Units | None = None,
) -> Evaluation:
    """Releases private scores on the held-out records, which the run must not use.

    With units, neighbors differ in all records of one unit.

    Privacy:
        The epsilon and the delta of the run.
    """
    features, targets = data.test
    privacy = evaluation_privacy(data, run.solution.privacy, units)
    known = "constant" in run.solution.stats
    constant: Any = float(run.solution.stats["constant"]) if known else 0.0
    predicted = np.asarray(predictions_of(run.solution.params, features), np.float64)
    is_end = None
    if plan.loss_fn.has_log_link:
        low, high = np.log(MEANS)
        is_end = (predicted <= low) | (predicted >= high)
        predicted = np.clip(predicted, low, high)
    if data.test_exposures is not None:
        # Without exposure a record was not observed: it has no weight, as in training.
        is_seen = data.test_exposures > 0
        offsets = np.log(np.where(is_seen, data.test_exposures, 1.0).astype(float))
        predicted, constant = predicted + offsets, constant + offsets
        targets = np.where(is_seen, targets, np.nan)
    name = "the best constant, released in training"
    if data.test_exposures is not None:
        name += ", in proportion to the exposure"
    released = private_scores(
        predicted,
        targets,
        beside=constant,
        loss=plan.loss_fn,
        loss_name=plan.loss,
        scale=None if target.categories else target.scale,
        key=key,
        noise_multiplier=_multiplier(privacy),
        is_end=is_end,
    )
    return Evaluation(
        num_samples=len(targets),
        num_scored=released.num_scored,
        constant=name if known else "zero weights",
        measures=released.measures,
        calibration=released.calibration,
        privacy=privacy,
    )


def evaluation_privacy(
    data: Dataset, training: PrivacyGuarantee, units: Units | None
) -> PrivacyGuarantee:
    """Returns the guarantee of an evaluation, from that of the training.

    The evaluation uses one record of a unit, so that a unit costs what a record does.
    """
    event = gaussian_event(_multiplier(training), Sampling(num_steps=2))
    return PrivacyGuarantee.of(
        training.epsilon,
        training.delta,
        dp_event=event,
        num_samples=len(data.test_targets),
        unit=units.words if units is not None else "record",
    )


def _multiplier(privacy: PrivacyGuarantee) -> float:
    return noise_multiplier(privacy.epsilon, privacy.delta, Sampling(num_steps=2))
