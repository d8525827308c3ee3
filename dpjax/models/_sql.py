"""A model as one SQL expression of the columns of a table."""

import math
import sys

from dpjax import _validate
from dpjax.models._export import FARTHEST, Levels, Numbers, Parts
from dpjax.models._terms import MEANS

_ONE = "1.0e0"


def sql_file(parts: Parts) -> bytes:
    """Returns the expression, in the SQL that SQLite and DuckDB share.

    Raises:
        ValueError: If the names of two columns differ only in case.
    """
    names = [*parts.inputs]
    is_fine = len({name.casefold() for name in names}) == len(names)
    _validate.require(is_fine, "columns", names, "names that differ in any case in SQL")
    terms = [_number(parts.intercept), *map(_added, parts.columns)]
    score = "(" + "\n + ".join(terms) + ")"
    if parts.link == "logit":
        score = f"{_ONE} / ({_ONE} + EXP(-{score}))"
    elif parts.link == "log":
        score = _mean_of_log(score, names)
    if parts.exposure is not None:
        score += f"\n * {_added(parts.exposure)}"
    if (parts.center, parts.scale) != (0.0, 1.0):
        score = f"{_number(parts.center)} + {_number(parts.scale)} * {score}"
    comments = "".join(f"-- {line}\n" for line in parts.comments)
    return f"{comments}({score})\n".encode()


def _mean_of_log(score: str, names: list[str]) -> str:
    alias = "score"
    while alias in map(str.casefold, names):
        alias += "_"
    cases = "".join(
        f" WHEN {alias} {sign} {_number(math.log(mean))} THEN {_number(mean)}"
        for sign, mean in zip("<>", MEANS, strict=True)
    )
    value = f"CASE{cases} ELSE EXP({alias}) END"
    return f"(SELECT {value} FROM (SELECT {score} AS {alias}) AS scored)"


def _added(part: Numbers | Levels) -> str:
    column = _quoted(part.name, '"')
    if isinstance(part, Levels):
        cases = "".join(
            f"\n  WHEN {_quoted(text, chr(39))} THEN {_number(weight)}"
            for text, weight in part.weights.items()
        )
        return f"CASE TRIM(CAST({column} AS VARCHAR)){cases}\n  ELSE 0.0e0 END"

    def at(z: float) -> float:
        most = sys.float_info.max
        return min(max(part.center + part.scale * z, -most), most)

    start, end = part.ramps[0][0], part.ramps[-1][1]
    z = f"({column} - {_number(part.center)}) / {_number(part.scale)}"
    cases = [(start, _number(part.value(start)))] if start > -FARTHEST else []
    for low, high, rate in part.ramps:
        near = min(max(0.0, low), high)  # where digits are lost least
        moved = f"{z} - {_number(near)}" if near else z
        line = f"{_number(part.value(near))} + {_number(rate)} * ({moved})"
        cases.append((high, line))
    then = cases.pop()[1] if end == FARTHEST else _number(part.value(end))
    if cases:
        said = "".join(f"\n  WHEN {z} <= {_number(x)} THEN {y}" for x, y in cases)
        then = f"CASE{said}\n  ELSE {then} END"
    # NULL, NaN, and text in a column of numbers of SQLite, lie in no range.
    ends = f"{_number(at(-FARTHEST))} AND {_number(at(FARTHEST))}"
    other = _number(part.at_center)
    return f"CASE WHEN {column} BETWEEN {ends} THEN {then} ELSE {other} END"


def _number(value: float) -> str:
    """Returns a number that reads back as it is: with an exponent it is no decimal."""
    text = repr(float(value))
    text = text if "e" in text else f"{text}e0"
    return f"({text})" if text[0] == "-" else text


def _quoted(text: str, mark: str) -> str:
    return f"{mark}{text.replace(mark, 2 * mark)}{mark}"
