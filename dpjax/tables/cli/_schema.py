"""The schema of a user's file: what is public about each column, in TOML.

    quoted = true            # if cells in quotes have line breaks (RFC 4180)

    [columns.age]            # enters as (x - center) / scale
    center = 40
    scale = 10
    limit = 4              # if numbers lie within so many scales: others are cut off

    [columns.town]           # one-hot; other values are in no category
    categories = ["Ghent", "Lier"]

    [target]                 # like a column of numbers, or, for the logistic loss,
    column = "sold"          # --target, unless that is given
    positive = "yes"         # the value that counts as +1 (others as -1)

    [exposure]               # for poisson, gamma and tweedie, whose target has a scale
    column = "years"         # alone, for an exposure of one: means are in proportion
    max = 1                  # larger ones count as this, what is no number as zero

    [weight]                 # how much a record counts, likewise
    column = "claims"
    max = 5

A column without such constants cannot be used, because to compute them from the records
costs privacy. `--private-ranges` does so for each section that is left empty.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpjax import _validate
from dpjax.tables.cli._guesses import toml_key
from dpjax.tables.cli._losses import AMOUNTS
from dpjax.tables.columns._kinds import BoundedColumn, Categorical, Numeric
from dpjax.tables.io._untrusted import toml_content
from dpjax.tables.models._terms import Link

_NUMERIC = {"center", "scale"}
_BOUNDED = {"exposure", "weight"}


@dataclass(frozen=True)
class Schema:
    """Public facts about a file.

    Attributes:
        columns: the features, by the name of their column; None for a column of numbers
            whose center and scale are to be released privately.
        target: the target: a number, or for classification the one positive category;
            None as for a column.
        target_column: the name of the target's column, if the schema has it.
        exposure: the column to which the target's mean is proportional, if any.
        weight: the column with the weights of records, if any.
    """

    columns: Mapping[str, Numeric | Categorical | None]
    target: Numeric | Categorical | None
    target_column: str | None = None
    exposure: BoundedColumn | None = None
    weight: BoundedColumn | None = None

    @property
    def bounded(self) -> dict[str, BoundedColumn]:
        """The exposure and the weight, if there are any, by their columns."""
        both = [x for x in (self.exposure, self.weight) if x is not None]
        return {x.column: x for x in both}


def read_schema(path: Path, *, link: Link | None, allows_empty: bool = False) -> Schema:
    """Reads a schema from a TOML file.

    Args:
        path: the file.
        link: link of the loss: for "logit" `[target]` needs `positive`, for "log"
            `scale`, else `center` and `scale`. None accepts each, and no target.
        allows_empty: whether a section of numbers may be empty, for `--private-ranges`.

    Raises:
        ValueError: If the file is missing or does not parse, or an entry is not of the
            form above.
    """
    _require(path.is_file(), str(path), "a file that exists")
    try:
        content = toml_content(path)
    except (ValueError, OSError) as why:
        raise ValueError(
            f"--schema must be a TOML file, got {str(path)!r}: {why}."
        ) from None
    quoted = content.pop("quoted", False)
    _require(isinstance(quoted, bool), quoted, "true, in quoted")
    if link is None:
        content.setdefault("target", {})  # nothing is predicted
    rule = "made of two sections, [columns] and [target], with [exposure] and [weight] "
    rule += f"where they are needed, in {path}"
    is_fine = set(content) - _BOUNDED == {"columns", "target"}
    _require(is_fine, sorted(content), rule)
    columns, target = content["columns"], content["target"]
    is_fine = isinstance(columns, dict) and len(columns) > 0
    _require(is_fine, columns, "at least one column long: [columns.NAME]")
    target_column = None
    if isinstance(target, dict) and "column" in target:
        target_column = target.pop("column")
        rule = "the name of a column, in column of [target]"
        _require(isinstance(target_column, str), target_column, rule)
    asked, link = link, _link_of(target) if link is None else link
    kinds = {name: _column(name, x, allows_empty) for name, x in columns.items()}
    bounded = {name: _bounded(name, content[name]) for name in _BOUNDED & set(content)}
    if link == "logit":
        kind = _positive(target)
    elif link == "log":
        kind = _amount(target, allows_empty)
        if asked == "log" and kind is not None:
            kind = for_largest(kind, bounded.get("exposure"))
    else:
        kind = _numeric("[target]", target, allows_empty)
    return Schema(kinds, kind, target_column, **bounded)


def for_largest(kind: Numeric, exposure: BoundedColumn | None) -> Numeric:
    """Returns a target declared for an exposure of one in units of the largest."""
    largest = 1.0 if exposure is None else exposure.max
    return dataclasses.replace(kind, scale=kind.scale * largest)


def _require(is_fine: bool, value: Any, rule: str) -> None:
    _validate.require(is_fine, "--schema", value, rule)


def _link_of(target: Any) -> Link:
    names = set(target) if isinstance(target, dict) else set()
    return (
        "logit" if "positive" in names else "log" if names == {"scale"} else "identity"
    )


def _column(name: str, entry: Any, allows_empty: bool) -> Numeric | Categorical | None:
    where = f"[columns.{toml_key(name)}]"
    if not isinstance(entry, dict) or set(entry) != {"categories"}:
        return _numeric(where, entry, allows_empty)
    categories = entry["categories"]
    rule = "a list of distinct texts or numbers, at least one and no nan, NaT or <NA>, "
    rule += f"in categories of {where}"
    is_list = isinstance(categories, list) and all(map(_is_category, categories))
    _require(is_list, categories, rule)
    try:
        return Categorical(tuple(map(_label, categories)))
    except ValueError:  # two are one category, or there is none
        raise ValueError(f"--schema must be {rule}, got {categories!r}.") from None


def _numeric(where: str, entry: Any, allows_empty: bool) -> Numeric | None:
    if allows_empty and entry == {}:
        return None
    is_target = where == "[target]"
    rule = "center and scale, two numbers"
    rule += f"{'' if is_target else ' (or a list, categories)'}, in {where}"
    rule += "; or empty, with --private-ranges" * (entry == {})
    is_fine = (
        isinstance(entry, dict)
        and set(entry) - (set() if is_target else {"limit"}) == _NUMERIC
        and all(map(_is_number, entry.values()))
    )
    _require(is_fine, entry, rule)
    try:
        return Numeric(**entry)
    except (ValueError, OverflowError) as why:
        raise ValueError(f"--schema, {where}: {why}") from None


def _amount(entry: Any, allows_empty: bool) -> Numeric | None:
    """Returns the scale of the target of a log link, which has no center."""
    rule = f"scale, a number, with center 0 or none, in [target], for {AMOUNTS}"
    is_fine = isinstance(entry, dict) and ("scale" in entry or entry == {})
    _require(is_fine and entry.get("center", 0) == 0, entry, rule)
    return _numeric("[target]", entry and {"center": 0} | entry, allows_empty)


def _bounded(name: str, entry: Any) -> BoundedColumn:
    rule = f"column, a name, and max, a number above zero, in [{name}]"
    is_fine = isinstance(entry, dict) and set(entry) == {"column", "max"}
    is_fine = is_fine and isinstance(entry["column"], str) and _is_number(entry["max"])
    _require(is_fine, entry, rule)
    try:
        return BoundedColumn(**entry)
    except (ValueError, OverflowError):
        raise ValueError(f"--schema must be {rule}, got {entry!r}.") from None


def _positive(entry: Any) -> Categorical:
    rule = "positive, the text or number that counts as +1, in [target]"
    is_fine = isinstance(entry, dict) and set(entry) == {"positive"}
    _require(is_fine and _is_category(entry["positive"]), entry, rule)
    return Categorical((_label(entry["positive"]),))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_category(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _label(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
