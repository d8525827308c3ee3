"""`dpjax plan`: estimates of the cost of privacy from simulated records.

Nothing here reads a table. All inputs are public: the schema, the number of records,
and simulated records.
"""

import dataclasses
import math
import secrets
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from dpjax import _files, _validate
from dpjax.accounting import PrivacyGuarantee
from dpjax.datasets import Dataset
from dpjax.solvers import Solution
from dpjax.solvers.additive._knots import FINE
from dpjax.solvers.training._curves import hats
from dpjax.tables import default_delta
from dpjax.tables.cli._command_settings import ForecastSettings
from dpjax.tables.cli._forecast_page import Forecast, Outcome, contents, show
from dpjax.tables.cli._losses import LossName, link_of
from dpjax.tables.cli._made_records import BASE_RATE, made_records
from dpjax.tables.cli._plan import Plan, make_plan
from dpjax.tables.cli._runs import NO_PRIVACY, fit, predictions_of, rows_of
from dpjax.tables.cli._schema import Schema, read_schema
from dpjax.tables.cli._settings import ModelName, Settings
from dpjax.tables.cli._terminal import OnStep, progress_bars, show_paths, terminal
from dpjax.tables.models._terms import bending_features

_FILES = ["plan.json", "plan.md", "plan.png"]
_NUM_DRAWS = 3  # of the noise, of which the median is shown
_MOST_CELLS = 20_000_000  # of made records, rows by features
_KNOTS = (-2.0, 0.0, 2.0), FINE  # of curves without privacy
_MOST_FITS, _NEAR = 5, 0.1  # of the search for the least number of records
# About so many records, divided by epsilon, have intervals: see `dp_linear_model`.
_WITH_INTERVALS = 5_000


def forecast(settings: ForecastSettings) -> None:
    """Prints what privacy would cost, and writes it to a folder."""
    folder = settings.output
    if folder is not None:
        _files.check_folder("--output", folder, names=_FILES)
        inputs = {"SCHEMA": settings.schema}
        _files.check_spared("--output", [folder / name for name in _FILES], inputs)
    link = link_of(settings.loss) if settings.loss else None
    schema = read_schema(settings.schema, link=link)
    is_class = bool(schema.target and schema.target.categories)
    loss = settings.loss or ("logistic" if is_class else "squared")
    rule = "left out with this loss, which has no share of records to state"
    is_fine = settings.base_rate is None or loss in ("logistic", "tweedie")
    _validate.require(is_fine, "--base-rate", settings.base_rate, rule)
    seed = secrets.randbits(32) if settings.seed is None else settings.seed
    made = _Made(settings, schema, loss, seed)
    size = len(made.data(2).feature_names)
    rule = f"at most {_MOST_CELLS // size:,} with {size - 1} features"
    _validate.require(
        settings.rows * size <= _MOST_CELLS, "--rows", settings.rows, rule
    )
    epsilons, outcomes = settings.epsilons, []
    with progress_bars(terminal(stderr=True)) as on_step:
        on_step("Models of made records", 0, len(epsilons) + 1)
        ideal, constant = made.without_privacy()
        for done, epsilon in enumerate(epsilons, 1):
            on_step("Models of made records", done, len(epsilons) + 1)
            outcomes.append(made.outcome(epsilon))
            ideal = ideal.or_better(outcomes[-1])
        on_step("Models of made records", len(epsilons) + 1, len(epsilons) + 1)
        if settings.width is not None:
            outcomes = made.with_least_rows(settings.width, outcomes, ideal, on_step)
    result = Forecast(settings, loss, seed, size - 1, constant, tuple(outcomes), ideal)
    console = terminal()
    show(console, result)
    if folder is not None:
        files = dict(zip(_FILES, contents(result), strict=True))
        _files.write_together(folder, files, name="--output")
        show_paths(console, [folder / name for name in files])


