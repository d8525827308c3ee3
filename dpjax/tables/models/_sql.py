"""A model as one SQL expression of the columns of a table.

Cells of any type are read as texts, as `predict` reads them: without the blanks around
them, and by value where they are numbers. SQLite and DuckDB share few functions, and
none that tests a pattern: a text is cut into its sign, its digits and the rest.
"""

import itertools
import math
import re
import sys

from dpjax import _validate
from dpjax.tables.models._export import BLANKS, FARTHEST, Levels, Numbers, Parts
from dpjax.tables.models._terms import MEANS

_ONE = "1.0e0"
_TABLE = "record"
_DIGITS = "'0123456789'"
_REALS = "'real', 'DOUBLE', 'FLOAT'"
_INTEGERS = "'integer', 'BOOLEAN', 'TINYINT', 'SMALLINT', 'INTEGER', 'BIGINT'"
# A column c#, of a place #, has the text t#, which is u# without its sign, r# after its
# first digits, f# after those of a fraction; and the digits e# of an exponent.
_STEPS = (
    "TRIM(CAST(c# AS VARCHAR), blanks) AS t#",
    "CASE WHEN SUBSTR(t#, 1, 1) IN ('+', '-') THEN SUBSTR(t#, 2) ELSE t# END AS u#",
    f"LTRIM(u#, {_DIGITS}) AS r#",
    f"CASE SUBSTR(r#, 1, 1) WHEN '.' THEN LTRIM(SUBSTR(r#, 2), {_DIGITS}) ELSE r# END"
    " AS f#",
    "CASE WHEN SUBSTR(f#, 1, 1) NOT IN ('e', 'E') THEN ''"
    " WHEN SUBSTR(f#, 2, 1) IN ('+', '-') THEN SUBSTR(f#, 3)"
    " ELSE SUBSTR(f#, 2) END AS e#",
)
_VALUE = (
    "CAST(u# AS DOUBLE) * CASE SUBSTR(t#, 1, 1) WHEN '-' THEN -1.0e0 ELSE 1.0e0 END"
)
_HAS_EXPONENT = f"(e# <> '' AND LTRIM(e#, {_DIGITS}) = '')"
_IS_NUMBER = (
    f"(f# = '' OR {_HAS_EXPONENT}) AND LENGTH(u#) - LENGTH(f#) >"
    " CASE SUBSTR(r#, 1, 1) WHEN '.' THEN 1 ELSE 0 END"
)
_OF_NUMBERS = (
    f"CASE WHEN TYPEOF(c#) IN ({_REALS}, {_INTEGERS}) THEN CAST(c# AS DOUBLE)"
    f" WHEN LOWER(t#) = 'true' THEN {_ONE} WHEN LOWER(t#) = 'false' THEN 0.0e0"
    f" WHEN {_IS_NUMBER} THEN {_VALUE} END AS x#"
)
# Among categories a whole number is k, to the last digit, and x with an exponent. Other
# texts are k: the codes 250.1 and 250.10 are two.
_HAS_INTEGER = (
    "LENGTH(r#) < LENGTH(u#) AND"
    " (SUBSTR(u#, 1, 1) <> '0' OR LENGTH(u#) = 1 + LENGTH(r#))"
)
_IS_INTEGER = f"{_HAS_INTEGER} AND r# IN ('', '.', '.0')"
_IS_WITH_EXPONENT = (
    f"{_HAS_INTEGER} AND SUBSTR(r#, 1, 1) IN ('.', 'e') AND {_HAS_EXPONENT} AND"
    " LENGTH(e#) IN (2, 3) AND LENGTH(f#) = 2 + LENGTH(e#)"
)
_INTEGER = (
    "CASE WHEN SUBSTR(t#, 1, 1) = '-' AND SUBSTR(u#, 1, 1) <> '0' THEN '-' ELSE '' END"
    " || SUBSTR(u#, 1, LENGTH(u#) - LENGTH(r#))"
)
_OF_LEVELS = (
    f"CASE WHEN TYPEOF(c#) IN ({_REALS}) THEN NULL WHEN LOWER(t#) = 'true' THEN '1'"
    f" WHEN LOWER(t#) = 'false' THEN '0' WHEN {_IS_INTEGER} THEN {_INTEGER}"
    " ELSE t# END AS k#,"
    f" CASE WHEN TYPEOF(c#) IN ({_REALS}) THEN CAST(c# AS DOUBLE)"
    f" WHEN {_IS_WITH_EXPONENT} THEN {_VALUE} END AS x#"
)


