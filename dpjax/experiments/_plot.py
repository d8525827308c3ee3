"""The plot of a run: test risk along the steps, one line a method."""

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from dpjax.datasets import Dataset
from dpjax.experiments._plan import Plan
from dpjax.experiments._train import Run, Scores

# Colours of Okabe and Ito (2008), told apart by colour-blind readers too; methods
# without privacy are broken lines, so that they differ in print as well.
# Each is (colour, line, marker).
_PRIVATE = (("#0072B2", "-", "o"), ("#D55E00", "-", "s"))
_NON_PRIVATE = (("#000000", "--", ""), ("#009E73", ":", ""))


def plot_test_risk(
    plan: Plan,
    data: Dataset,
    scored: Sequence[tuple[Run, Scores]],
    *,
    is_public: bool,
) -> bytes:
    """Draws the test risk of every method along its steps, and returns a PNG.

    Args:
        plan: the run.
        data: its data set.
        scored: the methods with their test scores.
        is_public: whether the records are public; if not, the plot says that its
            numbers are unprotected.
    """
    figure = Figure(figsize=(6.4, 4.2), dpi=200, layout="constrained")
    axes = figure.subplots()
    styles = {True: iter(_PRIVATE), False: iter(_NON_PRIVATE)}
    for run, scores in scored:
        color, line, marker = next(styles[run.is_private])
        axes.plot(
            run.steps,
            scores.risks,
            label=_label(run),
            linewidth=1.5,
            markersize=4,
            markevery=max(1, len(run.steps) // 10),
            color=color,
            linestyle=line,
            marker=marker,
        )
    axes.set_xlabel("gradient step")
    unit = "nats" if plan.loss == "logistic" else f"[{data.target_unit}]²"
    axes.set_ylabel(f"test risk: mean {plan.loss} loss ({unit})", parse_math=False)
    axes.set_ylim(*_limits(scored))
    axes.set_xlim(0, None)
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
    title = (
        f"{data.name}: n = {len(data.features):,}, d = {len(data.feature_names)}, "
        f"δ = {plan.delta:.2g}, one draw of the noise"
    )
    if not is_public:
        title = f"UNPROTECTED test numbers of private records\n{title}"
    axes.set_title(title, fontsize="medium", loc="left", parse_math=False)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _label(run: Run) -> str:
    if not run.is_private:
        return f"{run.method} (not private)"
    return f"{run.method} (ε = {run.solution.privacy.epsilon:.3g})"


def _limits(scored: Sequence[tuple[Run, Scores]]) -> tuple[float | None, float | None]:
    """Leaves out the first steep steps, which would flatten all differences."""
    risks = np.concatenate([scores.risks for _, scores in scored])
    risks = risks[np.isfinite(risks)]
    if risks.size == 0:
        return None, None
    low, high = risks.min(), np.quantile(risks, 0.95)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return float(low - margin), float(high + margin)
