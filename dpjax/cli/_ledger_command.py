"""`dpjax ledger`: opens a ledger, or shows what is spent and what is left."""

from rich.table import Table as Rows

from dpjax import _files
from dpjax._rounding import claim, rounded_up
from dpjax.accounting import PrivacyFilter
from dpjax.cli._command_settings import LedgerSettings
from dpjax.cli._ledger import open_ledger, read_ledger, said_left, said_spent
from dpjax.cli._terminal import show_paths, terminal


def ledger(settings: LedgerSettings) -> None:
    """Opens a ledger, or shows what is spent and what is left."""
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
    console.print(said_spent(read))
    console.print(said_left(read.filter))
