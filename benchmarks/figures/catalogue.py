"""The panels of papers 001 and 004, one each for 000, 002, 003, and one for all.

Where a paper does not print the numbers of an axis they are ours, within its ranges.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from benchmarks.figures.panel import Panel, Setting

_EPSILONS_001 = (0.1, 0.5, 1.0)
_EPSILONS = (0.5, 1.0, 2.0, 4.0)
_BASELINES = ("zero", "DP-GD, best clipping")
# Run again for the band from best to worst, which every figure has here.
REPEATS = {"001-5": "001-1", "001-6": "001-2"}

_FULL = (
    "RGD",
    "zero",
    "DP-GD, best clipping",
    "Algorithm 4, tight",
    "Algorithm 4, paper",
)
# The printed noise is of full gradients: there is no "paper" for batches.
_STOCHASTIC = (
    "stochastic RGD",
    "zero",
    "stochastic DP-GD, best clipping",
    "stochastic Algorithm 4, tight",
)
# Its four panels: which loss, and which gradients.
_KINDS_001 = {
    "a": ("ridge", _FULL),
    "b": ("ridge", _STOCHASTIC),
    "c": ("logistic", _FULL),
    "d": ("logistic", _STOCHASTIC),
}
_PROBLEMS_001 = {
    "ridge": "ridge, log-normal noise",
    "logistic": "logistic, log-logistic noise",
}


def _paper_001() -> list[Panel]:
    """Ridge and logistic regression: by iteration, dimension and records."""
    synthetic = Setting(num_samples=100_000, num_features=10, num_steps=100)
    adult = Setting(num_samples=28_000, num_features=105, num_steps=100)
    panels = []
    for letter, (loss, methods) in _KINDS_001.items():
        how = "stochastic gradients" if methods is _STOCHASTIC else "full gradients"
        by_step = Panel(
            name=f"001-1{letter}",
            title=f"{_PROBLEMS_001[loss]}, {how}",
            problem=_PROBLEMS_001[loss],
            fixed=synthetic,
            x="num_steps",
            values=(synthetic.num_steps,),
            curves=("epsilon", _EPSILONS_001),
            methods=methods if methods is _STOCHASTIC else (*methods, "Algorithm 3"),
            metric="estimation error",
            reported="Algorithm 3 varies more than Algorithm 4, which is close to the "
            "methods without privacy",
        )
        on_adult = dataclasses.replace(
            by_step,
            name=f"001-2{letter}",
            title=f"Adult, {loss}, {how}",
            problem=f"Adult, {loss}",
            fixed=adult,
            methods=(*by_step.methods, "not private"),
            metric="test risk",
        )
        by_dimension = dataclasses.replace(
            by_step,
            name=f"001-3{letter}",
            x="num_features",
            values=(10, 20, 30, 40, 50),
            methods=methods,
            reported="the error falls with epsilon and grows with d",
            direction="grows",
        )
        by_records = dataclasses.replace(
            by_dimension,
            name=f"001-4{letter}",
            fixed=dataclasses.replace(synthetic, num_features=20),
            x="num_samples",
            values=(20_000, 40_000, 60_000, 80_000, 100_000),
            reported="the error falls with n and with epsilon",
            direction="falls",
        )
        panels += [by_step, on_adult, by_dimension, by_records]
    return panels


def _three_panels(
    figure: str,
    problem: str,
    methods: tuple[str, ...],
    *,
    num_samples: int,
    sizes: tuple[int, ...],
    num_features: int,
    reported: Mapping[str, str],
    by_records: Literal["falls", ""] = "",
) -> list[Panel]:
    """(a) by epsilon, (b) by n, both for several d; (c) beside the optimum, by n."""
    dimensions = ("num_features", (200, 400, 800))
    base = Panel(
        name=f"{figure}a",
        title=f"{problem}, by epsilon",
        problem=problem,
        fixed=Setting(num_samples=num_samples, num_features=num_features),
        x="epsilon",
        values=_EPSILONS,
        curves=dimensions,
        methods=methods,
        metric="excess risk",
        reported=reported.get("a", ""),
    )
    by_size = dataclasses.replace(
        base,
        name=f"{figure}b",
        title=f"{problem}, by records",
        x="num_samples",
        values=sizes,
        reported=reported.get("b", ""),
        direction=by_records,
    )
    beside = dataclasses.replace(
        by_size,
        name=f"{figure}c",
        title=f"{problem}, beside the optimum",
        curves=None,
        methods=("not private", *methods),
        metric="risk",
        reported=reported.get("c", ""),
        direction="",
    )
    return [base, by_size, beside]


def _sparse_panels(
    figure: str, problem: str, methods: tuple[str, ...], *, num_samples: int
) -> list[Panel]:
    """(a) by epsilon, (b) by n, (c) by s*, all for several d."""
    sizes = tuple(round(num_samples * part) for part in (0.2, 0.4, 0.6, 0.8, 1.0))
    panels = []
    for letter, x, values in (
        ("a", "epsilon", _EPSILONS),
        ("b", "num_samples", sizes),
        ("c", "sparsity", (5, 10, 20, 30, 40)),
    ):
        panels.append(
            Panel(
                name=f"{figure}{letter}",
                title=f"{problem}, by "
                + {"a": "epsilon", "b": "records", "c": "sparsity"}[letter],
                problem=problem,
                fixed=Setting(num_samples=num_samples, num_features=400),
                x=x,
                values=values,
                curves=("num_features", (200, 400, 800)),
                methods=methods,
                metric="excess risk",
                reported="falls with n and epsilon, hardly depends on d, and grows "
                "much with s*",
                direction="grows" if letter == "c" else "falls",
            )
        )
    return panels


def _paper_004() -> list[Panel]:
    frank_wolfe = (*_BASELINES, "Frank-Wolfe, tight", "Frank-Wolfe, paper")
    lasso = (*_BASELINES, "LASSO, tight", "LASSO, paper")
    sparse = (*_BASELINES, "sparse regression, tight", "sparse regression, paper")
    peeled = (*_BASELINES, "hard thresholding, tight", "hard thresholding, paper")
    sizes = (10_000, 30_000, 50_000, 70_000, 90_000)
    same = "the errors at d = 200 and 800 are almost the same"
    panels = [
        *_three_panels(
            "004-1",
            "linear, log-normal features",
            frank_wolfe,
            num_samples=10_000,
            sizes=sizes,
            num_features=400,
            reported={"a": same, "b": "0.14 at n = 10,000 to 0.03 at n = 90,000"},
            by_records="falls",
        ),
        *_three_panels(
            "004-2",
            "logistic, log-normal features",
            frank_wolfe,
            num_samples=10_000,
            sizes=sizes,
            num_features=400,
            reported={"a": same},
        ),
        *_three_panels(
            "004-5",
            "linear, log-normal features",
            lasso,
            num_samples=10_000,
            sizes=sizes,
            num_features=200,
            reported={"b": "larger than in 004-1 at this setting, against the theory"},
        ),
        *_three_panels(
            "004-6",
            "linear, Student-t features",
            lasso,
            num_samples=100_000,
            sizes=sizes,
            num_features=200,
            reported={},
        ),
    ]
    for name, problem, num_samples, substitute in (
        ("004-3a", "BlogFeedback", 40_000, ""),
        ("004-3b", "Twitter", 400_000, ""),
        ("004-3c", "Belgian motor", 120_000, "Twitter"),
        ("004-3d", "RAND HIE", 16_000, "Twitter"),
        ("004-4a", "Winnipeg", 240_000, ""),
        ("004-4b", "Year Prediction", 400_000, ""),
        ("004-4c", "credit default", 24_000, "Winnipeg"),
        ("004-4d", "Adult in the l1 ball", 30_000, "Year Prediction"),
    ):
        panels.append(
            Panel(
                name=name,
                title=f"{problem}, by records",
                problem=problem,
                fixed=Setting(num_samples=num_samples, num_features=0),
                x="num_samples",
                values=tuple(
                    round(num_samples * part) for part in (0.25, 0.5, 0.75, 1.0)
                ),
                curves=("epsilon", (0.5, 1.0, 2.0)),
                methods=frank_wolfe,
                metric="excess risk",
                reported="mostly falls with n and epsilon, unstably",
                direction="falls",
                substitute=substitute,
            )
        )
    for number, noise in ((7, "log-normal"), (8, "log-logistic"), (9, "log-gamma")):
        panels += _sparse_panels(
            f"004-{number}", f"sparse linear, {noise} noise", sparse, num_samples=50_000
        )
    for number, noise in ((10, "logistic"), (11, "log-gamma")):
        panels += _sparse_panels(
            f"004-{number}",
            f"sparse logistic, {noise} noise",
            peeled,
            num_samples=8_000,
        )
    return panels


def _by_moments() -> list[Panel]:
    """What papers 000 and 003 prove, and do not measure: rates by moment order."""
    orders = ("moment_order", (1.2, 1.5, 2.0))
    sizes = (1_000, 3_000, 10_000, 30_000, 100_000)
    regression = Panel(
        name="000-1a",
        title="l1 regression, by records",
        problem="linear, noise of order theta",
        fixed=Setting(num_samples=10_000, num_features=3),
        x="num_samples",
        values=sizes,
        curves=orders,
        methods=(*_BASELINES, "l1 regression, paper", "l1 regression, tight"),
        metric="excess test risk",
        exponent=lambda setting: 1 / setting.moment_order - 1,  # Theorem 2
    )
    mean = Panel(
        name="003-1a",
        title="the mean of a Pareto law, by records",
        problem="mean of a Pareto law",
        fixed=Setting(num_samples=10_000, num_features=1),
        x="num_samples",
        values=sizes,
        curves=orders,
        methods=(
            "empirical mean",
            "zero",
            "mean, best clipping",
            "private mean, paper",
            "private mean, tight",
        ),
        metric="estimation error",
        exponent=lambda setting: 1 / setting.moment_order - 1,  # Theorem 1
    )
    epsilons = (0.1, 0.3, 1.0, 3.0)
    return [
        one
        for by_records in (regression, mean)
        for one in (
            by_records,
            dataclasses.replace(
                by_records,
                name=f"{by_records.name[:-1]}b",
                title=by_records.title.replace("records", "epsilon"),
                x="epsilon",
                values=epsilons,
            ),
        )
    ]


def _among_parties() -> Panel:
    """What paper 002 does not measure: the price of trusting nobody.

    One party may collude with who sees the transcript, and knows its share of the
    noise: the others' K - 1 have to do.
    """
    return Panel(
        name="002-1a",
        title="logistic regression among parties",
        problem="logistic, in the unit ball",
        fixed=Setting(num_samples=8_000, num_features=5),
        x="num_parties",
        values=(2, 4, 8, 16),
        curves=("epsilon", (0.5, 2.0)),
        methods=(
            "zero",
            "clipped DP-GD, one curator",
            "parties, aggregator trusted",
            "parties, transcript seen",
        ),
        metric="excess risk",
        exponent=lambda setting: 0.0,  # Theorem 5.1: all records count
    )


def _estimators() -> list[Panel]:
    """Estimators beside each other: the same steps, the best of five settings for each.

    On data of the papers, with a tail in the noise or in the features; and real.
    """
    methods = (
        "zero",
        "DP-GD, best clipping",
        "DP-GD, best winsorization",
        "DP-GD, best truncation",
        "DP-GD, best smoothed truncation",
    )
    synthetic = Setting(num_samples=20_000, num_features=200)
    panels = []
    for name, problem, fixed in (
        ("all-1a", "ridge, log-normal noise", synthetic),
        ("all-1b", "logistic, log-normal features", synthetic),
        ("all-1c", "sparse linear, log-logistic noise", synthetic),
        ("all-2a", "Adult, logistic", Setting(28_000, 105)),
        ("all-2b", "RAND HIE", Setting(16_000, 0)),
        ("all-2c", "BlogFeedback", Setting(40_000, 0)),
    ):
        panels.append(
            Panel(
                name=name,
                title=f"{problem}, by epsilon",
                problem=problem,
                fixed=fixed,
                x="epsilon",
                values=(0.1, 0.5, 2.0, 8.0),
                curves=("num_features", (20, 200)) if fixed is synthetic else None,
                methods=methods,
                metric="excess risk",
                repetitions=5,
            )
        )
    return panels


def _successors() -> list[Panel]:
    """The rates that are optimal since the papers, beside the papers' and practice."""
    panels = []
    for letter, problem in (
        ("a", "ridge, log-normal noise"),
        ("b", "linear, log-normal features"),
        ("c", "logistic, log-logistic noise"),
    ):
        panels.append(
            Panel(
                name=f"new-1{letter}",
                title=f"{problem}, by records",
                problem=problem,
                fixed=Setting(num_samples=100_000, num_features=10),
                x="num_samples",
                values=(3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000),
                curves=None,
                methods=(
                    *_BASELINES,
                    "Algorithm 4, tight",
                    "nothing to set",
                    "localized",
                    "one pass",
                    "one pass, delta = 0",
                ),
                metric="excess risk",
                repetitions=10,
                exponent=lambda setting: -0.5,  # of the sampling term
            )
        )
    center = Panel(
        name="new-2a",
        title="the center of a Student law in 20 dimensions, by records",
        problem="center of a Student law",
        fixed=Setting(num_samples=10_000, num_features=20),
        x="num_samples",
        values=(1_000, 3_000, 10_000, 30_000, 100_000),
        curves=("moment_order", (1.2, 2.0)),
        methods=(
            "empirical mean",
            "zero",
            "mean, best clipping",
            "mean, nothing to set",
            "geometric median",
        ),
        metric="estimation error",
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
    """Returns the panels of every figure, in the same order; none for REPEATS."""
    found = {name: [] for name in REPEATS}
    for panel in panels().values():
        found.setdefault(panel.figure, []).append(panel)
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def _order(figure: str) -> tuple[str, int]:
    paper, number = figure.split("-")
    return paper, int(number)
