"""A model as a Python file that imports nothing."""

import math

from dpjax.models._export import FARTHEST, Levels, Numbers, Parts
from dpjax.models._terms import FAR, MEANS

# A comment in the first two lines could declare another encoding: PEP 263.
_FILE = '''\
"""A model that dpjax has trained: `predict` needs no package."""

{comments}

# Of each column: center, scale, what it adds at the center, and (low, high, rate) of
# the lines of which its curve consists, in scales from the center.
NUMBERS = {numbers}
# Of each column: what a cell adds, by its text.
CATEGORIES = {categories}


def predict(record):
    """Returns the prediction for a record, a mapping from names of columns to cells."""
    score = {intercept}
    for name, line in NUMBERS.items():
        score += _added(record[name], *line)
    for name, weights in CATEGORIES.items():
        score += weights.get(_text(record[name]), 0.0)
    return {prediction}


def _added(cell, center, scale, at_center, lines):
    z = (_number(cell) - center) / scale
    if not abs(z) < {farthest}:  # missing, no number, or out of range
        z = 0.0
    return at_center + sum(
        rate * (min(max(z, low), high) - min(max(0.0, low), high))
        for low, high, rate in lines
    )


def _number(cell):
    text = _text(cell).lower() if isinstance(cell, (str, bytes)) else ""
    if text in ("true", "false"):
        return float(text == "true")
    try:
        return float(cell if set(text) <= set("0123456789+-.e") else "nan")
    except Exception:
        return float("nan")


def _text(cell):
    try:
        text = cell.decode("utf-8", "replace") if isinstance(cell, bytes) else str(cell)
    except Exception:
        text = ""
    return "" if cell is None else text.strip()
'''
_E = "2.718281828459045"


def python_file(parts: Parts) -> bytes:
    """Returns the file, whose `predict` takes a record."""
    mean = "score"
    if parts.link == "logit":
        mean = f"1.0 / (1.0 + {_E} ** min(max(-score, {-FAR}), {FAR}))"
    elif parts.link == "log":
        low, high = map(math.log, MEANS)
        mean = f"{_E} ** min(max(score, {low!r}), {high!r})"
    if parts.exposure is not None:
        name, *line = parts.exposure
        name = ascii(name)
        share = f"_added(record[{name}], {', '.join(map(repr, line))})"
        mean += f" * ({share} if {name} in record else {1 / parts.exposure.scale!r})"
    if (parts.center, parts.scale) != (0.0, 1.0):
        mean = f"{parts.center!r} + {parts.scale!r} * ({mean})"
    numbers = {p.name: tuple(p[1:]) for p in parts.columns if isinstance(p, Numbers)}
    levels = {p.name: p.weights for p in parts.columns if isinstance(p, Levels)}
    text = _FILE.format(
        numbers=_mapping(numbers),
        categories=_mapping(levels),
        intercept=repr(parts.intercept),
        prediction=mean,
        farthest=repr(FARTHEST),
        comments="\n".join(f"# {line}" for line in parts.comments),
    )
    return text.encode()


def _mapping(entries: dict) -> str:
    lines = "".join(f"    {name!a}: {value!a},\n" for name, value in entries.items())
    return f"{{\n{lines}}}" if lines else "{}"
