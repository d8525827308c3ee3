"""The schema of a user's file: what is public about each column, in TOML.

    quoted = true            # if cells in quotes have line breaks (RFC 4180)

    [columns.age]            # enters as (x - center) / scale
    center = 40
    scale = 10
    limit = 4                # optional; numbers beyond so many scales are clipped

    [columns.town]           # one-hot; all levels, which are compared with one of them
    categories = ["Ghent", "Lier", "Mons"]
    reference = "Ghent"      # the first by default; other texts count as it. With
                             # others = "reference" each category has a weight

    [columns.sold]           # days since the first date, up to the last
    first = "2015-01-01"
    last = "2024-12-31"
    format = "%d.%m.%Y"      # optional; by default as the dates above
    part = "year"            # or days; or without first and last month, weekday

    [target]                 # center and scale, as a column of numbers; or
    column = "sold"          # left out if --target names it
    positive = ["yes", "y"]  # or one text: this is +1, other texts are -1; or
    categories = ["a", "b"]  # two classes or more; other texts have no weight

    [exposure]               # for poisson, gamma and tweedie: the target then has only
    column = "years"         # a scale, for exposure 1; means are in proportion to it
    max = 1                  # larger exposures count as this, no number as zero

    [weight]                 # how much a record counts
    column = "claims"
    max = 5                  # as for an exposure

A column without such constants cannot be used, because computing them from the records
costs privacy. `--private-ranges` pays for this in each section that is left empty.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from dpjax import _validate
from dpjax.tables.cli._settings import AMOUNTS, CheckSettings, DescribeSettings
from dpjax.tables.columns._kinds import BoundedColumn, Categorical, Numeric, date_kind
from dpjax.tables.io._tables import column_names
from dpjax.tables.io._untrusted import number, toml_content
from dpjax.tables.models._terms import Link

FILL_IN = "FILL IN"  # the placeholder for categories that are not guessed
UNFILLED = Categorical((FILL_IN,))
Kind = Numeric | Categorical | BoundedColumn | None  # None: numbers of unknown range
_NUMERIC, _CATEGORY = {"center", "scale"}, str | int | float
_DATE = {"first", "last", "format", "part"}
_BOUNDED = {"exposure", "weight"}
# Keys that people write, and the right ones.
_MEANT = dict.fromkeys(("classes", "levels", "labels", "values"), "categories")
_MEANT |= {"mean": "center", "median": "center", "std": "scale", "sd": "scale"}


@dataclass(frozen=True)
class Schema:
    """Public facts about a file."""

    # The features; None for numbers whose center and scale are released privately.
    columns: Mapping[str, Numeric | Categorical | None]
    # A number, or for classification the positive labels, or all classes; None as for
    # a column.
    target: Numeric | Categorical | None
    target_column: str | None = None  # its name, if the schema has it
    exposure: BoundedColumn | None = None  # the target's mean is proportional to it
    weight: BoundedColumn | None = None  # the weights of records
    link: Link = "identity"  # of the losses that suit the target

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the target, or () if it is a number or a label."""
        if self.target is None or self.link != "softmax":
            return ()
        return self.target.categories

    @property
    def bounded(self) -> dict[str, BoundedColumn]:
        """The exposure and the weight, if there are any, by their columns."""
        both = [x for x in (self.exposure, self.weight) if x is not None]
        return {x.column: x for x in both}

    def kinds(self, target: str | None) -> dict[str, Kind]:
        """Returns the declaration of each column, `target` (a name) included."""
        kinds: dict[str, Kind] = {**self.columns, **self.bounded}
        return kinds | ({} if target is None else {target: self.target})


