"""`dpjax plan`: estimates of the cost of privacy from simulated records.

Nothing here reads a table. All inputs are public: the schema, the number of records,
and simulated records.
"""

import dataclasses
import json
import math
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import dpjax
from dpjax import _files
from dpjax._rounding import digits, rounded_up
from dpjax.accounting import PrivacyGuarantee
from dpjax.datasets import Categorical, Dataset, Numeric
from dpjax.solvers import Solution
from dpjax.solvers.additive._curves import FINE
from dpjax.solvers.training._curves import hats
from dpjax.tables import default_delta
from dpjax.tables._pages import image_of
from dpjax.tables.cli import _fit, _settings, _terminal
from dpjax.tables.cli._fit import NO_PRIVACY, Budget, Plan
from dpjax.tables.cli._schema import Schema, read_schema
from dpjax.tables.models._terms import bending_features

_FILES = ["plan.json", "plan.md", "plan.png"]
_NUM_DRAWS = 3  # draws of the noise, of which the median is shown
_MOST_CELLS = 20_000_000  # rows times features of simulated records
_KNOTS = (-2.0, 0.0, 2.0), FINE  # knots of curves without privacy
_MOST_FITS, _NEAR = 5, 0.1  # end the search for a number of records
# Intervals need about this number of records / epsilon: see `dp_linear_model`.
_WITH_INTERVALS = 600
_RATES, _PRIOR = (0.001, 0.01, 0.1), 0.01  # false positive rates; an attacker's prior
_MOST_OF = 0.9  # share of the gain over the constant
_CURVE = np.geomspace(1e-4, 1.0, 200)
# Colors of Okabe and Ito (2008), which color-blind readers can tell apart.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_UNITS = {
    "identity": "scales of the target",
    "logit": "log odds",
    "log": "the logarithm of the mean",
    "softmax": "scores of a class",
}
NUM_TEST = 20_000
BASE_RATE = 0.5
_AMOUNTS_WITHIN = 3.0  # scales


@dataclass(frozen=True)
class Outcome:
    """The quality of models of simulated records at one epsilon."""

    privacy: PrivacyGuarantee  # epsilon = inf without privacy
    loss: float  # the mean on simulated test records
    score: float  # R2 on these records, or AUC for classes
    width: float = math.inf  # the median width of a coefficient's interval
    least_rows: int | None = None  # about so many records for the requested width

    def or_better(self, other: "Outcome") -> "Outcome":
        """Returns an outcome with the better loss and the better score of the two."""
        loss, score = min(self.loss, other.loss), max(self.score, other.score)
        return dataclasses.replace(self, loss=loss, score=score)

    @property
    def name(self) -> str:
        """The epsilon, in words."""
        if self.privacy.epsilon == math.inf:
            return "no privacy"
        return f"epsilon {rounded_up(self.privacy.epsilon, 4)}"

    def attacks(self) -> tuple[list[float], list[float]]:
        """Returns the largest true positive rates, and posteriors of a prior of 1%."""
        after = self.privacy.posterior(_PRIOR, _RATES)
        return self.privacy.tradeoff(_RATES).tolist(), after.tolist()


