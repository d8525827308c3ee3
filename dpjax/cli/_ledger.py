"""The ledger of a table: what all runs on it may spend, and what each has spent.

A TOML file that people can read. Every run is in it before anything of its records is
released, so that one that was killed has spent too. A run that does not fit is refused.
The accounting is `dpjax.accounting.PrivacyFilter`'s.
"""

import dataclasses
import math
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table as Rows

from dpjax import _files, _validate
from dpjax._rounding import rounded_down, rounded_up
from dpjax._types import NeighboringRelation
from dpjax.accounting import (
    PrivacyFilter,
    PrivacyGuarantee,
    Spending,
    gaussian_epsilon,
)
from dpjax.cli._guesses import toml_text
from dpjax.cli._options import Argument, check_each, of_privacy
from dpjax.cli._terminal import show_paths, terminal

_FORMAT = 1
_HEAD = """\
# What the runs on one table may spend of its privacy together, and what each of them
# has spent. dpjax train and dpjax tune add to it by --ledger. An entry that is removed
# or made smaller breaks the limit, whatever became of its run.
"""
_RULE = "a file that dpjax ledger has written"


@dataclass(frozen=True, kw_only=True)
class LedgerSettings:
    """The options of `dpjax ledger`."""

    path: Annotated[Path, Argument("LEDGER", "The ledger, a TOML file.")]
    epsilon: Annotated[
        float | None,
        of_privacy("Opens a new ledger: privacy of all runs.", _validate.positive),
    ] = None
    delta: Annotated[
        float | None,
        of_privacy(
            "Of a new ledger, well below 1 / n. 0 is for runs of pure epsilon alone.",
            lambda **given: _validate.delta(given["--delta"]),
        ),
    ] = None

    unit: Annotated[
        str | None,
        of_privacy(
            "Of a new ledger: the column that says whose a record is. Every run then "
            "needs the same --unit."
        ),
    ] = None

    def __post_init__(self):
        check_each(self)
        _validate.require(
            self.unit is None or self.epsilon is not None,
            "--unit",
            self.unit,
            "left out without --epsilon",
        )
        _validate.require(
            (self.delta is None) == (self.epsilon is None),
            "--delta",
            self.delta,
            "given with --epsilon, and left out without",
        )


@dataclass(frozen=True)
class Entry:
    """What a run has spent.

    Attributes:
        id: of the run; random.
        at: when it was to begin.
        data: the name of its file.
        method: its name.
        parts: what was released of which part of the records, in words.
        price: in the ledger's filter.
    """

    id: str
    at: datetime
    data: str
    method: str
    parts: tuple[str, ...]
    price: Spending


@dataclass(frozen=True)
class Ledger:
    """A limit, and the runs so far.

    Attributes:
        limit: for all runs, without what they have spent.
        unit: the column of which all records with one value are protected; None: each
            record alone.
        entries: the runs.
    """

    limit: PrivacyFilter
    unit: str | None = None
    entries: tuple[Entry, ...] = ()

    @property
    def filter(self) -> PrivacyFilter:
        """The filter after all runs."""
        spent = tuple(entry.price for entry in self.entries)
        return dataclasses.replace(self.limit, spent=spent)

    def text(self) -> str:
        """Returns the file's content."""
        limit = self.limit
        lines = [
            f"{_HEAD}format = {_FORMAT}",
            "",
            "[limit]",
            f"epsilon = {limit.epsilon!r}",
            f"delta = {limit.delta!r}",
            f"relation = {toml_text(limit.relation.name)}",
            f"order = {limit.order!r}  # of the Renyi divergences below",
        ]
        if self.unit is not None:
            lines.append(f"unit = {toml_text(self.unit)}")
        for entry in self.entries:
            lines += [
                "",
                "[[runs]]",
                f"id = {toml_text(entry.id)}",
                f"at = {entry.at.isoformat(timespec='seconds')}",
                f"data = {toml_text(entry.data)}",
                f"method = {toml_text(entry.method)}",
                f"parts = [{', '.join(map(toml_text, entry.parts))}]",
                f"divergence = {entry.price.divergence!r}",
                f"delta = {entry.price.delta!r}",
            ]
        return "\n".join(lines) + "\n"


def ledger(settings: LedgerSettings) -> None:
    """Opens a ledger, or shows what is spent and what is left.

    Raises:
        ValueError: if it is there and is to be opened, or is no ledger.
        OSError: if it cannot be read or written.
    """
    console, path = terminal(), settings.path
    if settings.epsilon is not None:
        _files.check_file("LEDGER", path, suffix=".toml")
        _validate.require(not path.exists(), "LEDGER", str(path), "a new file")
        limit = PrivacyFilter(float(settings.epsilon), float(settings.delta or 0.0))
        _write(path, Ledger(limit, settings.unit))
        show_paths(console, [path])
        return
    read = read_ledger(path)
    limit = read.limit
    console.print(
        f"All runs together: epsilon = {rounded_up(limit.epsilon, 6)}, delta = "
        f"{rounded_up(limit.delta, 6)} ({limit.relation.name}, "
        f"{f'all records with one {read.unit}' if read.unit else 'one record'}), "
        "whatever was chosen by their outcomes."
    )
    rows = Rows()
    for title in ("run", "at", "data", "released", "share of the limit"):
        rows.add_column(title, overflow="fold")
    allowed = limit.limit
    for entry in read.entries:
        shares = [x / y for x, y in zip(entry.price, allowed, strict=True) if y > 0]
        when = f"{entry.at:%Y-%m-%d %H:%M}"
        said = f"{entry.method}: {'; '.join(entry.parts)}"
        rows.add_row(entry.id, when, entry.data, said, f"{max(shares):.1%}")
    console.print(rows)
    console.print(_left(read.filter))


