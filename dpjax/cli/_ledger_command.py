"""`dpjax ledger`: opens a ledger, or shows what is spent and what is left."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.table import Table as Rows

from dpjax import _files, _validate
from dpjax._rounding import claim, rounded_up
from dpjax.accounting import PrivacyFilter
from dpjax.cli._ledger import open_ledger, read_ledger, said_left
from dpjax.cli._options import Argument, check_each, of_privacy
from dpjax.cli._terminal import show_paths, terminal


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


def ledger(settings: LedgerSettings) -> None:
    """Opens a ledger, or shows what is spent and what is left.

    Raises:
        ValueError: if it is there and is to be opened, or is no ledger.
        OSError: if it cannot be read or written.
    """
    console, path = terminal(), settings.path
    if settings.epsilon is not None:
        _files.check_file("LEDGER", path, suffix=".toml")
        limit = PrivacyFilter(float(settings.epsilon), float(settings.delta or 0.0))
        open_ledger(path, limit, settings.unit)
        show_paths(console, [path])
        return
    read = read_ledger(path)
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
        said = f"{entry.method}: {'; '.join(entry.parts)}"
        share = f"{rounded_up(100 * max(shares), 3)}%"
        rows.add_row(entry.id, entry.at.isoformat(), said, share)
    console.print(rows)
    console.print(said_left(read.filter))
