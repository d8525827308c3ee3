"""Released measures of a model, as records."""

from typing import NamedTuple


class Interval(NamedTuple):
    """A released number, with 95 per cent bounds for sampling and noise together."""

    value: float
    low: float
    high: float


class Measure(NamedTuple):
    """One measure, of the model and of the constant next to it.

    Attributes:
        name: with its unit.
        model: of the model.
        constant: of a prediction that is the same for all records.
    """

    name: str
    model: Interval
    constant: Interval


class PrivateScores(NamedTuple):
    """Released scores of a model.

    Attributes:
        measures: released, or computed from released values.
        calibration: for classes, the share of the positive label among records whose
            predicted probability is in a range (low, high).
        num_scored: the number of records with a target, by a noisy count; the others
            have no weight.
    """

    measures: list[Measure]
    calibration: list[tuple[float, float, Interval]]
    num_scored: float
