"""Coefficients in a user's units, with standard errors, intervals, and a table."""

import math
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpjax._rounding import digits
from dpjax.tables._pages import Rows, Text, html_blocks
from dpjax.tables.io._untrusted import printable


def units_matrix(centers: ArrayLike, scales: ArrayLike) -> np.ndarray:
    """Returns the matrix that turns weights of (x - center) / scale into weights of x.

    So coefficients of scaled features get the user's units. For d - 1 centers and
    scales it has shape (d, d): the last weight is the intercept.
    """
    inverses = 1 / np.append(np.asarray(scales, np.float64), 1.0)
    matrix = np.diag(inverses)
    matrix[-1, :-1] = -np.asarray(centers, np.float64) * inverses[:-1]
    return matrix


def errors_of_sums(
    matrix: np.ndarray, errors: ArrayLike, correlations: ArrayLike
) -> np.ndarray:
    """Returns standard errors (m,) of weighted sums of d estimates.

    The sums are, for example, coefficients in other units. `matrix` (m, d) has weights
    of the estimates, which have standard errors `errors` (d,) and correlations (d, d).
    A sum has an infinite error if an estimate with a nonzero weight has.
    """
    errors = np.asarray(errors, np.float64)
    is_known = np.isfinite(errors)
    parts = matrix * np.where(is_known, errors, 0.0)
    variances = np.sum(parts @ np.asarray(correlations, np.float64) * parts, axis=1)
    is_hidden = np.any((matrix != 0) & ~is_known, axis=1) | ~(variances > 0)
    return np.where(is_hidden, np.inf, np.sqrt(np.where(is_hidden, 1.0, variances)))


def noise_shares(
    matrix: np.ndarray,
    errors: tuple[ArrayLike, ArrayLike],
    of_noise: tuple[ArrayLike, ArrayLike],
) -> np.ndarray:
    """Returns the part of each sum's squared error that noise makes, (m,).

    `errors` and `of_noise` are standard errors and correlations of the estimates, as
    for `errors_of_sums`, of all errors and of those by noise alone. The part is NaN
    where the error is infinite.
    """
    by_noise, all_errors = (errors_of_sums(matrix, *x) for x in (of_noise, errors))
    with np.errstate(invalid="ignore"):  # of two infinities
        return np.minimum((by_noise / all_errors) ** 2, 1.0)


def interval_of(values: ArrayLike, errors: ArrayLike, level: float) -> np.ndarray:
    """Returns lower and upper ends (2, m) of normal confidence intervals of estimates.

    The m estimates are `values`, with standard errors `errors`; `level` is the
    probability, in (0, 1), of each interval.
    """
    values, errors = np.asarray(values, np.float64), np.asarray(errors, np.float64)
    half = statistics.NormalDist().inv_cdf(0.5 + level / 2) * errors
    return np.stack([values - half, values + half])


@dataclass(frozen=True, eq=False)
class Summary:
    """A table of coefficients, which prints as text and shows as HTML in a notebook."""

    # Everything in it is released or public.
    title: str
    names: Sequence[str]  # an intercept comes last
    coefficients: np.ndarray  # (m,), in the user's units
    standard_errors: np.ndarray  # (m,), infinite if no valid interval is finite
    guarantee: str  # the guarantee of the whole table, in words
    factor: str | None = None  # the name of exponentials of coefficients, if any
    level: float = 0.95  # the probability of each interval
    notes: Sequence[str] = ()  # more sentences
    # (m,): the parts of squared errors, or widths, that noise makes; NaN if infinite.
    noise_shares: np.ndarray | None = None

    @property
    def intervals(self) -> np.ndarray:
        """The ends of each interval, shape (m, 2)."""
        return interval_of(self.coefficients, self.standard_errors, self.level).T

    @property
    def header(self) -> list[str]:
        """The titles of the columns."""
        interval = f"{100 * self.level:g}% interval"
        titles = ["coefficient", "standard error", interval]
        if self.factor is not None:
            titles += [self.factor, interval]
        return titles if self.noise_shares is None else [*titles, "by noise"]

    @property
    def lines(self) -> list[list[str]]:
        """The name of each coefficient, and its numbers in the order of `header`."""
        lines = []
        numbers = self.names, self.coefficients, self.standard_errors, self.intervals
        for name, value, error, ends in zip(*numbers, strict=True):
            interval = " to ".join(map(digits, ends))
            line = [str(name), digits(value), digits(error), interval]
            if self.factor is not None:
                line += [_factor(value), " to ".join(map(_factor, ends))]
            lines.append(line)
        if self.noise_shares is not None:
            for line, share in zip(lines, self.noise_shares, strict=True):
                line.append("" if math.isnan(share) else f"{share:.0%}")
        return lines

    @property
    def sentences(self) -> list[str]:
        """Sentences below the table: on intervals, why some are infinite, and notes."""
        is_refused = np.isinf(self.standard_errors)
        notes = [
            "An interval is for the coefficient of the best predictor of this kind in "
            "the population. It counts the sampling of records and the noise of "
            "everything that was released."
        ]
        if self.noise_shares is not None and not np.all(is_refused):
            notes[0] += ' "By noise" is the noise\'s part of the squared width.'
        if np.all(is_refused):
            notes.append(
                "No interval is finite: the records are too few for this budget, their "
                "tails are too heavy, or the noise hides how the columns vary."
            )
        elif np.any(is_refused):
            names = [str(x) for x, y in zip(self.names, is_refused, strict=True) if y]
            notes.append(
                f"No honest interval can be had for {', '.join(names)}: the "
                "noise hides what is a column's own. It may be nearly constant, rarely "
                "anything but zero, or nearly a sum of others."
            )
            if is_refused[-1] and self.names[-1] == "intercept":
                notes.append(
                    "The intercept is where all columns are zero, so that it is known "
                    "no better than they are."
                )
        return [*notes, *self.notes]

    def __str__(self) -> str:
        """Returns the coefficients as text, with `sentences` and the guarantee."""
        lines = [[printable(name), *row] for name, *row in self.lines]
        cells = [["", *self.header], *lines]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join([name.ljust(widths[0]), *map(str.rjust, row, widths[1:])])
            for name, *row in cells
        ]
        rule = "-" * len(lines[0])
        texts = (
            part
            for text in (*self.sentences, self.guarantee)
            for part in textwrap.wrap(text, max(len(rule), 80))
        )
        return "\n".join([self.title, rule, lines[0], rule, *lines[1:], rule, *texts])

    def _repr_html_(self) -> str:
        table = Rows(["", *self.header], self.lines)
        texts = map(Text, (*self.sentences, self.guarantee))
        return html_blocks([Text(self.title), table, *texts])


def _factor(logarithm: float) -> str:
    """Returns exp(`logarithm`) as text for `rows`, with digits that differ from 1."""
    if not 1e-12 < abs(logarithm) < 1e-2:
        return digits(math.exp(logarithm) if logarithm < 700 else math.inf)
    places = 2 - math.floor(math.log10(abs(logarithm)))
    return str(np.format_float_positional(math.exp(logarithm), places, trim="-"))
