"""Statistics that distinguish the releases of two data sets, fitted to examples.

Releases are rows of numbers. By Neyman and Pearson the best attack thresholds the log
ratio of both densities; each statistic here is the log ratio of a simple model.
"""

from collections.abc import Callable

import numpy as np

Score = Callable[[np.ndarray], np.ndarray]  # rows (n, d) -> (n,), high: the neighbor

# A discriminant of this many coordinates needs a few times as many examples.
_MAX_COORDINATES = 256

# Edges of histograms: quantiles, finer towards the ends.
_TAILS = 2.0 ** -np.arange(6, 13)
_QUANTILES = np.concatenate([_TAILS, np.arange(1, 32) / 32, 1 - _TAILS])


def learn_statistics(data: np.ndarray, neighbor: np.ndarray) -> list[Score]:
    """Returns functions that score rows: high where they look like the neighbor's.

    Args:
        data: rows (n, d) released of the data.
        neighbor: rows (n, d) released of the neighbor.
    """
    data, neighbor = _finite(data), _finite(neighbor)
    log_ratios = [_histogram(x, y) for x, y in zip(data.T, neighbor.T, strict=True)]
    # The coordinates that differ most come first; those that differ only by chance
    # would add noise.
    order = np.argsort([-z for z, _ in log_ratios], kind="stable")[:_MAX_COORDINATES]
    informative = [i for i in order if log_ratios[i][0] > 4.0] or [order[0]]

    def marginals(rows: np.ndarray) -> np.ndarray:
        rows = _finite(rows)
        return np.sum([log_ratios[i][1](rows[:, i]) for i in informative], axis=0)

    statistics = [marginals, _discriminant(data, neighbor, order)]
    return statistics + _counts(data, neighbor)


def _histogram(data: np.ndarray, neighbor: np.ndarray) -> tuple[float, Score]:
    """Returns a z-score of the difference in one coordinate, and its log ratio."""
    edges = np.unique(
        np.quantile(np.concatenate([data, neighbor]), _QUANTILES, method="inverted_cdf")
    )

    def cells(x: np.ndarray) -> np.ndarray:
        # Even between edges, odd on an edge: an atom has its own cell.
        return np.searchsorted(edges, x, "left") + np.searchsorted(edges, x, "right")

    counts = [
        np.bincount(cells(x), minlength=2 * len(edges) + 1) for x in (data, neighbor)
    ]
    log_ratio = np.log((counts[1] + 0.5) / (counts[0] + 0.5))
    total = counts[0] + counts[1]
    used = total > 0
    chi_square = np.sum((counts[1] - counts[0])[used] ** 2 / total[used])
    num_free = used.sum() - 1
    z_score = (chi_square - num_free) / np.sqrt(2 * max(num_free, 1))
    return float(z_score), lambda x: log_ratio[cells(x)]


def _discriminant(data: np.ndarray, neighbor: np.ndarray, order: np.ndarray) -> Score:
    """Returns the log ratio of two Gaussians of one covariance, up to constants."""
    both = np.concatenate([data, neighbor])[:, order].astype(np.float64)
    # Means and covariance after clipping, because heavy tails may have none.
    low, high = np.quantile(both, [0.001, 0.999], axis=0)
    center = np.median(both, axis=0)
    scale = np.where(high > low, high - low, 1.0)
    cut = (np.clip(both, low, high) - center) / scale
    x, y = cut[: len(data)], cut[len(data) :]
    x_mean, y_mean = x.mean(axis=0), y.mean(axis=0)
    centered = np.concatenate([x - x_mean, y - y_mean])
    covariance = centered.T @ centered / len(centered)
    ridge = 1e-6 * np.trace(covariance) / len(order) + 1e-12
    covariance += ridge * np.eye(len(order))
    weights = np.linalg.solve(covariance, y_mean - x_mean)

    def score(rows: np.ndarray) -> np.ndarray:
        return (_finite(rows)[:, order].astype(np.float64) - center) / scale @ weights

    return score


def _counts(data: np.ndarray, neighbor: np.ndarray) -> list[Score]:
    """Returns the log ratio of the counts of whole rows, if rows recur."""
    both = _as_keys(np.concatenate([data, neighbor]))
    rows, cells = np.unique(both, return_inverse=True)
    if len(rows) > len(both) / 4:
        return []
    counts = [
        np.bincount(part, minlength=len(rows)) for part in np.split(cells, [len(data)])
    ]
    log_ratio = np.append(np.log((counts[1] + 0.5) / (counts[0] + 0.5)), 0.0)

    def score(new: np.ndarray) -> np.ndarray:
        keys = _as_keys(_finite(new))
        place = np.minimum(np.searchsorted(rows, keys), len(rows) - 1)
        return log_ratio[np.where(rows[place] == keys, place, len(rows))]

    return [score]


def _finite(rows: np.ndarray) -> np.ndarray:
    # A NaN is a separate outcome, below all finite ones.
    return np.nan_to_num(rows, nan=-3e38, posinf=1e38, neginf=-1e38)


def _as_keys(rows: np.ndarray) -> np.ndarray:
    """Returns one comparable scalar for each row."""
    rows = np.ascontiguousarray(rows + 0.0)  # no negative zeros
    return rows.view(f"S{rows.dtype.itemsize * rows.shape[1]}")[:, 0]
