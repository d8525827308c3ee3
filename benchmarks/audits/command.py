"""The command `python -m benchmarks audit`: attacks a claim, and draws its region."""

import io
from pathlib import Path

import jax
import numpy as np
import scipy.stats
from matplotlib.figure import Figure

from benchmarks.audits.case import Case
from benchmarks.audits.catalogue import cases
from dpjax import _files, _validate
from dpjax._rounding import as_decimal, rounded_down, rounded_up
from dpjax.accounting import gaussian_stddev
from dpjax.audit._lower_bound import Audit, clopper_pearson

# Of Okabe and Ito (2008); the lines differ in their dashes and marks too.
_CLAIM, _ATTACKS, _CHOSEN = "#000000", "#0072B2", "#D55E00"

_NUM_POINTS = 15


def audit(name: str, releases: int | None, seed: int, output: Path | None) -> None:
    """Lists cases, or audits one and draws it; exits with 1 where a claim falls."""
    if name == "list":
        print("\n".join(cases()))
        return
    known = f"list, or one of {', '.join(cases())}"
    _validate.require(name in cases(), "NAME", name, known)
    _validate.require(0 <= seed < 2**32, "--seed", seed, "from 0 to 2^32 - 1")
    if releases is not None:
        _validate.require(releases >= 100, "--releases", releases, "at least 100")
    path = output or Path("dpjax-output", f"{name}-audit.png")
    _files.check_file("--output", path, suffix=".png")

    case, claim = cases()[name], cases()[name].privacy
    print(
        f"{name}: claims epsilon = {rounded_up(claim.epsilon, 4)} at "
        f"delta = {rounded_up(claim.delta, 6)}, {claim.relation.name.lower()}"
    )
    found = case.audit(key=jax.random.key(seed), num_releases=releases)
    _files.write_whole(path, plot_region(case, found), name="--output")
    print(
        f"An attack proves epsilon >= {rounded_down(found.epsilon, 4)}, "
        f"with confidence 1 - {_failure(found)}, from {found.num_releases:,} releases."
    )
    is_refuted = found.epsilon > claim.epsilon
    words = "The claim stands against this attack, which proves nothing more."
    if is_refuted:
        words = "REFUTED: the releases tell more than is claimed."
    print(words, f"wrote {path}", sep="\n")
    if is_refuted:
        raise SystemExit(1)


def plot_region(case: Case, found: Audit) -> bytes:
    """Draws which error rates the claim allows, and the attack's; returns a PNG."""
    figure = Figure(figsize=(6.4, 5.6), dpi=200, layout="constrained")
    axes = figure.subplots()
    rates = np.concatenate([np.geomspace(1e-6, 0.01, 100), np.linspace(0.01, 1, 400)])
    epsilon, delta = case.privacy.epsilon, case.privacy.delta
    # The least false negative rate that (epsilon, delta)-DP allows.
    left, right = 1 - delta - np.exp(epsilon) * rates, 1 - delta - rates
    edge = np.maximum(np.maximum(left, np.exp(-epsilon) * right), 0.0)
    label = f"claim: ε = {rounded_up(epsilon, 3)}"
    if delta > 0:
        label += f", δ = {rounded_up(delta, 6)}"
    if case.is_gaussian:
        # The claim is more than one epsilon and delta: the whole curve of mu.
        mu = 1 / gaussian_stddev(epsilon, delta, sensitivity=1.0)
        edge = scipy.stats.norm.cdf(scipy.stats.norm.isf(rates) - mu)
        label += f", by μ = {rounded_up(mu, 3)} of Gaussian DP"
    axes.fill_between(rates, 0, edge, color="#999999", alpha=0.3, linewidth=0)
    axes.plot(rates, edge, color=_CLAIM, linewidth=1.5, label=label)
    look = {"linewidth": 0.8, "linestyle": ":", "label": "guessing"}
    axes.plot(rates, 1 - rates, color=_CLAIM, **look)
    # Some of the thresholds, as far from each other as from the next.
    way = found.roc.sum(axis=1)
    marks = np.linspace(way[0], way[-1], _NUM_POINTS)
    some = np.unique(np.abs(way[:, None] - marks).argmin(axis=0))
    _points(axes, found, found.roc[some], _ATTACKS, "o", "attack, other thresholds")
    chosen = np.array([[found.false_positives, found.true_positives]])
    label = f"chosen attack: ε ≥ {rounded_down(found.epsilon, 3)}"
    _points(axes, found, chosen, _CHOSEN, "s", label)
    axes.set_xlabel("false positive rate: data called neighbour")
    axes.set_ylabel("false negative rate: neighbour called data")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.text(0.03, 0.03, "bars wholly in here refute the claim", fontsize="small")
    axes.legend(fontsize="small", framealpha=0.8, edgecolor="none", loc="upper right")
    title = f"{case.name}: {found.num_releases:,} releases, bars at confidence "
    look = {"fontsize": "medium", "loc": "left", "parse_math": False}
    axes.set_title(f"{title}1 - {_failure(found)} each", **look)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _failure(found: Audit) -> str:
    return rounded_up(1 - as_decimal(found.confidence), 1)


def _points(axes, found: Audit, counts: np.ndarray, color, marker, label) -> None:
    bars = []
    for count in (counts[:, 0], found.num_tested - counts[:, 1]):
        rate, fails = count / found.num_tested, (1 - found.confidence) / 2
        low, high = clopper_pearson(count, found.num_tested, fails)
        bars.append((rate, np.stack([rate - low, high - rate])))
    (x, x_bars), (y, y_bars) = bars
    look = {"color": color, "marker": marker, "markersize": 4, "linestyle": "none"}
    look |= {"linewidth": 1, "label": label, "zorder": 3 if marker == "s" else 2}
    axes.errorbar(x, y, xerr=x_bars, yerr=y_bars, **look)
