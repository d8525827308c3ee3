"""The ledger of a table: what all runs on it may spend, and what each has spent.

A ledger is a TOML file that people can read. Every run is entered before it releases
anything of its records, so that a run which is killed counts too. A run is refused if
it does not fit within the limit, or if its table is not that of the first run.
`dpjax.accounting.PrivacyFilter` does the accounting.

A ledger has dates without times, because the duration of a search reveals its number of
runs, which is secret.
"""

import dataclasses
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from rich.table import Table as Rows

from dpjax import _files, _validate
from dpjax._rounding import claim, rounded_down, rounded_up
from dpjax._types import NeighboringRelation
from dpjax.accounting import PrivacyFilter, PrivacyGuarantee, gaussian_epsilon
from dpjax.accounting._filter import Spending
from dpjax.tables.cli._schema import toml_text
from dpjax.tables.cli._settings import OpenLedgerSettings, ShowLedgerSettings
from dpjax.tables.cli._terminal import show_paths, terminal
from dpjax.tables.io._untrusted import number, of_type, toml_content

_FORMAT = 1
_HEAD = """\
# What the runs on one table may spend of its privacy together, and what each of them
# has spent. A command adds to it by --ledger. An entry that is removed or made smaller
# breaks the limit, whatever became of its run. The table is that of the first run:
# correct it where the same table has got another name or other columns.
"""
_RULE = "a file that dpjax ledger open has written"


@dataclass(frozen=True)
class Source:
    """Public facts that identify a table.

    Attributes:
        name: name of its file.
        num_records: number of its records, or of values of the ledger's unit.
        columns: names of its columns.
    """

    name: str
    num_records: int
    columns: tuple[str, ...]

    def check(self, path: Path, run: "Source") -> None:
        """Requires that a run uses this table.

        Raises:
            ValueError: if it does not; the error names --ledger.
        """
        for field, own, other in (
            ("the name", self.name, run.name),
            ("the number of records", self.num_records, run.num_records),
            ("the columns", sorted(self.columns), sorted(run.columns)),
        ):
            rule = f"that of one table, which has {field} {own} in {path}"
            _validate.require(own == other, "--ledger", other, rule)


@dataclass(frozen=True)
class Entry:
    """Records what a run has spent.

    Attributes:
        id: random identifier of the run.
        at: the day on which the run began, in UTC.
        method: name of the method.
        parts: each release and the part of the records that it uses, in words.
        price: the run's price in the ledger's filter.
    """

    id: str
    at: date
    method: str
    parts: tuple[str, ...]
    price: Spending


@dataclass(frozen=True)
class Ledger:
    """A limit, and the runs so far.

    Attributes:
        limit: the filter for all runs, before any of them.
        unit: the column whose values are protected, each with all its records; None:
            single records are protected.
        source: the table of the first run; None before it.
        entries: the runs.
    """

    limit: PrivacyFilter
    unit: str | None = None
    source: Source | None = None
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
        if self.source is not None:
            lines += [
                "",
                "[table]",
                f"name = {toml_text(self.source.name)}",
                f"records = {self.source.num_records}",
                f"columns = [{', '.join(map(toml_text, self.source.columns))}]",
            ]
        for entry in self.entries:
            lines += [
                "",
                "[[runs]]",
                f"id = {toml_text(entry.id)}",
                f"at = {entry.at.isoformat()}",
                f"method = {toml_text(entry.method)}",
                f"parts = [{', '.join(map(toml_text, entry.parts))}]",
                f"divergence = {entry.price.divergence!r}",
                f"delta = {entry.price.delta!r}",
            ]
        return "\n".join(lines) + "\n"


def open_new(settings: OpenLedgerSettings) -> None:
    """Writes a ledger without runs."""
    _files.check_file("LEDGER", settings.path, suffix=".toml")
    limit = PrivacyFilter(settings.epsilon, settings.delta)
    open_ledger(settings.path, limit, settings.unit)
    show_paths(terminal(), [settings.path])


