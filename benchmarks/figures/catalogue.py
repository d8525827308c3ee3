"""The panels of papers 001 and 004, one each for 000, 002, 003, and one for all.

Where a paper does not print the numbers of an axis they are ours, within its ranges.
"""

from dataclasses import replace
from itertools import product

from benchmarks.figures.panel import Panel, Setting

_EPSILONS_001 = (0.1, 0.5, 1.0)
_EPSILONS = (0.5, 1.0, 2.0, 4.0)
_BASELINES = ("zero", "DP-GD, best clipping")

_FULL = "RGD", *_BASELINES, "Algorithm 4, tight", "Algorithm 4, paper"
# The printed noise is of full gradients: there is no "paper" for batches.
_STOCHASTIC = (
    *("stochastic RGD", "zero", "stochastic DP-GD, best clipping"),
    "stochastic Algorithm 4, tight",
)
_DIMENSIONS = ("num_features", (200, 400, 800))
_SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
_NOISES_001 = {"ridge": "log-normal", "logistic": "log-logistic"}


def _paper_001() -> list[Panel]:
    """Ridge and logistic regression: by iteration, dimension and records."""
    synthetic = Setting(100_000, 10, num_steps=100)
    panels = []
    kinds = product(("ridge", "logistic"), (_FULL, _STOCHASTIC))
    for letter, (loss, methods) in zip("abcd", kinds, strict=True):
        how = "stochastic gradients" if methods is _STOCHASTIC else "full gradients"
        problem = f"{loss}, {_NOISES_001[loss]} noise"
        by_step = Panel(
            *(f"001-1{letter}", f"{problem}, {how}", problem, synthetic),
            *("num_steps", (synthetic.num_steps,)),
            curves=("epsilon", _EPSILONS_001),
            methods=methods if methods is _STOCHASTIC else (*methods, "Algorithm 3"),
            metric="estimation error",
            reported="Algorithm 3 varies more than Algorithm 4, which is close to the "
            "methods without privacy",
        )
        on_adult = replace(
            by_step,
            name=f"001-2{letter}",
            title=f"Adult, {loss}, {how}",
            problem=f"Adult, {loss}",
            fixed=Setting(28_000, 105, num_steps=100),
            methods=(*by_step.methods, "not private"),
            metric="test risk",
        )
        by_dimension = replace(
            by_step,
            name=f"001-3{letter}",
            x="num_features",
            values=(10, 20, 30, 40, 50),
            methods=methods,
            reported="the error falls with epsilon and grows with d",
            direction="grows",
        )
        by_records = replace(
            by_dimension,
            name=f"001-4{letter}",
            fixed=replace(synthetic, num_features=20),
            x="num_samples",
            values=(20_000, 40_000, 60_000, 80_000, 100_000),
            reported="the error falls with n and with epsilon",
            direction="falls",
        )
        panels += [by_step, on_adult, by_dimension, by_records]
    return panels


def _three_panels(figure, problem, methods, fixed, reported, by_records=""):
    """(a) by epsilon, (b) by n, both for several d; (c) beside the optimum, by n."""
    base = Panel(
        *(f"{figure}a", f"{problem}, by epsilon", problem, fixed),
        *("epsilon", _EPSILONS, _DIMENSIONS, methods, "excess risk"),
        reported=reported.get("a", ""),
    )
    by_size = replace(
        base,
        name=f"{figure}b",
        title=f"{problem}, by records",
        x="num_samples",
        values=(10_000, 30_000, 50_000, 70_000, 90_000),
        reported=reported.get("b", ""),
        direction=by_records,
    )
    beside = replace(
        by_size,
        name=f"{figure}c",
        title=f"{problem}, beside the optimum",
        curves=None,
        methods=("not private", *methods),
        metric="risk",
        reported="",
        direction="",
    )
    return [base, by_size, beside]