def read_schema(path: Path, *, link: Link | None, allows_empty: bool = False) -> Schema:
    """Returns the schema that a TOML file declares; raises `ValueError` if it is wrong.

    `link` is that of the loss: for "logit" `[target]` needs `positive`, for "softmax"
    `categories`, for "log" `scale`, else `center` and `scale`. None accepts any. With
    `allows_empty`, for `--private-ranges`, a section of numbers may be empty.
    """
    _require(path.is_file(), str(path), "a file that exists")
    try:
        content = toml_content(path)
    except (ValueError, OSError) as why:
        message = f"--schema must be a TOML file, got {str(path)!r}: {why}."
        raise ValueError(message) from None
    quoted = content.pop("quoted", False)
    _require(isinstance(quoted, bool), quoted, "a file with quoted = true or false")
    if link is None:
        content.setdefault("target", {})  # nothing is predicted
    rule = "made of two sections, [columns] and [target], with [exposure] and [weight] "
    rule += f"where they are needed, in {path}"
    _require(set(content) - _BOUNDED == {"columns", "target"}, sorted(content), rule)
    columns, target = content["columns"], content["target"]
    is_fine = isinstance(columns, dict) and len(columns) > 0
    _require(is_fine, columns, "a file with at least one section [columns.NAME]")
    target_column = None
    if isinstance(target, dict) and "column" in target:
        target_column = target.pop("column")
        rule = "a file with the name of a column as column in [target]"
        _require(isinstance(target_column, str), target_column, rule)
    asked = link
    if link is None:
        link = "log" if _has(target, "scale") else "identity"
        keys = target if isinstance(target, dict) else {}
        link = "softmax" if "categories" in keys else link
        link = "logit" if "positive" in keys else link
    kinds = {name: _column(name, x, allows_empty) for name, x in columns.items()}
    bounded = {name: _bounded(name, content[name]) for name in _BOUNDED & set(content)}
    if link == "logit":
        kind = _labels(target, "positive", "the text or number that counts as +1", 1)
    elif link == "softmax":
        kind = _labels(target, "categories", "a list of two classes or more", 2)
    elif link == "log":
        # The target of a log link has no center.
        rule = f"a file with scale, and center 0 or none, in [target], for {AMOUNTS}"
        is_fine = isinstance(target, dict) and ("scale" in target or target == {})
        _require(is_fine and target.get("center", 0) == 0, target, rule)
        kind = _numeric("[target]", target and {"center": 0} | target, allows_empty)
        if asked == "log" and kind is not None:
            kind = for_largest(kind, bounded.get("exposure"))
    else:
        kind = _numeric("[target]", target, allows_empty)
    return Schema(kinds, kind, target_column, **bounded, link=link)


def _labels(target: Any, name: str, meaning: str, least: int) -> Categorical:
    """Returns the labels of a target, `least` or more, which it has under `name`."""
    labels = target[name] if _has(target, name) else []
    labels = labels if isinstance(labels, list) else [labels]
    is_fine = len(labels) >= least and all(isinstance(x, _CATEGORY) for x in labels)
    rule = f"a file with {name}, {meaning}{' (or a list)' * (least == 1)}, in [target]"
    _require(is_fine, target, rule)
    try:
        return Categorical(tuple(map(_label, labels)))
    except ValueError as why:
        raise ValueError(f"--schema, [target]: {why}") from None


def for_largest(kind: Numeric, exposure: BoundedColumn | None) -> Numeric:
    """Returns a target declared for an exposure of one, scaled to the largest."""
    largest = 1.0 if exposure is None else exposure.max
    return dataclasses.replace(kind, scale=kind.scale * largest)


def declared_columns(
    settings: CheckSettings | DescribeSettings,
) -> tuple[Schema, str | None, list[str]]:
    """Reads --schema for a command that checks or describes a file, DATA.

    Returns the schema, the name of the target or None, and the names of all columns of
    the file. Raises `ValueError` if the file lacks a column of the schema.
    """
    path = Path(settings.source)
    names = column_names(path, settings.text_format)
    check_target(settings.target, names)
    declared = read_schema(settings.schema, link=None, allows_empty=True)
    return declared, check_columns(declared, settings.target, path, names), names


def check_target(target: str | None, names: list[str]) -> None:
    """Requires that the target, if it is given, is in the file."""
    is_fine = target is None or target in names
    _validate.require(is_fine, "--target", target, f"a column of {names}")


def check_columns(
    declared: Schema, target: str | None, path: Path, names: list[str]
) -> str | None:
    """Returns the target's column, from --target (`target`) or the schema, or None.

    Raises if a column is not in `names`, those in the file at `path`, or has two uses.
    """
    asked, stated, bounded = target, declared.target_column, [*declared.bounded]
    unknown = [x for x in (*declared.columns, *bounded) if x not in names]
    target = target or stated
    both = [x.column for x in (declared.exposure, declared.weight) if x]
    used = [*declared.columns, target, *both]
    twice = [name for name in both if used.count(name) > 1]
    of_file = f"about columns of {path.name} ({names})"
    as_stated = f"left out, or {stated!r}, as column in [target] of the schema says"
    no_feature = "a column that is no feature: [columns] of the schema names it"
    one_use = "a file whose columns have one use each: as a feature, target, exposure "
    for option, is_fine, value, rule in (
        ("--schema", not unknown, unknown, of_file),
        ("--schema", stated is None or stated in names, stated, of_file),
        ("--target", stated is None or asked in (None, stated), asked, as_stated),
        ("--target", target not in declared.columns, target, no_feature),
        ("--schema", not twice, twice, f"{one_use}or weight"),
    ):
        _validate.require(is_fine, option, value, rule)
    return target


