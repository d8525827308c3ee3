"""The ledger of a table: the limit for all runs on it, and the price of each run.

A ledger is a TOML file that people can read. Every run is entered before it releases
anything of its records, so that a run which is killed counts too. A run is refused if
it does not fit within the limit, or if its table is not the first run's table.
`dpjax.accounting.PrivacyFilter` does the accounting.

A ledger has dates without times, because the duration of a search reveals its number of
runs, which is secret.
"""

import dataclasses
import math
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from dpjax import _files, _validate
from dpjax._rounding import claim, rounded_down, rounded_up
from dpjax._types import NeighboringRelation
from dpjax.accounting import PrivacyFilter, PrivacyGuarantee, gaussian_epsilon
from dpjax.accounting._filter import Spending
from dpjax.tables.cli._schema import toml_text
from dpjax.tables.cli._settings import OpenLedgerSettings, ShowLedgerSettings
from dpjax.tables.cli._terminal import show_paths, table_of, terminal
from dpjax.tables.io._csv import named
from dpjax.tables.io._untrusted import number, of_type, toml_content, well_formed

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
    """Public facts that identify a table."""

    name: str  # of the file
    num_records: int  # or values of the ledger's unit
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A run and what it has spent."""

    id: str  # random
    at: date  # the day on which the run began, in UTC
    method: str
    parts: tuple[str, ...]  # each release, with its guarantee, in words
    price: Spending  # in the ledger's filter


@dataclass(frozen=True)
class Ledger:
    """The limit of privacy loss for all runs on a table, and the runs so far."""

    limit: PrivacyFilter  # before any run has spent
    unit: str | None = None  # whose values are protected, each with all its records
    source: Source | None = None  # the table of the first run; None before it
    entries: tuple[Entry, ...] = ()

    @property
    def filter(self) -> PrivacyFilter:
        """The filter after all runs have spent."""
        spent = tuple(entry.price for entry in self.entries)
        return dataclasses.replace(self.limit, spent=spent)

    def text(self) -> str:
        """Returns this ledger as the TOML text that is written to its file."""
        limit, source = self.limit, self.source
        unit = "" if self.unit is None else f"unit = {toml_text(self.unit)}\n"
        text = (
            f"{_HEAD}format = {_FORMAT}\n\n[limit]\nepsilon = {limit.epsilon!r}\n"
            f"delta = {limit.delta!r}\nrelation = {toml_text(limit.relation.name)}\n"
            f"order = {limit.order!r}  # of the Renyi divergences below\n{unit}"
        )
        if source is not None:
            text += (
                f"\n[table]\nname = {toml_text(source.name)}\n"
                f"records = {source.num_records}\n"
                f"columns = {toml_text(source.columns)}\n"
            )
        for entry in self.entries:
            divergence, delta = entry.price
            text += (
                f"\n[[runs]]\nid = {toml_text(entry.id)}\nat = {entry.at.isoformat()}\n"
                f"method = {toml_text(entry.method)}\n"
                f"parts = {toml_text(entry.parts)}\n"
                f"divergence = {divergence!r}\ndelta = {delta!r}\n"
            )
        return text


def open_new(settings: OpenLedgerSettings) -> None:
    """Writes a ledger without runs; refuses a path that exists."""
    path, new = settings.path, PrivacyFilter(settings.epsilon, settings.delta)
    _files.check_file("LEDGER", path, suffix=".toml")
    with _files.locked(path):  # another process may have written one
        _validate.require(not os.path.lexists(path), "LEDGER", str(path), "a new file")
        _write(path, Ledger(new, settings.unit))
    show_paths(terminal(), [path])


def show(settings: ShowLedgerSettings) -> None:
    """Runs `dpjax ledger show`: prints the limit, the runs, and what is left."""
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
    lines = []
    for entry in read.entries:
        pairs = zip(entry.price, limit.limit, strict=True)
        share = rounded_up(100 * max(x / y for x, y in pairs if y > 0), 3)
        released = f"{entry.method}: {'; '.join(entry.parts)}"
        lines.append([entry.id, entry.at.isoformat(), released, f"{share}%"])
    console.print(table_of(["run", "at", "released", "share of the limit"], lines))
    console.print(_spent_sentence(read))
    console.print(left_sentence(read.filter))


def left_sentence(filled: PrivacyFilter) -> str:
    """Returns a sentence on the budget that a ledger's filter, `filled`, has left."""
    left = filled.left
    if left.divergence <= 0:
        return "Nothing is left."
    if filled.order == math.inf:
        text = f"runs of pure epsilon = {rounded_down(left.divergence, 4)} together"
        return f"What is left affords {text}."
    return f"What is left affords {_one_run(filled, left.divergence, rounded_down)}."


def _spent_sentence(read: Ledger) -> str:
    """Returns a sentence on how many runs of a ledger spent how much, and when."""
    filled, days = read.filter, sorted(entry.at.isoformat() for entry in read.entries)
    if not days:
        return "No run has spent anything."
    when = f"from {days[0]} to {days[-1]}" if days[0] < days[-1] else f"on {days[0]}"
    text = f"{len(days)} runs {when} have spent"
    if len(days) == 1:
        text = f"1 run {when} spent"
    spent = filled.total.divergence
    if filled.order == math.inf:
        return f"{text} a pure epsilon of {rounded_up(spent, 4)} together."
    return f"{text} as much as {_one_run(filled, spent, rounded_up)}."