@dataclass(frozen=True)
class Forecast:
    """The result of `dpjax plan`: the quality of models of simulated records."""

    settings: _settings.ForecastSettings
    loss: _settings.LossName
    seed: int
    num_features: int
    constant: Outcome  # of the best constant prediction
    outcomes: tuple[Outcome, ...]  # at each epsilon
    ideal: Outcome  # of the best model without privacy

    @property
    def delta(self) -> float:
        """The delta of every epsilon."""
        return self.settings.delta or default_delta(self.settings.rows)

    @property
    def score(self) -> str:
        """The name of the measure in `Outcome.score`."""
        return "AUC" if self.loss in ("logistic", "softmax") else "R2"

    def tables(self) -> Iterator[list[list[str]]]:
        """Yields two tables as lists of lines of texts; the first line has titles."""
        # They show the models' scores, and bounds on membership attacks, by epsilon.
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

    def texts(self) -> list[str]:
        """Returns paragraphs that explain the tables and advise, from `plan.md`."""
        asked, least, best = self.settings, self.constant.loss, self.ideal.loss
        goal = least - _MOST_OF * (least - best)
        enough = [x for x in self.outcomes if x.loss <= goal]
        better = [x for x in self.outcomes if x.loss < least]
        rates = {"logistic": "labels are positive", "tweedie": "amounts are not zero"}
        rate = f"{100 * (asked.base_rate or BASE_RATE):g} % of the "
        values = {
            **{"rows": f"{asked.rows:,}", "num_features": self.num_features},
            **{"schema": asked.schema, "tail": f"{asked.tail:g}", "seed": self.seed},
            **{"signal": f"{100 * asked.signal:g}", "score": self.score},
            "rate": f"{rate}{rates[self.loss]}. " if self.loss in rates else "",
            "kinds": "lines" if asked.model == "linear" else "lines, of curves",
            "unit": _UNITS[_settings.link_of(self.loss)],
            "delta": rounded_up(self.delta, 3),
            "share": digits(1 / asked.rows),
        }
        # One of three paragraphs has all of its values, and is shown.
        if best >= least:
            values["no_gain"] = ""
        elif enough:
            true, after = enough[0].attacks()
            values |= {"caught": _percent(true[1]), "surmised": _percent(after[1])}
            values["smallest"] = enough[0].name
        else:
            values["too_little"] = ""
            values["better"] = better[0].name if better else None
        smallest, *_ = asked.epsilons
        for x in [*enough, *better][:1]:
            # With so many times the records the noise is that of the larger epsilon.
            share = x.privacy.epsilon / smallest
            values["least"] = f"epsilon {smallest:g}" if share > 1 else None
            values["as_many"] = f"{_two_digits(share * asked.rows):,}"
        return [
            text
            for x in _terminal.chunks_of("plan.md")
            if (text := _terminal.filled(x, values))
        ]

    def content(self) -> dict[str, Any]:
        """Returns the forecast as a dict, which becomes plan.json."""

        def of(x: Outcome) -> dict[str, Any]:
            width = x.width if x.width < math.inf else None
            return {"loss": x.loss, self.score: x.score, "width": width}

        def of_private(x: Outcome) -> dict[str, Any]:
            epsilon, rates = {"epsilon": x.privacy.epsilon}, x.attacks()
            true, after = (dict(zip(_RATES, x, strict=True)) for x in rates)
            attacks = {"true_positive_rates": true, "posteriors_of_0.01": after}
            return epsilon | of(x) | {"least_rows": x.least_rows} | attacks

        return {
            "dpjax": dpjax.__version__,
            "settings": vars(self.settings) | {"loss": self.loss, "seed": self.seed},
            "delta": self.delta,
            "outcomes": [of_private(x) for x in self.outcomes],
            "no_privacy": of(self.ideal),
            "constant": of(self.constant),
        }


