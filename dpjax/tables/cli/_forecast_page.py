"""What `dpjax plan` shows: tables, advice and a picture, on one page."""

import dataclasses
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import dpjax
from dpjax._rounding import digits, rounded_up
from dpjax.accounting import PrivacyGuarantee
from dpjax.tables import default_delta
from dpjax.tables.cli._command_settings import ForecastSettings
from dpjax.tables.cli._losses import LossName, link_of
from dpjax.tables.cli._made_records import BASE_RATE

_RATES, _PRIOR = (0.001, 0.01, 0.1), 0.01  # false positives; of an attacker
_MOST_OF = 0.9  # of the gain over the constant
_CURVE = np.geomspace(1e-4, 1.0, 200)
# Colours of Okabe and Ito (2008), told apart by colour-blind readers too.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_UNITS = {
    "identity": "scales of the target",
    "logit": "log odds",
    "log": "the logarithm of the mean",
}
_HOW_TO_READ = (
    "The last table bounds every attack: how often it accuses the person, if it "
    "accuses 0.1, 1 or 10 % of others; and what a suspicion of 1 % becomes by an "
    "accusation, if 0.1 % of others are accused."
)


@dataclass(frozen=True)
class Outcome:
    """Measures how good models of simulated records are.

    Attributes:
        privacy: their guarantee; epsilon = inf without privacy.
        loss: the mean loss on other records.
        score: R2 there, or AUC for classes.
        width: the median width of a coefficient's interval; inf: there is none.
        least_rows: about how many records the requested width needs; None: unknown.
    """

    privacy: PrivacyGuarantee
    loss: float
    score: float
    width: float = math.inf
    least_rows: int | None = None

    def or_better(self, other: "Outcome") -> "Outcome":
        """Returns the outcome with the better loss and the better score of both."""
        loss, score = min(self.loss, other.loss), max(self.score, other.score)
        return dataclasses.replace(self, loss=loss, score=score)

    @property
    def name(self) -> str:
        """The epsilon, in words."""
        epsilon = self.privacy.epsilon
        return (
            f"epsilon {rounded_up(epsilon, 4)}" if epsilon < math.inf else "no privacy"
        )

    def attacks(self) -> tuple[list[float], list[float]]:
        """The largest true positive rates, and posteriors of 1 per cent."""
        after = self.privacy.posterior(_PRIOR, _RATES)
        return self.privacy.tradeoff(_RATES).tolist(), after.tolist()


@dataclass(frozen=True)
class Forecast:
    """The cost of privacy: models without it and at each epsilon, and a constant."""

    settings: ForecastSettings
    loss: LossName
    seed: int
    num_features: int
    constant: Outcome
    outcomes: tuple[Outcome, ...]
    ideal: Outcome

    @property
    def delta(self) -> float:
        """The delta of every epsilon."""
        return self.settings.delta or default_delta(self.settings.rows)

    @property
    def score(self) -> str:
        """Names what `Outcome.score` measures."""
        return "AUC" if self.loss == "logistic" else "R2"

    def tables(self) -> Iterator[list[list[str]]]:
        """Yields tables: what privacy costs, and what an attacker can do."""
        wanted = self.settings.width
        lines = [["model", f"{self.loss} loss", self.score, "95 % interval"]]
        lines[0] += [] if wanted is None else [f"records for {wanted:g}"]
        for row in (self.constant, *self.outcomes, self.ideal):
            width = f"{row.width:.3g}" if row.width < math.inf else "none"
            line = [row.name, digits(row.loss), f"{row.score:.3f}", width]
            if row is self.constant:
                line[::3] = "constant", ""
            if wanted is not None:
                least = f"{row.least_rows:,}" if row.least_rows else "not found"
                line.append(least if row in self.outcomes else "")
            lines.append(line)
        yield lines
        heads = [f"at {100 * rate:g} %" for rate in _RATES]
        lines = [["best attack", *heads, "1 % becomes"]]
        for row in self.outcomes:
            true, after = row.attacks()
            lines.append([row.name, *(_percent(x) for x in (*true, after[0]))])
        yield lines

    def texts(self) -> Iterator[str]:
        """Yields the meaning of the numbers, and advice with reasons."""
        asked, unit = self.settings, _UNITS[link_of(self.loss)]
        rates = {"logistic": "labels are positive", "tweedie": "amounts are not zero"}
        rate = ""
        if self.loss in rates:
            share = asked.base_rate or BASE_RATE
            rate = f"{100 * share:g} % of the {rates[self.loss]}. "
        kinds = "lines" if asked.model == "linear" else "lines, of curves"
        yield (
            f"{asked.rows:,} made records with {self.num_features} features as "
            f"{asked.schema} declares, with tails of {asked.tail:g} degrees of freedom "
            f"and columns that explain {100 * asked.signal:g} % of the target (seed "
            f"{self.seed}). {rate}No real record was read. Loss and "
            f"{self.score} are of others, the median of three draws of the noise; "
            f"without privacy each is the best of {kinds} and of the models above. The "
            f"interval is that of a linear model with --intervals: the median of its "
            f"coefficients, in {unit} for a scale of the column. Where there is "
            "none, records are too few."
        )
        yield _HOW_TO_READ
        least, best = self.constant.loss, self.ideal.loss
        goal = least - _MOST_OF * (least - best)
        enough = [x for x in self.outcomes if x.loss <= goal]
        if best >= least:
            yield (
                "Even without privacy a model is no better than the constant: there "
                "are too few records for so many columns, or too little signal."
            )
        elif enough:
            true, after = enough[0].attacks()
            yield (
                f"Of these {enough[0].name} is the smallest that keeps nine tenths of "
                "what a model without privacy gains over the constant. The best attack "
                "that accuses 1 of 100 others then accuses the person in at most "
                f"{_percent(true[1])} of cases; an attacker who suspected 1 of 100 is "
                f"right after that with a probability of at most {_percent(after[1])}."
            )
        else:
            yield (
                "None of these keeps nine tenths of what a model without privacy gains "
                "over the constant. More records help as much as a larger epsilon, "
                "because the noise falls as 1 / (n epsilon); so do fewer columns."
            )
        yield (
            f"Delta is {rounded_up(self.delta, 3)} for each. It should be far below "
            f"1 / n = {digits(1 / asked.rows)}, because a mechanism with that delta "
            "may publish each record with that probability. Choose epsilon before you "
            "see a record, for all releases of the table together: what they cost adds "
            "up. `dpjax ledger` keeps the sum."
        )

    def content(self) -> dict[str, Any]:
        """Returns the forecast for JSON."""

        def of(x: Outcome) -> dict[str, Any]:
            width = x.width if x.width < math.inf else None
            return {"loss": x.loss, self.score: x.score, "width": width}

        def of_private(x: Outcome) -> dict[str, Any]:
            epsilon, rates = {"epsilon": x.privacy.epsilon}, x.attacks()
            true, after = (dict(zip(_RATES, x, strict=True)) for x in rates)
            attacks = {"true_positive_rates": true, "posteriors_of_0.01": after}
            return epsilon | of(x) | {"least_rows": x.least_rows} | attacks

        settings = vars(self.settings) | {"loss": self.loss, "seed": self.seed}
        return {
            "dpjax": dpjax.__version__,
            "settings": settings,
            "delta": self.delta,
            "outcomes": [of_private(x) for x in self.outcomes],
            "no_privacy": of(self.ideal),
            "constant": of(self.constant),
        }