def _sparse_panels(figure, problem, methods, num_samples) -> list[Panel]:
    """(a) by epsilon, (b) by n, (c) by s*, all for several d."""
    sizes = tuple(round(num_samples * part) for part in (0.2, 0.4, 0.6, 0.8, 1.0))
    return [
        Panel(
            *(f"{figure}{letter}", f"{problem}, by {words}", problem),
            *(Setting(num_samples, 400), x, values, _DIMENSIONS),
            *(methods, "excess risk"),
            reported="falls with n and epsilon, hardly depends on d, and grows much "
            "with s*",
            direction="grows" if letter == "c" else "falls",
        )
        for letter, words, x, values in (
            ("a", "epsilon", "epsilon", _EPSILONS),
            ("b", "records", "num_samples", sizes),
            ("c", "sparsity", "sparsity", (5, 10, 20, 30, 40)),
        )
    ]


# Of 004's figures 3 and 4: data, how many records, and whose place they take.
_REAL_004 = {
    "3a": ("BlogFeedback", 40_000, ""),
    "3c": ("Belgian motor", 120_000, "Twitter"),
    "3d": ("RAND HIE", 16_000, "Twitter"),
    "4c": ("credit default", 24_000, "Winnipeg"),
    "4d": ("Adult in the l1 ball", 30_000, "Year Prediction"),
}


def _paper_004() -> list[Panel]:
    frank_wolfe, lasso, sparse, peeled = (
        (*_BASELINES, f"{name}, tight", f"{name}, paper")
        for name in ("Frank-Wolfe", "LASSO", "sparse regression", "hard thresholding")
    )
    same = "the errors at d = 200 and 800 are almost the same"
    falls = {"a": same, "b": "0.14 at n = 10,000 to 0.03 at n = 90,000"}
    against = {"b": "larger than in 004-1 at this setting, against the theory"}
    skewed, heavy = "linear, log-normal features", "linear, Student-t features"
    labels = "logistic, log-normal features"
    small, few = Setting(10_000, 400), Setting(10_000, 200)
    panels = [
        *_three_panels("004-1", skewed, frank_wolfe, small, falls, "falls"),
        *_three_panels("004-2", labels, frank_wolfe, small, {"a": same}),
        *_three_panels("004-5", skewed, lasso, few, against),
        *_three_panels("004-6", heavy, lasso, Setting(100_000, 200), {}),
    ]
    for name, (problem, num_samples, substitute) in _REAL_004.items():
        sizes = tuple(round(num_samples * part) for part in (0.25, 0.5, 0.75, 1.0))
        one = Panel(
            *(f"004-{name}", f"{problem}, by records", problem),
            *(Setting(num_samples, 0), "num_samples", sizes),
            *(("epsilon", (0.5, 1.0, 2.0)), frank_wolfe, "excess risk"),
            reported="mostly falls with n and epsilon, unstably",
            direction="falls",
            substitute=substitute,
        )
        panels.append(one)
    for number, noise in ((7, "log-normal"), (8, "log-logistic"), (9, "log-gamma")):
        problem = f"sparse linear, {noise} noise"
        panels += _sparse_panels(f"004-{number}", problem, sparse, 50_000)
    for number, noise in ((10, "logistic"), (11, "log-gamma")):
        problem = f"sparse logistic, {noise} noise"
        panels += _sparse_panels(f"004-{number}", problem, peeled, 8_000)
    return panels


def _by_moments() -> list[Panel]:
    """What papers 000 and 003 prove, and do not measure: rates by moment order."""
    orders = ("moment_order", (1.2, 1.5, 2.0))
    regressions = *_BASELINES, "l1 regression, paper", "l1 regression, tight"
    means = "empirical mean", "zero", "mean, best clipping"
    means = *means, "private mean, paper", "private mean, tight"
    panels = []
    regression = "l1 regression", "linear, noise of order theta", 3, regressions
    mean = "the mean of a Pareto law", "mean of a Pareto law", 1, means
    for name, (title, problem, num_features, methods), metric in (
        ("000-1", regression, "excess test risk"),
        ("003-1", mean, "estimation error"),
    ):
        by_records = Panel(
            *(f"{name}a", f"{title}, by records", problem),
            *(Setting(10_000, num_features), "num_samples", _SIZES),
            *(orders, methods, metric),
            # Theorem 2 of 000, and Theorem 1 of 003.
            exponent=lambda setting: 1 / setting.moment_order - 1,
        )
        by_epsilon = {"x": "epsilon", "values": (0.1, 0.3, 1.0, 3.0)}
        by_epsilon |= {"name": f"{name}b", "title": f"{title}, by epsilon"}
        panels += [by_records, replace(by_records, **by_epsilon)]
    return panels