def _left(filled: PrivacyFilter) -> str:
    """Says what is left, as people think of it."""
    left = filled.left
    if left.divergence <= 0:
        return "Nothing is left."
    if filled.order == math.inf:
        said = f"runs of pure epsilon = {rounded_down(left.divergence, 4)} together"
        return f"What is left affords {said}."
    multiplier = math.sqrt((filled.order or 2) / (2 * left.divergence))
    epsilon = gaussian_epsilon(multiplier, filled.delta, sensitivity=1.0)
    return (
        "What is left affords one run of Gaussian noise, as of linear-model, of about "
        f"epsilon = {rounded_down(epsilon, 3)} at delta = {filled.delta:g}."
    )


def read_ledger(path: Path) -> Ledger:
    """Reads a ledger.

    Raises:
        ValueError: if there is none, or what is there is something else.
    """
    _validate.require(
        path.is_file(),
        "--ledger",
        str(path),
        "a file; dpjax ledger FILE --epsilon E --delta D opens one",
    )
    try:
        content = tomllib.loads(path.read_text("utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(f"its format is {content['format']}, not {_FORMAT}")
        limit = content["limit"]
        return Ledger(
            PrivacyFilter(
                limit["epsilon"],
                limit["delta"],
                NeighboringRelation[limit["relation"]],
                limit["order"],
            ),
            limit.get("unit"),
            tuple(map(_entry, content.get("runs", []))),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as why:
        raise ValueError(
            f"--ledger must be {_RULE}, got {str(path)!r}: {why}."
        ) from None


def _entry(said: Mapping[str, Any]) -> Entry:
    price = Spending(float(said["divergence"]), float(said["delta"]))
    _validate.non_negative(divergence=price.divergence, delta=price.delta)
    _validate.require(isinstance(said["at"], datetime), "at", said["at"], "a time")
    return Entry(
        id=str(said["id"]),
        at=said["at"],
        data=str(said["data"]),
        method=str(said["method"]),
        parts=tuple(map(str, said["parts"])),
        price=price,
    )


def check_room(
    path: Path, unit: str | None, parts: Sequence[PrivacyGuarantee] = ()
) -> None:
    """Requires room for a run in a ledger; without parts, for any at all.

    A run that protects a unit protects its records, but not the other way round.

    Raises:
        ValueError: if there is none, it is no ledger, or one of another unit.
    """
    read = read_ledger(path)
    filled = read.filter
    rule = f"{read.unit}, as in --ledger {path}"
    _validate.require(read.unit in (None, unit), "--unit", unit, rule)
    if not parts:
        left = filled.left.divergence
        _validate.require(
            left > 0, "--ledger", str(path), "one with something left: it is used up"
        )
        return
    try:
        filled.spend(*parts)
    except ValueError as why:
        raise ValueError(f"--ledger {path}: {why} {_left(filled)}") from None


def charge(
    path: Path,
    parts: Mapping[str, PrivacyGuarantee],
    *,
    data: str,
    method: str,
    unit: str | None = None,
    paid: str | None = None,
) -> str:
    """Adds a run to a ledger, before it releases anything; waits for other runs.

    Args:
        path: of the ledger.
        parts: what is released of disjoint parts of the records, by their names.
        data: the name of the records' file.
        method: its name.
        unit: the column of which it protects all records with one value, if any.
        paid: the run, if it may be in the ledger already: a run that goes on does not
            spend twice.

    Returns:
        The run's id in the ledger.

    Raises:
        ValueError: if there is no room; the ledger stays as it is.
        OSError: if it cannot be written.
    """
    path = path.resolve()  # a link to it stays one
    with _files.locked(path):
        read = read_ledger(path)
        price = read.limit.price(*parts.values())
        for entry in read.entries:
            if entry.id == paid and entry.price == price:
                return entry.id
        check_room(path, unit, [*parts.values()])
        entry = Entry(
            id=secrets.token_hex(8),
            at=datetime.now(UTC),
            data=data,
            method=method,
            parts=tuple(f"{name}, {_claim(part)}" for name, part in parts.items()),
            price=price,
        )
        _write(path, dataclasses.replace(read, entries=(*read.entries, entry)))
        return entry.id


def _claim(privacy: PrivacyGuarantee) -> str:
    epsilon, delta = rounded_up(privacy.epsilon, 6), rounded_up(privacy.delta, 6)
    return f"epsilon = {epsilon}, delta = {delta}"


def _write(path: Path, content: Ledger) -> None:
    _files.write_whole(path, content.text().encode(), name="--ledger")
