"""The options of `dpjax tune`: those of `train`, and which of them to search over."""

import itertools
import math
import typing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Literal

from dpjax import _validate
from dpjax.cli._losses import AMOUNTS, FOR_AMOUNTS
from dpjax.cli._options import (
    METHOD,
    REQUIRED,
    Options,
    declared,
    flag,
    of_data,
    of_method,
    of_privacy,
)
from dpjax.cli._settings import CalibrationName, MethodName, Settings

# The price of every candidate is computed before any run.
_MOST_CANDIDATES = 100
# Options that change what a score measures, or that are for trial runs.
_FIXED = ("method", "loss", "power", "quick", "intervals")
_NUMBERS = {int: "whole numbers", float: "numbers"}


@dataclass(frozen=True, kw_only=True)
class TuneSettings(Settings):
    """Chooses options of a method by private runs, whose total cost is the budget.

    Makes a random number of runs with the given values, and scores them privately.

    Example: dpjax tune adult --epsilon 1 --over learning_rate=0.1,1,10 --trials 20
    """

    over: list[str] = of_method(
        "An option of the method and the values to try, which must not come from the "
        "records: learning_rate=0.1,1,10. Repeat it for a grid.",
        default=REQUIRED,
    )
    trials: float = of_privacy(
        "Mean number of runs, each with a random candidate. The actual number is "
        "random (geometric), and stays secret.",
        partial(_validate.within, 1, 10_000),
        default=REQUIRED,
    )
    holdout: float | None = of_data(
        "Share of the records, such as 0.1, that only score the runs. By default the "
        "training records score them, and a run shares its budget with its score.",
        _validate.probability,
    )
    score_limit: float | None = of_method(
        "A score is the mean loss, where each record's loss is clipped to this limit: "
        "2 by default for the logistic loss, otherwise 20, in units of the target's "
        "scale.",
        partial(_validate.within, 1e-12, 1e12),
    )
    method: MethodName = of_method(
        "As for dpjax train, which explains the options of each.",
        default="gradient-descent",
    )
    calibration: CalibrationName = field(default="tight", init=False)
    unit: str | None = field(default=None, init=False)
    unit_names: Path | None = field(default=None, init=False)
    records_per_unit: int | None = field(default=None, init=False)
    show_unprotected: bool = field(default=False, init=False)
    intervals: bool = field(default=False, init=False)  # they would not count a choice

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        rule = f"another than {AMOUNTS}, whose values no score is made for"
        self.require("loss", self.loss not in FOR_AMOUNTS, rule)
        rule = f"of at most {_MOST_CANDIDATES} candidates together"
        is_fine = math.prod(map(len, self.grid().values())) <= _MOST_CANDIDATES
        _validate.require(is_fine, "--over", " ".join(self.over), rule)
        for choice in self.choices():
            self.candidate(choice)  # each fits the other options

    def grid(self) -> dict[str, list[Any]]:
        """Returns the values to try, by the option.

        Raises:
            ValueError: If --over names no option of a method, or has no values.
        """
        found: dict[str, list[Any]] = {}
        for text in self.over:
            name, values = _read(text)
            rule = f"given once for each option, not again for {name}"
            _validate.require(name not in found, "--over", text, rule)
            found[name] = values
        for name in found:
            value, default = getattr(self, name), getattr(Settings, name)
            rule = "left out where --over has its values"
            _validate.require(value == default, flag(name), value, rule)
        return found

    def choices(self) -> list[dict[str, Any]]:
        """Returns the candidates: every combination of the values."""
        grid = self.grid()
        return [
            dict(zip(grid, values, strict=True))
            for values in itertools.product(*grid.values())
        ]

    def candidate(self, choice: dict[str, Any], **changes: Any) -> Settings:
        """Returns the settings of one run, which trains on all of its records."""
        given: dict[str, Any] = {
            name: getattr(self, name) for name in declared(Settings)
        }
        given |= {"holdout": None, **choice, **changes}
        return Settings(**given)


def _read(text: str) -> tuple[str, list[Any]]:
    """Reads "learning_rate=0.1,1"."""
    known = {
        name: kind
        for name, (kind, said) in declared(Settings).items()
        if said.panel == METHOD and name not in _FIXED
    }
    name, _, listed = text.partition("=")
    name = name.strip().removeprefix("--").replace("-", "_")
    names = ", ".join(known)
    _validate.require(
        name in known, "--over", text, f"NAME=VALUE,VALUE, NAME one of {names}"
    )
    values = [one.strip() for one in listed.split(",") if one.strip()]
    rule = f"{name}=VALUE,VALUE, with one value or more"
    _validate.require(len(values) > 0, "--over", text, rule)
    kinds = [kind for kind in typing.get_args(known[name]) if kind is not NoneType]
    kind = known[name] if known[name] in _NUMBERS else kinds[0]
    found = [_value(kind, one, name, text) for one in values]
    rule = f"of different values of {name}"
    _validate.require(len(set(found)) == len(found), "--over", text, rule)
    return name, found


def _value(kind: Any, value: str, name: str, text: str) -> Any:
    if typing.get_origin(kind) is Literal:
        names = typing.get_args(kind)
        rule = f"of values of {name}, which are {', '.join(names)}"
        _validate.require(value in names, "--over", text, rule)
        return value
    try:
        return kind(value)
    except ValueError:
        rule = f"{name} and {_NUMBERS[kind]}"
        raise ValueError(f"--over must be {rule}, got {text!r}.") from None