def forecast(settings: _settings.ForecastSettings) -> None:
    """Runs `dpjax plan`: shows models' quality by epsilon, on simulated records."""
    folder = settings.output
    if folder is not None:
        _files.check_folder("--output", folder, names=_FILES)
        inputs = {"SCHEMA": settings.schema}
        _files.check_spared("--output", [folder / name for name in _FILES], inputs)
    link = _settings.link_of(settings.loss) if settings.loss else None
    schema = read_schema(settings.schema, link=link, allows_empty=True)
    loss = _settings.chosen_loss(settings, schema.link)
    rule = f"left out with --loss {loss}, which has no share of records to state"
    settings.require("base_rate", loss in ("logistic", "tweedie"), rule)
    seed = secrets.randbits(32) if settings.seed is None else settings.seed
    made = _Made(settings, schema, loss, seed)
    size = len(made.data(2).feature_names)
    rule = f"at most {_MOST_CELLS // size:,} with {size - 1} features"
    settings.require("rows", settings.rows * size <= _MOST_CELLS, rule)
    outcomes, total = [], len(settings.epsilons) + 1
    with _terminal.progress_bars(_terminal.terminal(stderr=True)) as on_step:
        on_step("Models of made records", 0, total)
        ideal, constant = made.without_privacy()
        for done, epsilon in enumerate(settings.epsilons, 1):
            on_step("Models of made records", done, total)
            outcomes.append(made.outcome(epsilon))
            ideal = ideal.or_better(outcomes[-1])
        on_step("Models of made records", total, total)
        if settings.width is not None:
            # If too many records are needed, a smaller epsilon needs even more.
            for place in reversed(range(total - 1)):
                on_step("Records for the width", total - 2 - place, total - 1)
                asked = settings.epsilons[place], settings.width
                least = made.least_rows(*asked, outcomes[place], ideal)
                if least is None:
                    break
                outcomes[place] = dataclasses.replace(outcomes[place], least_rows=least)
            on_step("Records for the width", total - 1, total - 1)
    result = Forecast(settings, loss, seed, size - 1, constant, tuple(outcomes), ideal)
    console = _terminal.terminal()
    for head, *lines in result.tables():
        console.print(_terminal.table_of(head, lines, head[1:]))
    for text in result.texts():
        console.print(text)
    if folder is not None:
        files = dict(zip(_FILES, _contents(result), strict=True))
        _files.write_together(folder, files, name="--output")
        _terminal.show_paths(console, [folder / name for name in files])


@dataclass(frozen=True, eq=False)
class _Made:
    """Fits models of records that are simulated from a schema, for `forecast`."""

    settings: _settings.ForecastSettings
    schema: Schema
    loss: _settings.LossName
    seed: int

    def outcome(self, epsilon: float) -> Outcome:
        """Returns the median quality of models at an epsilon."""
        plan, data = self._plan(epsilon, self.settings.model)
        models = [self._fit(plan, data, draw) for draw in range(_NUM_DRAWS)]
        judged = [_judge(plan, data, x) for x in models]
        loss, score = np.median(judged, axis=0).tolist()
        return Outcome(models[0].privacy, loss, score, self.width(epsilon))

    def without_privacy(self) -> tuple[Outcome, Outcome]:
        """Returns the quality of the best model without noise, and of a constant.

        Private models are compared with both. Lines, and curves for all columns of
        numbers, are tried; the best loss and score may come from different models.
        """
        plan, data = self._plan(NO_PRIVACY, "linear")
        nothing = PrivacyGuarantee.non_private()
        lines = self._fit(plan, data)
        constant = np.asarray(lines.stats.get("constant", 0.0), np.float32)
        level = np.broadcast_to(constant, (len(data.test_targets), *constant.shape))
        constant = Outcome(nothing, *_fit.quality_of(plan, level, data))
        ideal = Outcome(nothing, *_judge(plan, data, lines), self.width(NO_PRIVACY))
        if self.settings.model == "linear":
            return ideal, constant
        for knots in _KNOTS:
            bent = _with_curves(data, knots)
            judged = _judge(plan, bent, self._fit(plan, bent))
            ideal = ideal.or_better(Outcome(nothing, *judged))
        return ideal, constant

    def width(self, epsilon: float, rows: int | None = None) -> float:
        """Returns the median width of a coefficient's interval; inf if none exists."""
        if self.loss in ("tweedie", "softmax"):
            return math.inf
        plan, data = self._plan(epsilon, None, rows, intervals=True)
        low, high = self._fit(plan, data).interval()
        return float(np.median(np.asarray(high - low)[:-1]))

    def least_rows(
        self, epsilon: float, width: float, outcome: Outcome, ideal: Outcome
    ) -> int | None:
        """Returns about how many records a user needs for intervals of `width`.

        These are of coefficients at `epsilon`. The search starts from the widths for
        --rows records, with noise in `outcome` and without in `ideal`. A squared width
        is modeled as a / n, for the sampling of records, plus b / n^2, for the noise.
        Each fit gives the next n to try, until it is within 10 percent of the last. The
        result is rounded up to two digits; None if the search finds none.
        """
        rows, reached = self.settings.rows, outcome.width
        most = _MOST_CELLS // len(self.data(2).feature_names)
        sampling = ideal.width**2 * rows if ideal.width < math.inf else 0.0
        enough = math.inf
        for _ in range(_MOST_FITS):
            if reached < math.inf:
                enough = min(enough, rows) if reached <= width else enough
                a = min(sampling, reached**2 * rows)
                b = (reached**2 * rows - a) * rows
                # This solves a / n + b / n^2 = width^2 for n.
                root = math.sqrt(a**2 + 4 * b * width**2)
                guess = max(2.0, (a + root) / (2 * width**2))
                if guess > most or abs(math.log(guess / rows)) < _NEAR:
                    return _two_digits(guess)
            else:  # too few for any interval
                guess = max(2.0 * rows, _WITH_INTERVALS / epsilon)
                if enough < math.inf:
                    guess = math.sqrt(rows * enough)
                if guess > most:
                    return None
            rows = math.ceil(guess)
            reached = self.width(epsilon, rows)
        return _two_digits(enough) if enough < math.inf else None

    def data(self, rows: int) -> Dataset:
        laws = {"tail": self.settings.tail, "signal": self.settings.signal}
        laws["base_rate"] = self.settings.base_rate or BASE_RATE
        return made_records(self.schema, rows, self.loss, seed=self.seed, **laws)

    def _plan(
        self,
        epsilon: float,
        model: _settings.ModelName | None,  # None: the default
        rows: int | None = None,  # the number of records; None: --rows
        *,
        intervals: bool = False,  # whether the model has standard errors
    ) -> tuple[Plan, Dataset]:
        """Returns the `Plan` of a training with `epsilon`, and simulated records."""
        data = self.data(rows or self.settings.rows)
        delta = self.settings.delta or default_delta(len(data.features))
        options = {"loss": self.loss, "model": model, "intervals": intervals}
        settings = _settings.Settings(source="made", epsilon=epsilon, **options)
        budget = Budget(epsilon, delta)
        return _fit.make_plan(settings, data, budget, self.schema), data

    def _fit(self, plan: Plan, data: Dataset, draw: int = 0) -> Solution:
        # The seed may be known: simulated records need no protection.
        key = jax.random.fold_in(jax.random.key(self.seed), draw)
        return _fit.fit(plan, _fit.rows_of(data), key=key)