def show(console: Console, result: Forecast) -> None:
    """Prints the page, without its picture."""
    for head, *lines in result.tables():
        table = Table()
        for place, name in enumerate(head):
            table.add_column(name, justify="right" if place else "left")
        for line in lines:
            table.add_row(*line)
        console.print(table)
    for text in result.texts():
        console.print(text)


def contents(result: Forecast) -> list[bytes]:
    """Returns the page as JSON, Markdown and PNG."""
    content = json.dumps(result.content(), indent=2, allow_nan=False, default=str)
    page = "# What privacy would cost\n\n"
    for head, *lines in result.tables():
        rule = ["---", *["---:"] * (len(head) - 1)]
        rows = [f"| {' | '.join(row)} |\n" for row in (head, rule, *lines)]
        page += "".join(rows) + "\n"
    page += "\n\n".join([*result.texts(), "![score and attacks](plan.png)"]) + "\n"
    png = io.BytesIO()
    _draw(result).savefig(png, format="png")
    return [f"{content}\n".encode(), page.encode("utf-8", "replace"), png.getvalue()]


def _draw(result: Forecast) -> Figure:
    """Draws the score against epsilon, and the attacks at each."""
    figure = Figure(figsize=(9.6, 4.2), dpi=200, layout="constrained")
    left, right = figure.subplots(1, 2)
    epsilons = result.settings.epsilons
    scores = [x.score for x in result.outcomes]
    left.plot(epsilons, scores, marker="o", color=_COLORS[0], label="private")
    for x, name, line in (
        (result.ideal, "no privacy", "--"),
        (result.constant, "constant", "-."),
    ):
        left.axhline(x.score, label=name, color="#666666", linestyle=line)
    left.set(xscale="log", xlabel="epsilon", ylabel=f"{result.score} on other records")
    left.set_xticks(epsilons, [x.name.split()[-1] for x in result.outcomes])
    left.minorticks_off()
    left.set_title(f"{result.settings.rows:,} made records", fontsize="medium")
    right.plot(_CURVE, _CURVE, color="#666666", linestyle=":", label="guessing")
    for x, color in zip(result.outcomes, _COLORS, strict=False):
        right.plot(_CURVE, x.privacy.tradeoff(_CURVE), color=color, label=x.name)
    labels = {"xlabel": "false positive rate", "ylabel": "true positive rate, at most"}
    right.set(xscale="log", yscale="log", **labels)
    delta = rounded_up(result.delta, 2)
    right.set_title(f"Any attack, at delta = {delta}", fontsize="medium")
    for axes in (left, right):
        axes.grid(alpha=0.3, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize="small", framealpha=0.8, edgecolor="none")
    return figure


def _percent(share: float) -> str:
    """Returns a share in per cent, rounded up."""
    return f"{rounded_up(100 * share, 2 if share < 0.1 else 3)} %"
