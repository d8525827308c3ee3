"""The options of `dpjax plan`; nothing here imports JAX."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dpjax import _validate
from dpjax.cli._losses import LossName
from dpjax.cli._options import (
    Argument,
    check_each,
    check_seed,
    of_data,
    of_method,
    of_output,
    of_privacy,
    required,
)
from dpjax.cli._settings import ModelName

_LARGEST_EPSILON, _MOST_EPSILONS = 1e4, 6


@dataclass(frozen=True, kw_only=True)
class ForecastSettings:
    """The options of `dpjax plan`."""

    schema: Annotated[Path, Argument("SCHEMA", "The TOML file, as of dpjax train.")]
    rows: Annotated[
        int,
        of_data(
            "How many records the table will have.",
            required(lambda count: count >= 2, "2 or more"),
        ),
    ]
    epsilon: Annotated[str, of_privacy("Values to compare, with commas: 0.5,1,3.")]
    delta: Annotated[
        float | None,
        of_privacy("The delta of each; n^-1.1 by default.", _validate.probability),
    ] = None
    loss: Annotated[
        LossName | None,
        of_method("The loss; by default logistic for a class, squared for a number."),
    ] = None
    model: Annotated[
        ModelName | None,
        of_method("As of dpjax train: additive by default, or linear."),
    ] = None
    width: Annotated[
        float | None,
        of_method(
            "How wide the interval of a coefficient may be: shows the least number of "
            "records for it.",
            _validate.positive,
        ),
    ] = None
    tail: Annotated[
        float,
        of_data(
            "Degrees of freedom of the made records, by Student's law: 3 has heavy "
            "tails, 30 is nearly normal.",
            required(lambda x: 2 < x <= 1000, "above 2, and at most 1000"),
        ),
    ] = 3.0
    signal: Annotated[
        float,
        of_data(
            "Share of the target's variance that the columns explain in made records "
            "(of classes and amounts, on the scale of the link).",
            _validate.probability,
        ),
    ] = 0.5
    seed: Annotated[
        int | None, of_data("Makes the same records again.", check_seed)
    ] = None
    output: Annotated[
        Path | None, of_output("Folder for plan.json, plan.md and plan.png.")
    ] = None

    def __post_init__(self) -> None:
        check_each(self)
        _ = self.epsilons  # checks them
        has_intervals = self.width is None or self.loss != "tweedie"
        rule = "left out with --loss tweedie, which has no intervals"
        _validate.require(has_intervals, "--width", self.width, rule)

    @property
    def epsilons(self) -> list[float]:
        """The values of epsilon, in ascending order."""
        try:
            values = sorted({float(one) for one in self.epsilon.split(",")})
        except ValueError:
            values = [math.nan]
        is_fine = all(0 < one <= _LARGEST_EPSILON for one in values)
        rule = f"1 to {_MOST_EPSILONS} numbers above 0, with commas between them"
        is_fine &= len(values) <= _MOST_EPSILONS
        _validate.require(is_fine, "--epsilon", self.epsilon, rule)
        return values