def _among_parties() -> Panel:
    """What paper 002 does not measure: the price of trusting nobody.

    One party may collude with who sees the transcript, and knows its share of the
    noise: the others' K - 1 have to do.
    """
    methods = "parties, aggregator trusted", "parties, transcript seen"
    return Panel(
        *("002-1a", "logistic regression among parties", "logistic, in the unit ball"),
        *(Setting(8_000, 5), "num_parties", (2, 4, 8, 16), ("epsilon", (0.5, 2.0))),
        *(("zero", "clipped DP-GD, one curator", *methods), "excess risk"),
        exponent=lambda setting: 0.0,  # Theorem 5.1: all records count
    )


def _estimators() -> list[Panel]:
    """Estimators beside each other: the same steps, the best of five settings for each.

    On data of the papers, with a tail in the noise or in the features; and real.
    """
    kinds = "clipping", "winsorization", "truncation", "smoothed truncation"
    methods = "zero", *(f"DP-GD, best {kind}" for kind in kinds)
    synthetic = Setting(20_000, 200)
    return [
        Panel(
            *(name, f"{problem}, by epsilon", problem, fixed),
            *("epsilon", (0.1, 0.5, 2.0, 8.0)),
            curves=("num_features", (20, 200)) if fixed is synthetic else None,
            methods=methods,
            metric="excess risk",
            repetitions=5,
        )
        for name, problem, fixed in (
            ("all-1a", "ridge, log-normal noise", synthetic),
            ("all-1b", "logistic, log-normal features", synthetic),
            ("all-1c", "sparse linear, log-logistic noise", synthetic),
            ("all-2a", "Adult, logistic", Setting(28_000, 105)),
            ("all-2b", "RAND HIE", Setting(16_000, 0)),
            ("all-2c", "BlogFeedback", Setting(40_000, 0)),
        )
    ]


def _successors() -> list[Panel]:
    """The rates that are optimal since the papers, beside the papers' and practice."""
    new = "nothing to set", "localized", "one pass", "one pass, delta = 0"
    panels = [
        Panel(
            *(f"new-1{letter}", f"{problem}, by records", problem),
            *(Setting(100_000, 10), "num_samples"),
            *((3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000), None),
            *((*_BASELINES, "Algorithm 4, tight", *new), "excess risk"),
            repetitions=10,
            exponent=lambda setting: -0.5,  # of the sampling term
        )
        for letter, problem in (
            ("a", "ridge, log-normal noise"),
            ("b", "linear, log-normal features"),
            ("c", "logistic, log-logistic noise"),
        )
    ]
    means = "empirical mean", "zero", "mean, best clipping"
    center = Panel(
        *("new-2a", "the center of a Student law in 20 dimensions, by records"),
        *("center of a Student law", Setting(10_000, 20), "num_samples", _SIZES),
        *(("moment_order", (1.2, 2.0)),),
        *((*means, "mean, nothing to set", "geometric median"), "estimation error"),
        repetitions=10,
        exponent=lambda setting: -0.5,  # of the geometric median, whatever the tail
    )
    return [*panels, center]


def panels() -> dict[str, Panel]:
    """Returns every panel by its name, in the papers' order."""
    found = [*_by_moments(), _among_parties(), *_paper_001(), *_paper_004()]
    found += [*_estimators(), *_successors()]
    found.sort(key=lambda panel: (*_order(panel.figure), panel.name))
    return {panel.name: panel for panel in found}


def figures() -> dict[str, list[Panel]]:
    """Returns the panels of every figure, in the same order."""
    found: dict[str, list[Panel]] = {}
    for panel in panels().values():
        found.setdefault(panel.figure, []).append(panel)
    return found


def _order(figure: str) -> tuple[str, int]:
    paper, number = figure.split("-")
    return paper, int(number)