def _two_digits(number: float) -> int:
    return int(float(rounded_up(math.ceil(number), 2)))


def _with_curves(data: Dataset, knots: tuple[float, ...]) -> Dataset:
    """Returns data with hat functions of the numeric columns as additional features."""
    # A linear model of these has a curve for each such column, linear between `knots`.

    def bent(rows: np.ndarray) -> np.ndarray:
        values = jnp.asarray(rows[:, list(bending_features(data.schema))])
        functions = np.asarray(hats(values, knots)[..., 1:])  # they add up to 1
        return np.hstack([functions.reshape(len(rows), -1), rows])

    features, test_features = bent(data.features), bent(data.test_features)
    return dataclasses.replace(data, features=features, test_features=test_features)


def _judge(plan: Plan, data: Dataset, solution: Solution) -> tuple[float, float]:
    predictions = _fit.predictions_of(solution.params, data.test_features)
    return _fit.quality_of(plan, np.asarray(predictions), data)


def made_records(
    schema: Schema,
    num_samples: int,  # for training; the number of test records is fixed
    loss: _settings.LossName,  # decides what the target is
    *,
    tail: float,  # degrees of freedom of Student's t-distribution
    signal: float,  # in (0, 1)
    base_rate: float,  # in (0, 1)
    seed: int,
) -> Dataset:
    """Draws records with a schema's columns, on which `forecast` fits and tests.

    Numbers have Student's t-distribution, with the schema's center, a variance of
    scale^2, and values clipped to its limit; for amounts also to three scales, because
    a model's means are exponential in the columns. Levels have equal probability. Every
    column has an effect: tanh((x - center) / scale) for numbers, even steps for
    categories, with alternating signs. Their sum explains the share `signal` of the
    variance of the target, of its log odds (with logistic noise; McKelvey and Zavoina
    1975), or of the logarithm of an amount. The noise is Student's in targets and
    lognormal in amounts. The share `base_rate` of labels is positive; with the tweedie
    loss, of amounts. Classes have equal shares.
    """
    rng = np.random.default_rng(seed)
    size = num_samples + NUM_TEST

    def student() -> np.ndarray:
        return rng.standard_t(tail, size) * math.sqrt((tail - 2) / tail)

    is_amount, is_class = loss in _settings.FOR_AMOUNTS, loss in ("logistic", "softmax")
    names, features, effect = [], [], np.zeros(size)
    columns = {name: kind or Numeric() for name, kind in schema.columns.items()}
    for place, (key, kind) in enumerate(columns.items()):
        names += kind.names(key)
        if not kind.categories:
            most = min(kind.limit, _AMOUNTS_WITHIN if is_amount else math.inf)
            features.append(np.clip(student(), -most, most)[:, None])
            added = np.tanh(features[-1][:, 0])
        else:
            number = len(kind.categories)
            # The last means no category, if the schema leaves the reference out.
            chosen = rng.integers(number + (kind.reference is None), size=size)
            cells = np.array([*kind.categories, ""], object)
            shown = Categorical(kind.categories, kind.reference)  # also of dates
            features.append(shown.encode(cells)[chosen])
            added = np.r_[np.linspace(1.0, -1.0, number), 0.0][chosen]
        effect += (-1) ** place * added
    effect = (effect - np.mean(effect)) / max(float(np.std(effect)), 1e-9)
    known, rest = math.sqrt(signal), math.sqrt(1 - signal)
    if is_class:
        odds = effect * math.pi / math.sqrt(3) * known / rest + rng.logistic(size=size)
        targets = np.where(odds > np.quantile(odds, 1 - base_rate), 1.0, -1.0)
        if k := len(schema.classes):  # of equal shares, one after another
            targets = np.searchsorted(np.quantile(odds, np.arange(1, k) / k), odds)
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
        task="classification" if is_class else "regression",
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