def _require(is_fine: bool, value: Any, rule: str) -> None:
    for name in [*value] if isinstance(value, dict) and not is_fine else ():
        if name in _MEANT:
            rule += f"; write {_MEANT[name]} in the place of {name}"
    _validate.require(is_fine, "--schema", value, rule)


def _has(entry: Any, *names: str) -> bool:
    return isinstance(entry, dict) and set(entry) == set(names)


def _column(name: str, entry: Any, allows_empty: bool) -> Numeric | Categorical | None:
    """Returns what `entry`, of [columns.name], declares; None if empty and allowed."""
    where = f"[columns.{toml_key(name)}]"
    if isinstance(entry, dict) and _DATE & set(entry):
        return _date(where, entry)
    if not isinstance(entry, dict) or "categories" not in entry:
        return _numeric(where, entry, allows_empty)
    rule = "a file with a list of two or more levels, all distinct texts or numbers, "
    rule += "none blank, nan, NaT or <NA> (1, 1.0 and true are equal), as categories "
    rule += f"of {where}, with or without one of them as reference; or with others = "
    rule += '"reference", if the list leaves the reference out'
    levels, more = entry["categories"], entry.keys() - {"categories"}
    is_fine = isinstance(levels, list) and len(levels) > 0
    is_fine = is_fine and all(isinstance(x, _CATEGORY) for x in levels)
    is_fine = is_fine and more in (set(), {"reference"}, {"others"})
    _require(is_fine and entry.get("others", "reference") == "reference", entry, rule)
    labels = tuple(map(_label, levels))
    reference = _label(entry.get("reference", levels[0]))
    is_open = "others" in more or labels == (FILL_IN,)
    try:
        return Categorical(labels, None if is_open else reference)
    except ValueError:  # two labels are equal, or the reference is none of them
        raise ValueError(f"--schema must be {rule}, got {entry!r}.") from None


def _date(where: str, entry: Mapping[str, Any]) -> Numeric | Categorical:
    is_fine = set(entry) <= _DATE | {"reference"}
    rule = f"a file with first, last, format and part alone, of dates, in {where}"
    is_fine &= all(isinstance(x, str | date) for x in entry.values())
    _require(is_fine, entry, rule)
    try:
        return date_kind(**{name: str(x) for name, x in entry.items()})
    except ValueError as why:
        raise ValueError(f"--schema, {where}: {why}") from None


def _numeric(where: str, entry: Any, allows_empty: bool) -> Numeric | None:
    """Returns the center and scale that a section declares; None if it is empty.

    `where` is the title of the section, for errors, and `entry` its content. An empty
    one raises unless `allows_empty`: its center and scale are then released privately.
    """
    if allows_empty and entry == {}:
        return None
    is_target = where == "[target]"
    rule = "a file with center and scale, two numbers"
    rule += f"{'' if is_target else ' (or a list, categories)'}, in {where}"
    rule += "; or empty, with --private-ranges" * (entry == {})
    more = {"limit"} if not is_target else set()
    _require(isinstance(entry, dict) and set(entry) - more == _NUMERIC, entry, rule)
    try:
        return Numeric(**{name: number(name, value) for name, value in entry.items()})
    except ValueError as why:
        raise ValueError(f"--schema, {where}: {why}") from None


def _bounded(name: str, entry: Any) -> BoundedColumn:
    rule = f"a file with column, a name, and max, a number above zero, in [{name}]"
    is_fine = _has(entry, "column", "max") and isinstance(entry["column"], str)
    _require(is_fine, entry, rule)
    try:
        return BoundedColumn(entry["column"], number("max", entry["max"]))
    except ValueError:
        raise ValueError(f"--schema must be {rule}, got {entry!r}.") from None


def _label(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def toml_key(name: str) -> str:
    """Returns a name as a key in the title of a TOML section."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_text(name)


def toml_text(value: str | Sequence[str]) -> str:
    """Returns a text, or a list of texts, as TOML writes it: in quotes, as in JSON.

    TOML requires that more control characters are escaped than JSON does.
    """
    quoted = json.dumps(value, ensure_ascii=False)
    return re.sub("[\x7f-\x9f]", lambda one: f"\\u{ord(one[0]):04x}", quoted)
