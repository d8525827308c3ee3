"""A panel of a figure as data: what varies, what is fixed, who takes part."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from dpjax.tables import default_delta

TITLES = {
    "num_samples": "records n",
    "num_features": "features d",
    "epsilon": "privacy parameter epsilon",
    "sparsity": "sparsity s*",
    "num_steps": "steps t",
    "num_parties": "parties K",
}
_SYMBOLS = {
    "num_samples": "n",
    "num_features": "d",
    "epsilon": "epsilon",
    "sparsity": "s*",
    "moment_order": "theta",
}


class Size(StrEnum):
    """How large a figure is run."""

    SMOKE = "smoke"
    QUICK = "quick"
    FULL = "full"


_FIELDS = "num_samples", "num_features", "sparsity", "num_steps", "num_parties"
_LIMITS = {
    Size.SMOKE: dict(zip(_FIELDS, (400, 8, 2, 4, 2), strict=True)),
    Size.QUICK: dict(zip(_FIELDS[:4], (10_000, 200, 20, 100), strict=True)),
}


@dataclass(frozen=True)
class Setting:
    """A problem's size and the budget: d is unused where data are real.

    `sparsity` counts nonzero true weights, `num_steps` steps of descent where they are
    shown, and moments of `moment_order` are bounded. K parties have n/K records each.
    """

    num_samples: int
    num_features: int
    epsilon: float = 1.0
    sparsity: int = 20
    num_steps: int = 0
    moment_order: float = 2.0
    num_parties: int = 1

    @property
    def delta(self) -> float:
        """n^-1.1, as in the papers."""
        return default_delta(self.num_samples)


@dataclass(frozen=True)
class Panel:
    """One plot: a number of several methods along an axis, a line style a curve.

    Attributes:
        name: paper and number, such as "004-1b".
        fixed: the setting, but for what varies.
        x: the field along the axis, with `values`; num_steps shows every iterate.
        curves: another field and what it takes, or None.
        repetitions: of a full run.
        reported: what the paper says of it, and in which `direction` the error goes.
        substitute: the paper's data set, where another one stands for it.
        exponent: of x in the theory's error, drawn through the last method's start.
    """

    name: str
    title: str
    problem: str
    fixed: Setting
    x: str
    values: tuple[Any, ...]
    curves: tuple[str, tuple[Any, ...]] | None
    methods: tuple[str, ...]
    metric: str
    repetitions: int = 20
    reported: str = ""
    direction: Literal["falls", "grows", ""] = ""
    substitute: str = ""
    exponent: Callable[[Setting], float] | None = None

    @property
    def figure(self) -> str:
        """The figure that it belongs to, such as "004-1"."""
        return self.name.rstrip("abcdefgh")

    def settings(self) -> Iterator[Setting]:
        """Yields every setting: values along the axis, for every curve."""
        along = [{self.x: value} for value in self.values]
        curves: list[dict[str, Any]] = [{}]
        if self.curves is not None:
            curves = [{self.curves[0]: value} for value in self.curves[1]]
        for curve, point in itertools.product(curves, along):
            yield dataclasses.replace(self.fixed, **curve, **point)

    def curve_name(self, setting: Setting) -> str:
        """Returns "d = 400", or "" where there are no curves."""
        if self.curves is None:
            return ""
        field = self.curves[0]
        return f"{_SYMBOLS[field]} = {getattr(setting, field):,}"

    def at(self, size: Size) -> "Panel":
        """Returns the panel at a size: fewer points, repetitions, records, features."""
        if size == Size.FULL:
            return self
        limits, is_smoke = _LIMITS[size], size == Size.SMOKE
        # Another epsilon compiles nothing; other sizes do.
        most = 3 if not is_smoke else 2 if self.x == "epsilon" else 1

        def shrunk(field: str, values: tuple[Any, ...], most: int) -> tuple[Any, ...]:
            # Ends and middle of the range; sizes scaled together, so that they differ.
            last, few = len(values) - 1, values
            if most == 1:
                few = values[-1:]
            elif len(values) > most:
                few = tuple(values[round(i * last / (most - 1))] for i in range(most))
            if field not in limits or max(values) <= limits[field]:
                return few
            factor = limits[field] / max(values)
            return tuple(max(1, round(value * factor)) for value in few)

        fixed = {x: min(getattr(self.fixed, x), limit) for x, limit in limits.items()}
        curves = self.curves
        if curves is not None:
            is_dear = is_smoke or curves[0] == "num_features"
            curves = (curves[0], shrunk(*curves, 1 if is_dear else 2))
        return dataclasses.replace(
            self,
            fixed=dataclasses.replace(self.fixed, **fixed),
            values=shrunk(self.x, self.values, most),
            curves=curves,
            repetitions=min(self.repetitions, 1 if is_smoke else 3),
        )