def _one_run(
    filled: PrivacyFilter, divergence: float, rounded: Callable[[float, int], str]
) -> str:
    """Returns words such as "one run ... of about epsilon = 1.2 at delta = 1e-06".

    A ledger adds up Renyi divergences of one order, that of `filled`, but people know
    epsilon: here that of Gaussian noise with this `divergence`. `rounded` takes a
    number and the digits to leave, and rounds up or down.
    """
    # Gaussian noise has the divergence order / (2 multiplier^2).
    multiplier = math.sqrt((filled.order or 2) / (2 * max(divergence, 1e-300)))
    epsilon = gaussian_epsilon(multiplier, filled.delta, sensitivity=1.0)
    return (
        "one run of Gaussian noise, as of a linear model, of about "
        f"epsilon = {rounded(epsilon, 3)} at delta = {rounded_up(filled.delta, 6)}"
    )


def read_ledger(path: Path) -> Ledger:
    """Returns the ledger in a TOML file; raises `ValueError` if it is malformed."""
    rule = "a file; dpjax ledger open FILE --epsilon E --delta D writes one"
    _validate.require(path.is_file(), "--ledger", str(path), rule)
    errors = OSError, ValueError, KeyError, TypeError, RecursionError
    with well_formed(f"--ledger must be {_RULE}", path, errors):
        content = toml_content(path)
        if content["format"] != _FORMAT:
            rule = f"not {_FORMAT}: use the version of dpjax that wrote it"
            raise ValueError(f"its format is {content['format']!r}, {rule}")
        limit = of_type(dict, "limit", content["limit"])
        unit, source = limit.get("unit"), content.get("table")
        if source is not None:
            of_type(dict, "table", source)
            _validate.count(records=source["records"])
            name = of_type(str, "name", source["name"])
            source = Source(name, source["records"], _texts(source, "columns"))
        return Ledger(
            PrivacyFilter(
                number("epsilon", limit["epsilon"]),
                number("delta", limit["delta"]),
                NeighboringRelation[limit["relation"]],
                limit["order"],
            ),
            None if unit is None else of_type(str, "unit", unit),
            source,
            tuple(map(_entry, of_type(list, "runs", content.get("runs", [])))),
        )


def _entry(content: Any) -> Entry:
    """Returns a run's entry from its section of the TOML file; checks the types."""
    of_type(dict, "runs", content)
    price = Spending(*(number(name, content[name]) for name in Spending._fields))
    _validate.non_negative(**price._asdict())
    at = of_type(date, "at", content["at"])
    at = at.date() if isinstance(at, datetime) else at
    run, method = (of_type(str, name, content[name]) for name in ("id", "method"))
    return Entry(run, at, method, _texts(content, "parts"), price)


def _texts(content: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(of_type(str, name, x) for x in of_type(list, name, content[name]))


def check_room(path: Path, unit: str | None) -> Ledger:
    """Returns the ledger in a file; raises unless its unit is that of --unit."""
    # None: records are protected. A guarantee for units does not imply one for records,
    # because a replaced record may belong to another unit.
    read = read_ledger(path)
    rule = f"{read.unit or 'left out'}, as in --ledger {path}"
    _validate.require(read.unit == unit, "--unit", unit, rule)
    return read


def charge(
    path: Path,
    parts: Mapping[str, PrivacyGuarantee],  # of each release, by its name
    *,
    source: Source,  # identifies the table
    method: str,
    unit: str | None = None,  # the column of the unit of privacy
    paid: str | None = None,  # the id of the run's entry, if it resumes
) -> Entry:
    """Adds a run to a ledger before it releases anything; returns the run's entry.

    Waits for other runs. A resumed run, whose entry is `paid`, does not spend twice. A
    run is refused (`ValueError`), and the ledger stays unchanged, if it does not fit
    within the limit, has another table or unit, or has an entry of another price.
    """
    path = path.resolve()  # a symbolic link to the ledger is kept
    with _files.locked(path):
        read = check_room(path, unit)
        own = read.source or source
        for field, here, there in (
            ("the name", own.name, source.name),
            ("the number of records", own.num_records, source.num_records),
            # Older ledgers have blank names.
            ("the columns", *(sorted(named(x.columns)) for x in (own, source))),
        ):
            rule = f"the ledger of this table: {path} is of one with {field} {here}"
            _validate.require(here == there, "--ledger", there, rule)
        price = read.limit.price(*parts.values())
        for entry in read.entries:
            if entry.id == paid:
                rule = f"one with the price of the run {paid}, whose table has changed"
                _validate.require(entry.price == price, "--ledger", str(path), rule)
                return entry
        filled = read.filter
        try:
            filled.spend(*parts.values())
        except ValueError:
            cost = f"pure epsilon = {rounded_up(price.divergence, 4)}"
            if filled.order != math.inf:
                cost = _one_run(filled, price.divergence, rounded_up)
            why = f"{left_sentence(filled)} This run would cost {cost}."
            if price.delta > (left := filled.left.delta):
                need, rest = rounded_up(price.delta, 3), rounded_down(left, 3)
                why += f" Of delta it needs {need}, and {rest} is left."
            raise ValueError(f"{why} Lower --epsilon. --ledger {path}") from None
        stated = (f"{k}, {claim(x.epsilon, x.delta)}" for k, x in parts.items())
        entry = Entry(secrets.token_hex(8), today(), method, tuple(stated), price)
        entries = (*read.entries, entry)
        _write(path, dataclasses.replace(read, source=source, entries=entries))
        return entry


def today() -> date:
    """Returns the day, in UTC."""
    return datetime.now(UTC).date()


def _write(path: Path, content: Ledger) -> None:
    _files.write_whole(path, content.text().encode(), name="--ledger")
    _files.date_at(today(), path)
