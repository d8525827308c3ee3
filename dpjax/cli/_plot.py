"""The plot of a run: test risk after each step, with a line for each method."""

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from dpjax._rounding import rounded_up
from dpjax.cli._plan import Plan
from dpjax.cli._runs import ZERO, Run, Scores
from dpjax.datasets import Dataset

# Colours of Okabe and Ito (2008), which colour-blind readers can tell apart; methods
# without privacy have broken lines, for print. Each entry is (colour, line, marker).
_PRIVATE = (("#0072B2", "-", "o"), ("#D55E00", "-", "s"), ("#CC79A7", "-", "^"))
_NON_PRIVATE = (("#000000", "--", ""), ("#009E73", ":", ""))
_ZERO = "#999999", "-.", ""


def plot_test_risk(
    plan: Plan, data: Dataset, scored: Sequence[tuple[Run, Scores]], *, is_public: bool
) -> bytes:
    """Draws the test risk of every method after each step, and returns a PNG.

    If the records are not public, the title says that the numbers are unprotected.
    """
    figure = Figure(figsize=(6.4, 4.2), dpi=200, layout="constrained")
    axes = figure.subplots()
    styles = {True: iter(_PRIVATE), False: iter(_NON_PRIVATE)}
    lengths = {int(run.steps[-1]) for run, _ in scored} - {0}
    last, is_log = max(lengths, default=1), len(lengths) > 1
    for run, scores in scored:
        color, line, marker = (
            _ZERO if run.method == ZERO else next(styles[run.is_private])
        )
        # A method without steps is a horizontal line.
        steps = run.steps if run.steps[-1] > 0 else np.array([int(is_log), last])
        axes.plot(
            steps,
            np.broadcast_to(scores.risks, steps.shape),
            label=_label(run, scores),
            linewidth=1.5,
            markersize=4,
            markevery=max(1, len(steps) // 10),
            color=color,
            linestyle=line,
            marker=marker,
        )
    axes.set_xlabel("step")
    unit = {"logistic": "nats", "absolute": data.target_unit}.get(
        plan.facts.loss, f"[{data.target_unit}]²"
    )
    axes.set_ylabel(
        f"test risk: mean {plan.facts.loss} loss ({unit})", parse_math=False
    )
    axes.set_ylim(*_limits(scored))
    if is_log:  # methods differ in their number of steps
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(int(is_log), last)
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small", framealpha=0.8, edgecolor="none")
    title = (
        f"{data.name}: n = {len(data.features):,}, d = {len(data.feature_names)}, "
        "one draw of the noise"
    )
    if not is_public:
        title = f"UNPROTECTED test numbers of private records\n{title}"
    axes.set_title(title, fontsize="medium", loc="left", parse_math=False)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _label(run: Run, scores: Scores) -> str:
    if run.method == ZERO:
        return f"{run.method} (risk {scores.risks[-1]:.3g})"
    if not run.is_private:
        return f"{run.method} (not private)"
    privacy = run.solution.privacy
    delta = f", δ = {rounded_up(privacy.delta, 2)}" if privacy.delta > 0 else ""
    return f"{run.method} (ε = {rounded_up(privacy.epsilon, 3)}{delta})"


def _limits(scored: Sequence[tuple[Run, Scores]]) -> tuple[float | None, float | None]:
    """Returns limits of the risk that leave out the first, steep steps.

    They also leave out baselines without privacy that end above zero weights, because
    they have diverged. The last risk of each private method is always shown; the risk
    of zero weights is shown if it is near.
    """
    zero = next((s.risks[-1] for run, s in scored if run.method == ZERO), np.inf)
    others = [(run, s.risks) for run, s in scored if run.method != ZERO]
    shown = [risks for run, risks in others if run.is_private or risks[-1] <= zero]
    risks = np.concatenate([*shown, np.zeros(0)])
    risks = risks[np.isfinite(risks)]
    if risks.size == 0:
        return None, None
    low, high = risks.min(), np.quantile(risks, 0.95)
    ends = [risks[-1] for run, risks in others if run.is_private]
    high = max([high, *(end for end in ends if np.isfinite(end))])
    if zero < low + 1.5 * (high - low):
        high = max(high, zero)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return float(low - margin), float(high + margin)
