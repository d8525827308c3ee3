"""How often intervals of statistics hold those of real data, as populations.

Samples are drawn with replacement. Beside each interval is the usual one without
privacy. The nonzero values of `GROUPS` split the records.
"""

from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import page
from benchmarks.data import load
from benchmarks.record import Found, Place, Row, repeated
from dpjax import solvers

NUM_SAMPLES = 10_000
EPSILONS = (0.5, 1.0, 3.0)
QUANTILES = (0.1, 0.5, 0.9)
GROUPS = {"adult": "education=", "rand_hie": "site=", "belgian_motor": "coverage="}
# One column of moderate tails and one of heavy ones, which is mostly zero.
COLUMNS = (
    *("adult, age", "adult, capital-gain", "rand_hie, linc", "rand_hie, target"),
    *("belgian_motor, ageph", "belgian_motor, target"),
)
STATISTICS = "mean", "quantiles", "counts", "means of groups", "medians of groups"
Z = 1.959964
# An error, its standard error, and both without privacy.
Intervals = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def places() -> list[Place]:
    """Returns one place for all statistics of a column at an epsilon."""
    return [(one, epsilon, STATISTICS[0]) for epsilon in EPSILONS for one in COLUMNS]


def population(name: str, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns a column of a data set and the group of each record."""
    data = load(name)
    names = data.feature_names
    groups = [i for i, one in enumerate(names) if one.startswith(GROUPS[name])]
    of = np.argmax(data.features[:, groups], axis=1).astype(np.int32)
    is_target = column == "target"
    x = data.targets if is_target else data.features[:, names.index(column)]
    return np.asarray(x, np.float32), of


def intervals_of(values, groups, epsilon):
    """Returns a function from a key to the intervals of one sample."""
    num_groups = int(groups.max()) + 1
    given = {"epsilon": epsilon, "delta": NUM_SAMPLES**-1.1}
    ranked = jnp.asarray(np.sort(values))
    of_groups = [values[groups == g] for g in range(num_groups)]
    mean, means = values.mean(dtype=float), [x.mean(dtype=float) for x in of_groups]
    quantiles = np.quantile(values, QUANTILES, method="inverted_cdf")
    medians = [np.quantile(x, 0.5, method="inverted_cdf") for x in of_groups]

    def at_random(key: jax.Array) -> dict[str, Intervals]:
        draw_key, mean_key, count_key, group_key, *keys = jax.random.split(key, 7)
        chosen = jax.random.randint(draw_key, (NUM_SAMPLES,), 0, len(values))
        x, of = jnp.asarray(values)[chosen], jnp.asarray(groups)[chosen]
        is_of = jax.nn.one_hot(of, num_groups, axis=0, dtype=bool)
        mean_of = solvers.dp_mean(x, key=mean_key, **given)
        one = partial(solvers.dp_quantile, x, epsilon=epsilon)
        pairs = zip(keys, QUANTILES, strict=True)
        alike = [one(key=key, quantile=quantile) for key, quantile in pairs]
        counts = solvers.dp_histogram(x, key=count_key, **given)
        parts = solvers.dp_group_means(
            x, of, key=group_key, num_groups=num_groups, quantiles=(0.5,), **given
        )
        every = jnp.ones_like(x, bool)
        ranks = [_order_statistics(x, every, q) for q in QUANTILES]
        edges = counts.stats["edges"][1:-1]  # the first and last bins have no end
        share, own = (_shares(y, edges) for y in (ranked, jnp.sort(x)))
        stacked = lambda pairs: tuple(map(jnp.stack, zip(*pairs, strict=True)))  # noqa: E731
        spread = jnp.sqrt(NUM_SAMPLES * own * (1 - own))
        found = {
            "mean": (_pair(mean_of), mean, _mean(x, every)),
            "quantiles": (stacked(map(_pair, alike)), quantiles, stacked(ranks)),
            "counts": (_pair(counts), NUM_SAMPLES * share, (NUM_SAMPLES * own, spread)),
        }
        for name, leaf, truth, plain in (
            ("means of groups", "means", means, _mean),
            ("medians of groups", "quantiles", medians, _order_statistics),
        ):
            pair = tuple(y[leaf].reshape(num_groups) for y in _pair(parts))
            found[name] = pair, truth, jax.vmap(partial(plain, x))(is_of)
        return {name: _beside(*one) for name, one in found.items()}

    return at_random


def _shares(ranked: jax.Array, edges: jax.Array) -> jax.Array:
    up_to = jnp.searchsorted(ranked, edges, side="right").astype("float32")
    return jnp.diff(up_to / len(ranked), prepend=0.0, append=1.0)


def _mean(x: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    size = jnp.sum(mask, dtype="float32")
    mean = jnp.sum(x, where=mask) / size
    return mean, jnp.sqrt(jnp.sum((x - mean) ** 2, where=mask) / (size - 1) / size)


def _order_statistics(x: jax.Array, mask: jax.Array, quantile: float = 0.5):
    """Returns the middle of an interval, and the standard error of its width."""
    size = jnp.sum(mask, dtype="float32")
    ranked = jnp.sort(jnp.where(mask, x, jnp.inf))
    spread = Z * jnp.sqrt(size * quantile * (1 - quantile))
    low = jnp.maximum(jnp.floor(size * quantile - spread), 0).astype("int32")
    high = jnp.minimum(jnp.ceil(size * quantile + spread), size - 1).astype("int32")
    return (ranked[low] + ranked[high]) / 2, (ranked[high] - ranked[low]) / (2 * Z)


def _pair(solution: solvers.Solution) -> tuple[Any, Any]:
    return solution.params, solution.standard_errors


def _beside(found, truth: Any, plain) -> Intervals:
    truth, private = jnp.asarray(truth, "float32"), found[0].astype("float32")
    parts = private - truth, found[1], plain[0] - truth, plain[1]
    return jax.tree.map(jnp.atleast_1d, parts)


def cell(num_runs: int, at_once: int, place: Place) -> Found:
    """Returns how often the intervals of a column held, a row for each statistic."""
    column, epsilon, _ = place
    of_one = intervals_of(*population(*column.split(", ")), epsilon)
    found = repeated(of_one, num_runs, at_once)
    return {(column, epsilon, name): _row(*found[name]) for name in STATISTICS}, {}


def _row(errors, found, plain_errors, plain) -> dict[str, Any]:
    is_finite = np.isfinite(found)
    # A hair beyond the ends counts as inside: truths that are ends of bins are rounded.
    is_held = is_finite & (np.abs(errors) <= Z * found * (1 + 1e-6))
    is_plain = np.abs(plain_errors) <= Z * plain * (1 + 1e-6) + 1e-6 * np.abs(plain)
    has_width = is_finite & (plain > 0)
    ratios = found[has_width] / plain[has_width]
    counts = {"finite": is_finite, "held": is_held, "plain": is_plain}
    width = round(float(np.median(ratios)), 3) if ratios.size else None
    row = {name: x.sum(0).tolist() for name, x in counts.items()}
    return {"repetitions": len(errors), **row, "width": width}


def table(rows: dict[Place, Row]) -> str:
    """Returns the table of what is recorded; empty where nothing is."""
    header = ["column", "epsilon", "statistic", "held", "worst", "width", "refused"]
    header += ["held without privacy", "worst without"]
    lines = []
    for (column, epsilon, _), name in product(places(), STATISTICS):
        if (row := rows.get((column, epsilon, name))) is None:
            continue
        number, finite = row["repetitions"], np.array(row["finite"])
        held, plain = np.array(row["held"]), np.array(row["plain"]) / number
        enough = finite >= number / 4
        cells: list[float | None] = [None, None]
        if enough.any():
            held, total = held[enough], finite[enough]
            cells = [float(np.sum(held) / np.sum(total)), (held / total).min()]
        cells += [row["width"], 1 - float(np.mean(finite)) / number]
        cells += [float(np.mean(plain)), float(np.min(plain))]
        lines.append([column, epsilon, name, *cells])
    title = "## Real data as populations\n\n"
    return title + page.table(header, lines) if lines else ""