def _contents(result: Forecast) -> list[bytes]:
    """Returns the contents of plan.json, plan.md and plan.png, for a forecast."""
    content = json.dumps(result.content(), indent=2, allow_nan=False, default=str)
    page = "# What privacy would cost\n\n"
    for head, *lines in result.tables():
        rule = ["---", *["---:"] * (len(head) - 1)]
        rows = [f"| {' | '.join(row)} |\n" for row in (head, rule, *lines)]
        page += "".join(rows) + "\n"
    page += "\n\n".join([*result.texts(), "![score and attacks](plan.png)"]) + "\n"
    picture = image_of(_draw(result), "png")
    return [f"{content}\n".encode(), page.encode("utf-8", "replace"), picture]


def _draw(result: Forecast) -> Figure:
    """Returns the figure of plan.png: the score by epsilon, and bounds on attacks."""
    figure = Figure(figsize=(9.6, 4.2), dpi=200, layout="constrained")
    left, right = figure.subplots(1, 2)
    epsilons, scores = result.settings.epsilons, [x.score for x in result.outcomes]
    left.plot(epsilons, scores, marker="o", color=_COLORS[0], label="private")
    gray: dict[str, Any] = {"color": "#666666"}
    left.axhline(result.ideal.score, label="no privacy", linestyle="--", **gray)
    left.axhline(result.constant.score, label="constant", linestyle="-.", **gray)
    left.set(xscale="log", xlabel="epsilon", ylabel=f"{result.score} on other records")
    left.set_xticks(epsilons, [x.name.split()[-1] for x in result.outcomes])
    left.minorticks_off()
    left.set_title(f"{result.settings.rows:,} made records", fontsize="medium")
    right.plot(_CURVE, _CURVE, linestyle=":", label="guessing", **gray)
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
    """Returns a share in percent, rounded up."""
    return f"{rounded_up(100 * share, 2 if share < 0.1 else 3)} %"