@dataclass(frozen=True, eq=False)
class _Made:
    """Models of simulated records of a schema."""

    settings: ForecastSettings
    schema: Schema
    loss: LossName
    seed: int

    def outcome(self, epsilon: float) -> Outcome:
        """Returns how good models are at an epsilon."""
        plan, data = self._plan(epsilon, self.settings.model)
        models = [self._fit(plan, data, draw) for draw in range(_NUM_DRAWS)]
        judged = [_judge(plan, data, x) for x in models]
        loss, score = np.median(judged, axis=0).tolist()
        return Outcome(models[0].privacy, loss, score, self.width(epsilon))

    def without_privacy(self) -> tuple[Outcome, Outcome]:
        """Returns the best of lines and of curves without noise, and the constant.

        An additive model bends only where its noise lets it see a gain. Here columns
        bend for the sake of the loss alone.
        """
        plan, data = self._plan(NO_PRIVACY, "linear")
        nothing = PrivacyGuarantee.non_private()
        lines = self._fit(plan, data)
        level = np.full_like(data.test_targets, lines.stats.get("constant", 0.0))
        constant = Outcome(nothing, *_measure(plan, level, data))
        width = self.width(NO_PRIVACY)
        ideal = Outcome(nothing, *_judge(plan, data, lines), width)
        if self.settings.model == "linear":
            return ideal, constant
        for knots in _KNOTS:
            bent = _with_curves(data, knots)
            judged = _judge(plan, bent, self._fit(plan, bent))
            ideal = ideal.or_better(Outcome(nothing, *judged))
        return ideal, constant

    def width(self, epsilon: float, rows: int | None = None) -> float:
        """Returns the median width of a coefficient's interval; inf: there is none."""
        if self.loss == "tweedie":
            return math.inf
        plan, data = self._plan(epsilon, None, rows, intervals=True)
        low, high = self._fit(plan, data).interval()
        return float(np.median(np.asarray(high - low)[:-1]))

    def with_least_rows(
        self, width: float, outcomes: list[Outcome], ideal: Outcome, on_step: OnStep
    ) -> list[Outcome]:
        """Returns outcomes, in ascending order, with the records for a width.

        If that is more than can be simulated, a smaller epsilon needs even more.
        """
        results, total = outcomes[:], len(outcomes)
        for place in reversed(range(total)):
            on_step("Records for the width", total - 1 - place, total)
            epsilon = self.settings.epsilons[place]
            least = self.least_rows(epsilon, width, outcomes[place], ideal)
            if least is None:
                break
            results[place] = dataclasses.replace(outcomes[place], least_rows=least)
        on_step("Records for the width", total, total)
        return results

    def least_rows(
        self, epsilon: float, width: float, outcome: Outcome, ideal: Outcome
    ) -> int | None:
        """Returns about how many records make an interval as narrow as requested.

        A squared width is a / n for the sampling of records, which is that without
        privacy, plus b / n^2 for the noise. So each fit says where to look next. The
        last is within 10 per cent of what it says.

        Returns:
            The number, of two digits, rounded up; None: more than are made here.
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
        model: ModelName | None,
        rows: int | None = None,
        *,
        intervals: bool = False,
    ) -> tuple[Plan, Dataset]:
        data = self.data(rows or self.settings.rows)
        settings = Settings(
            source="made",
            epsilon=epsilon,
            delta=self.settings.delta or default_delta(len(data.features)),
            loss=self.loss,
            model=model,
            intervals=intervals,
        )
        return make_plan(settings, data), data

    def _fit(self, plan: Plan, data: Dataset, draw: int = 0) -> Solution:
        rows = jax.tree.map(jnp.asarray, rows_of(data))
        # Nothing is to be hidden.
        key = jax.random.fold_in(jax.random.key(self.seed), draw)
        return fit(plan, rows, key=key)


def _two_digits(number: float) -> int:
    step = 10 ** max(0, math.floor(math.log10(number)) - 1)
    return math.ceil(number / step) * step


def _with_curves(data: Dataset, knots: tuple[float, ...]) -> Dataset:
    """Returns records that have hat functions of the columns that may bend, too."""
    columns = list(bending_features(data.schema))

    def bent(rows: np.ndarray) -> np.ndarray:
        values = jnp.asarray(rows[:, columns])
        functions = np.asarray(hats(values, knots)[..., 1:])  # all of them add up to 1
        return np.hstack([functions.reshape(len(rows), -1), rows])

    features, test_features = bent(data.features), bent(data.test_features)
    return dataclasses.replace(data, features=features, test_features=test_features)


def _judge(plan: Plan, data: Dataset, solution: Solution) -> tuple[float, float]:
    predictions = predictions_of(solution.params, data.test_features)
    return _measure(plan, np.asarray(predictions), data)


def _measure(plan: Plan, predictions: np.ndarray, data: Dataset) -> tuple[float, float]:
    """Returns the mean loss, and AUC for classes or else R2, on the test records."""
    targets, at = data.test_targets, jnp.asarray(predictions)
    loss = float(jnp.mean(plan.loss_fn.value(at, targets)))
    if data.task == "classification":
        ranks = scipy.stats.rankdata(predictions)
        above = ranks[targets > 0].mean() - ranks[targets <= 0].mean()
        return loss, float(0.5 + above / len(targets))
    errors = targets - np.asarray(plan.loss_fn.mean_of(at), np.float64)
    return loss, float(1 - np.mean(errors**2) / np.var(targets.astype(np.float64)))