def show(settings: ShowLedgerSettings) -> None:
    """Shows what is spent and what is left."""
    console, read = terminal(), read_ledger(settings.path)
    limit = read.limit
    console.print(
        f"All runs together: {claim(limit.epsilon, limit.delta)} "
        f"({limit.relation.name}, "
        f"{f'all records with one {read.unit}' if read.unit else 'one record'}), "
        "whatever was chosen by their outcomes."
    )
    if (source := read.source) is not None:
        console.print(
            f"The table: {source.name}, {source.num_records:,} "
            f"{f'values of {read.unit}' if read.unit else 'records'}, with the columns "
            f"{', '.join(source.columns)}."
        )
    rows = Rows()
    for title in ("run", "at", "released", "share of the limit"):
        rows.add_column(title, overflow="fold")
    allowed = limit.limit
    for entry in read.entries:
        shares = [x / y for x, y in zip(entry.price, allowed, strict=True) if y > 0]
        line = f"{entry.method}: {'; '.join(entry.parts)}"
        share = f"{rounded_up(100 * max(shares), 3)}%"
        rows.add_row(entry.id, entry.at.isoformat(), line, share)
    console.print(rows)
    console.print(said_spent(read))
    console.print(said_left(read.filter))


def open_ledger(path: Path, limit: PrivacyFilter, unit: str | None) -> None:
    """Writes a new ledger.

    Raises:
        ValueError: if a file exists there, perhaps one of another process.
        OSError: if it cannot be written.
    """
    with _files.locked(path):
        is_new = not os.path.lexists(path)
        _validate.require(is_new, "LEDGER", str(path), "a new file")
        _write(path, Ledger(limit, unit))


def said_left(filled: PrivacyFilter) -> str:
    """Returns a sentence on what is left, as the epsilon of one run."""
    left = filled.left
    if left.divergence <= 0:
        return "Nothing is left."
    if filled.order == math.inf:
        text = f"runs of pure epsilon = {rounded_down(left.divergence, 4)} together"
        return f"What is left affords {text}."
    epsilon = rounded_down(_epsilon_of(filled, left.divergence), 3)
    return f"What is left affords {_one_run(filled, epsilon)}."


def said_spent(read: Ledger) -> str:
    """Returns a sentence on how many runs have spent how much, and when."""
    if not read.entries:
        return "No run has spent anything."
    filled = read.filter
    days = sorted(entry.at.isoformat() for entry in read.entries)
    when = f"from {days[0]} to {days[-1]}" if days[0] < days[-1] else f"on {days[0]}"
    number = len(days)
    text = f"{number} runs {when} have spent" if number > 1 else f"1 run {when} spent"
    spent = filled.total.divergence
    if filled.order == math.inf:
        return f"{text} a pure epsilon of {rounded_up(spent, 4)} together."
    epsilon = rounded_up(_epsilon_of(filled, spent), 3)
    return f"{text} as much as {_one_run(filled, epsilon)}."


def _one_run(filled: PrivacyFilter, epsilon: str) -> str:
    return (
        "one run of Gaussian noise, as of a linear model, of about "
        f"epsilon = {epsilon} at delta = {rounded_up(filled.delta, 6)}"
    )


def _epsilon_of(filled: PrivacyFilter, divergence: float) -> float:
    """Returns the epsilon of Gaussian noise with a Renyi divergence."""
    multiplier = math.sqrt((filled.order or 2) / (2 * max(divergence, 1e-300)))
    return gaussian_epsilon(multiplier, filled.delta, sensitivity=1.0)