def sql_file(parts: Parts) -> bytes:
    """Returns the expression, in the SQL that SQLite and DuckDB share.

    Raises:
        ValueError: If the names of two columns differ only in case.
    """
    names = [*parts.inputs]
    is_fine = len({name.casefold() for name in names}) == len(names)
    _validate.require(is_fine, "columns", names, "names that differ in any case in SQL")
    columns = {part.name: part for part in (parts.exposure, *parts.columns) if part}
    # SQLite takes an unknown name in quotes for a text, unless its table is named.
    cells = "".join(
        f",\n  {_TABLE}.{_quoted(name, chr(34))} AS c{place}"
        for place, name in enumerate(columns)
    )
    queries = [f"SELECT {_text(BLANKS)} AS blanks{cells}"]
    of_columns = [
        [step.replace("#", str(place)) for step in _steps_of(part)]
        for place, part in enumerate(columns.values())
    ]
    for step in itertools.zip_longest(*of_columns):
        added = "".join(f",\n  {addition}" for addition in step if addition)
        queries.append(f"SELECT *{added} FROM step{len(queries) - 1}")
    places = {name: place for place, name in enumerate(columns)}
    terms = [_number(parts.intercept)]
    terms += [_added(part, places[part.name]) for part in parts.columns]
    score = "\n + ".join(terms)
    factor = _ONE
    if parts.exposure is not None:
        factor = _added(parts.exposure, places[parts.exposure.name])
    last = f"step{len(queries) - 1}"
    queries.append(f"SELECT {score} AS score, {factor} AS factor FROM {last}")
    mean = "score"
    if parts.link == "logit":
        mean = f"{_ONE} / ({_ONE} + EXP(-score))"
    elif parts.link == "log":
        cases = "".join(
            f" WHEN score {sign} {_number(math.log(mean))} THEN {_number(mean)}"
            for sign, mean in zip("<>", MEANS, strict=True)
        )
        mean = f"CASE{cases} ELSE EXP(score) END"
    center, scale = _number(parts.center), _number(parts.scale)
    value = f"{center} + {scale} * factor * ({mean})"
    comments = "".join(f"-- {line}\n" for line in parts.comments)
    # Else SQLite writes each step into the next, and computes it many times.
    steps = ",\n".join(
        f"step{place} AS MATERIALIZED ({query})" for place, query in enumerate(queries)
    )
    last = f"step{len(queries) - 1}"
    return f"{comments}(WITH {steps}\nSELECT {value} FROM {last})\n".encode()


def _steps_of(part: Numbers | Levels) -> list[str]:
    """Returns what each step adds for a column."""
    if not _is_by_value(part):
        return [_STEPS[0]]
    return [*_STEPS, _OF_NUMBERS if isinstance(part, Numbers) else _OF_LEVELS]


def _is_by_value(part: Numbers | Levels) -> bool:
    return isinstance(part, Numbers) or bool(part.numbers or part.codes)


def _added(part: Numbers | Levels, place: int) -> str:
    """Returns what a column adds to the score."""
    x = f"x{place}"
    if isinstance(part, Levels):
        return _of_category(part, place)

    def at(z: float) -> float:
        most = sys.float_info.max
        return min(max(part.center + part.scale * z, -most), most)

    start, end = part.ramps[0][0], part.ramps[-1][1]
    z = f"({x} - {_number(part.center)}) / {_number(part.scale)}"
    cases = [(start, _number(part.value(start)))] if start > -FARTHEST else []
    for low, high, rate in part.ramps:
        near = min(max(0.0, low), high)  # where digits are lost least
        moved = f"{z} - {_number(near)}" if near else z
        line = f"{_number(part.value(near))} + {_number(rate)} * ({moved})"
        cases.append((high, line))
    then = cases.pop()[1] if end == FARTHEST else _number(part.value(end))
    if cases:
        lines = "".join(
            f"\n  WHEN {z} <= {_number(end)} THEN {line}" for end, line in cases
        )
        then = f"CASE{lines}\n  ELSE {then} END"
    # NULL and NaN lie in no range.
    ends = f"{_number(at(-FARTHEST))} AND {_number(at(FARTHEST))}"
    other = _number(part.at_center)
    return f"CASE WHEN {x} BETWEEN {ends} THEN {then} ELSE {other} END"


def _of_category(part: Levels, place: int) -> str:
    is_text = f"k{place} = " if _is_by_value(part) else f"t{place} = "
    is_value = f"x{place} = "
    cases = []
    for value, weight in part.codes.items():
        typed = f"TYPEOF(c{place}) IN ({_REALS}, {_INTEGERS}) AND ("
        text = f" OR {is_text}'{int(value)}'" if value == int(value) else ""
        cases.append((f"{typed}{is_value}{_number(value)}{text})", weight))
    for text, weight in part.texts.items():
        cases.append((is_text + _text(text), weight))
    for value, weight in part.numbers.items():
        if isinstance(value, int):
            cases.append((f"{is_text}'{value}'", weight))
        if abs(value) <= sys.float_info.max and float(value) == value:
            cases.append((is_value + _number(value), weight))
    lines = "".join(f"\n  WHEN {case} THEN {_number(x)}" for case, x in cases)
    return f"CASE{lines}\n  ELSE 0.0e0 END"


def _number(value: float) -> str:
    """Returns a number that reads back as it is: with an exponent it is no decimal."""
    text = repr(float(value))
    text = text if "e" in text else f"{text}e0"
    return f"({text})" if text[0] == "-" else text


def _text(text: str) -> str:
    """Returns a literal of which no line begins with a formula of a spreadsheet."""
    return re.sub(r"([\r\n])(?=[=+@-])", r"\1' || '", _quoted(text, "'"))


def _quoted(text: str, mark: str) -> str:
    return f"{mark}{text.replace(mark, 2 * mark)}{mark}"
