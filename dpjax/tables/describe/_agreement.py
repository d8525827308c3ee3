"""Makes noisy counts of one table agree: possible numbers, and rows of them."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from dpjax.tables.describe._columns import Groups, Statistics
from dpjax.tables.describe._description import Row

_LEAST_COUNT = 4.0  # stddevs of a noisy number, below which no share is known


def sizes_of(
    groups: Groups, releases: Sequence[Statistics], own: Statistics | None
) -> np.ndarray:
    """Returns one number of records for each group, integers of shape (G,).

    It is the mean of what the columns say, each by its inverse variance, such that all
    groups have the public number of records together, or at most that of places.

    Args:
        groups: of the records.
        releases: the columns that have these groups.
        own: the column that names them, if there is one.
    """
    counts = [(release.sizes, release.size_variance) for release in releases]
    if own is not None:
        counts.append((own.cells[:, 0], own.stddev**2))
    weights = [1 / (variance + 1 / 12) for _, variance in counts]
    values = np.array([value for value, _ in counts], float)
    mean = np.average(values, axis=0, weights=weights)
    most = len(groups.codes)
    if groups.num_records is not None or np.sum(np.maximum(mean, 0.0)) > most:
        return divided(mean, most)
    return np.rint(np.maximum(mean, 0.0)).astype(int)


def divided(counts: np.ndarray, total: int) -> np.ndarray:
    """Returns the nearest counts that are not negative and have a sum, as integers.

    Args:
        counts: noisy, shape (k,).
        total: the sum.

    Example:
        >>> divided(np.array([60, 44, -20]), 100)
        array([58, 42,  0])

    Reference:
        Wang, Lopuhaa-Zwakenberg, Li, Skoric, Li (2020), "Locally differentially private
        frequency estimation with consistency", Norm-Sub.
    """
    ordered = np.sort(counts.astype(float))[::-1]
    taken_off = (np.cumsum(ordered) - total) / np.arange(1, len(ordered) + 1)
    excess = taken_off[np.nonzero(ordered >= taken_off)[0][-1]]
    exact = np.maximum(counts - excess, 0.0)
    down = np.floor(exact).astype(int)
    num_up = total - int(np.sum(down))
    order = np.argsort(down - exact, kind="stable")
    down[order[: max(num_up, 0)]] += 1
    return down


def rows_of(
    name: str,
    release: Statistics,
    groups: Groups,
    sizes: np.ndarray,
    z: float,
    scale: float,
    *,
    cells: np.ndarray | None = None,
) -> Iterator[Row]:
    """Yields the rows of a column, by groups.

    A number and the ends of its interval are possible ones. An interval is about what
    was released, moved to the nearest possible number, which is no farther from the
    truth, and holds the number that agrees with the others.

    Args:
        name: of the column.
        release: its releases.
        groups: of the records.
        sizes: of groups, from `sizes_of`.
        z: how many standard errors an interval has on either side.
        scale: of the counts of a sample.
        cells: of a single group, where they have been found.
    """
    most = len(groups.codes)
    shares, share_errors = _shares(release, groups.num_records)
    for group, (group_name, size) in enumerate(zip(groups.names, sizes, strict=True)):
        known, missing = release.divided(group, int(size))
        own = release.cells[: len(release.labels), group]
        agreed = divided(own, known) if cells is None else cells

        def row(
            statistic: str,
            of: str,
            value: float,
            about: float,
            error: float,
            within: tuple[float, float],
            times: float = 1.0,
            at: str = group_name,
        ) -> Row:
            about, value = np.clip(np.array([about, value], float), *within)
            reach = z * float(error)
            low, high = np.clip([about - reach, about + reach], *within)
            numbers = times * np.array([value, min(low, value), max(high, value)])
            return Row(name, at, statistic, of, *numbers.tolist())

        in_table = (0, most), scale
        if release.counted is not None:
            counts, errors, _ = release.counted
            yield row("count", "", known, counts[group], errors[group], *in_table)
            about = release.cells[-1, group], release.errors[-1, group]
            yield row("missing", "", missing, *about, *in_table)
        for statistic, values, errors in release.statistics:
            about = values[group], errors[group]
            yield row(statistic, "", values[group], *about, release.within)
        for index, (of, count) in enumerate(zip(release.labels, agreed, strict=True)):
            about = release.cells[index, group], release.errors[index, group]
            statistic = "count" if release.counted is None else "histogram"
            yield row(statistic, of, count, *about, *in_table)
            if release.counted is None:
                share = count / known if known else 1 / len(own)
                about = shares[index, group], share_errors[index, group]
                yield row("share", of, share, *about, (0, 1))


def _shares(
    release: Statistics, num_records: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns shares of counts (k, G) in their groups, and their standard errors.

    If the number of records N is not public, it is the sum of the counts. The noise of
    a share p = c / N then has variance ((1 - p)^2 + (k - 1) p^2) stddev^2 / N^2.
    """
    counts, stddev = release.cells, release.stddev
    if num_records is not None:
        return counts / num_records, release.errors / num_records
    k = len(counts)
    total = np.sum(counts, axis=0, dtype=float)
    known = np.maximum(total, 1.0)
    shares = np.clip(counts / known, 0.0, 1.0)
    noise = ((1 - shares) ** 2 + (k - 1) * shares**2) * (stddev**2 + 1 / 12) / known**2
    sampling = shares * (1 - shares) / known
    is_seen = total > _LEAST_COUNT * stddev * math.sqrt(k)
    return shares, np.where(is_seen, np.sqrt(noise + sampling), np.inf)