def read_ledger(path: Path) -> Ledger:
    """Reads a ledger.

    Raises:
        ValueError: if there is no file, or it is not a ledger.
    """
    rule = "a file; dpjax ledger open FILE --epsilon E --delta D writes one"
    _validate.require(path.is_file(), "--ledger", str(path), rule)
    try:
        content = toml_content(path)
        if content["format"] != _FORMAT:
            raise ValueError(f"its format is {content['format']}, not {_FORMAT}")
        limit = of_type(dict, "limit", content["limit"])
        unit, source = limit.get("unit"), content.get("table")
        return Ledger(
            PrivacyFilter(
                number("epsilon", limit["epsilon"]),
                number("delta", limit["delta"]),
                NeighboringRelation[limit["relation"]],
                limit["order"],
            ),
            None if unit is None else of_type(str, "unit", unit),
            None if source is None else _source(of_type(dict, "table", source)),
            tuple(map(_entry, of_type(list, "runs", content.get("runs", [])))),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as why:
        raise ValueError(
            f"--ledger must be {_RULE}, got {str(path)!r}: {why}."
        ) from None


def _source(content: Mapping[str, Any]) -> Source:
    _validate.count(records=content["records"])
    name = of_type(str, "name", content["name"])
    return Source(name, content["records"], _texts(content, "columns"))


def _entry(content: Any) -> Entry:
    of_type(dict, "runs", content)
    names = Spending._fields
    price = Spending(*(number(name, content[name]) for name in names))
    _validate.non_negative(**price._asdict())
    at = of_type(date, "at", content["at"])
    return Entry(
        id=of_type(str, "id", content["id"]),
        at=at.date() if isinstance(at, datetime) else at,
        method=of_type(str, "method", content["method"]),
        parts=_texts(content, "parts"),
        price=price,
    )


def _texts(content: Mapping[str, Any], name: str) -> tuple[str, ...]:
    texts = of_type(list, name, content[name])
    return tuple(of_type(str, name, text) for text in texts)


def check_room(path: Path, unit: str | None) -> Ledger:
    """Reads a ledger for a run that must protect the same unit.

    A guarantee for units does not imply one for records, because a replaced record may
    belong to another unit.

    Raises:
        ValueError: if it is not a ledger, or its unit is another one.
    """
    read = read_ledger(path)
    rule = f"{read.unit}, as in --ledger {path}"
    _validate.require(read.unit == unit, "--unit", unit, rule)
    return read


def charge(
    path: Path,
    parts: Mapping[str, PrivacyGuarantee],
    *,
    source: Source,
    method: str,
    unit: str | None = None,
    paid: str | None = None,
) -> Entry:
    """Adds a run to a ledger, before it releases anything; waits for other runs.

    Args:
        path: path of the ledger.
        parts: guarantees of releases from disjoint parts of the records, by name.
        source: the table of the run; that of the first run is kept in the ledger.
        method: name of the method.
        unit: the column whose values the run protects, each with all its records.
        paid: identifier of a resumed run, which may be in the ledger already and does
            not spend twice.

    Returns:
        The run's entry in the ledger.

    Raises:
        ValueError: if the run does not fit within the limit, the ledger is that of
            another table or unit, or the run is in it at another price. The ledger is
            then unchanged.
        OSError: if it cannot be written.
    """
    path = path.resolve()  # a symbolic link to the ledger is kept
    with _files.locked(path):
        read = check_room(path, unit)
        if read.source is not None:
            read.source.check(path, source)
        price = read.limit.price(*parts.values())
        for entry in read.entries:
            if entry.id == paid:
                rule = f"one where the run {paid} has its price: its table has changed"
                _validate.require(entry.price == price, "--ledger", str(path), rule)
                return entry
        filled = read.filter
        try:
            filled.spend(*parts.values())
        except ValueError as why:
            raise ValueError(f"{said_left(filled)} --ledger {path}: {why}") from None
        entry = Entry(
            id=secrets.token_hex(8),
            at=today(),
            method=method,
            parts=tuple(
                f"{name}, {claim(part.epsilon, part.delta)}"
                for name, part in parts.items()
            ),
            price=price,
        )
        entries = (*read.entries, entry)
        _write(path, dataclasses.replace(read, source=source, entries=entries))
        return entry


def today() -> date:
    """Returns the day, in UTC."""
    return datetime.now(UTC).date()


def _write(path: Path, content: Ledger) -> None:
    _files.write_whole(path, content.text().encode(), name="--ledger")
    _files.date_at(today(), path)
