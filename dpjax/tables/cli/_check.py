"""`dpjax check`: tells the owner of a table which of its cells can be used.

No guarantee covers this output, because it is computed from the records. It is only for
somebody who may read them anyway, and is written to no file.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table as Rows

from dpjax.tables.cli._cells import (
    Cells,
    count_cells,
    count_texts,
    remarks_on_lines,
    say_to_curator,
    undecoded,
)
from dpjax.tables.cli._command_settings import CheckSettings
from dpjax.tables.cli._guesses import FILL_IN
from dpjax.tables.cli._sources import Kind, Table, declared_columns
from dpjax.tables.cli._terminal import terminal
from dpjax.tables.columns._kinds import BoundedColumn, Categorical, Numeric
from dpjax.tables.io._tables import Column, read_columns

_NEARLY_NONE = 0.01  # of the cells
_TOO_FEW_LABELS = 0.001
_FAR_IN_A_TEMPLATE = 0.25
_MOST_LABELS = 10
_TEMPLATE = Numeric(0.0, 1.0)


def check(settings: CheckSettings) -> None:
    """Prints which cells of a file can be used; writes nothing."""
    path, text_format = Path(settings.source), settings.text_format
    kinds, target = declared_columns(
        path, schema=settings.schema, target=settings.target, text_format=text_format
    )
    columns = read_columns(path, [*kinds], text_format=text_format)
    console = terminal()
    console.print(
        "NOT PRIVATE: for the eyes of the data's owner. These numbers are of the "
        "records, no guarantee covers them, and they are written nowhere.",
        style="bold red",
    )
    cells = {name: count_cells(kind, columns[name]) for name, kind in kinds.items()}
    console.print(_rows(kinds, cells, target))
    if target is None:
        console.print("No target was checked: --target names it.")
    else:
        _print_labels(console, columns[target], target, kinds[target])
    messages = [*remarks_on_lines(path, text_format)]
    messages += [*_findings(kinds, cells, target), *_remarks(kinds, cells, target)]
    for text in messages or ["Nearly every column can be used."]:
        console.print(text, soft_wrap=True)


def warn_curator(console: Console, table: Table) -> bool:
    """Prints which columns training cannot use; returns whether there are any.

    Args:
        console: the terminal of the owner of the records.
        table: the records.
    """
    schema = table.schema
    kinds: dict[str, Kind] = {**schema.columns, table.target: schema.target}
    kinds |= schema.bounded
    cells = {k: count_cells(kind, table.columns[k]) for k, kind in kinds.items()}
    findings = [*_findings(kinds, cells, table.target)]
    say_to_curator(console, [*findings, *_remarks(kinds, cells, table.target)])
    return bool(findings)


def _findings(
    kinds: Mapping[str, Kind], cells: Mapping[str, Cells], target: str | None
) -> Iterator[str]:
    """Yields a message for each column with nearly no cell that can be used."""
    numeric = [kind for kind in kinds.values() if isinstance(kind, Numeric)]
    is_template = all(kind == _TEMPLATE for kind in numeric)
    for name, kind in kinds.items():
        counts = cells[name]
        if isinstance(kind, Categorical):
            text = _of_categories(kind, counts, is_target=name == target)
        elif isinstance(kind, BoundedColumn):
            text = _of_amounts(kind, counts)
        else:
            text = _of_numbers(kind, counts, is_template=is_template)
        if text:
            yield f"{'target' if name == target else 'column'} {name!r}: {text}"


def _remarks(
    kinds: Mapping[str, Kind], cells: Mapping[str, Cells], target: str | None
) -> Iterator[str]:
    """Yields messages about single cells of columns that can be used."""
    for name, kind in kinds.items():
        counts = cells[name]
        is_listed = kind is not None and bool(kind.categories)
        gone = counts.missing + (not is_listed) * counts.unread
        least = _NEARLY_NONE * counts.total
        if name == target and least <= gone < counts.total - least:
            yield (
                f"target {name!r}: {counts.of_all(gone)} cells are missing or not "
                "read: their records have no weight."
            )
        if counts.undecoded:
            yield f"column {name!r}: {undecoded(counts)}"
        if counts.level and counts.unread > _NEARLY_NONE * counts.total:
            yield (
                f"column {name!r}: {counts.of_all(counts.unread)} cells, such as "
                f"{counts.example!r}, match none of the schema's categories, beside "
                f"{counts.level!r}, which seems to be the reference level."
            )


def _of_categories(kind: Categorical, cells: Cells, *, is_target: bool) -> str:
    share = cells.used / max(cells.total, 1)
    if is_target:
        if _TOO_FEW_LABELS < share < 1 - _TOO_FEW_LABELS:
            return ""
        return (
            f"{cells.of_all(cells.used)} cells are the schema's positive, "
            f"{kind.categories[0]!r}; it must be written as in the file."
        )
    if kind.categories == (FILL_IN,):
        return "its categories are still to be listed in the schema."
    if share > _NEARLY_NONE:
        return ""
    listed = ", ".join(map(repr, kind.categories[:5]))
    more = f", others are such as {cells.example!r}" if cells.example else ""
    return (
        f"{cells.of_all(cells.used)} cells match one of the schema's categories "
        f"({listed}){more}; categories must be written as in the file."
    )


def _of_numbers(kind: Numeric | None, cells: Cells, *, is_template: bool) -> str:
    if cells.used <= _NEARLY_NONE * cells.total:
        looks = f"; most are {cells.looks}" if cells.looks else ""
        return f"{cells.of_all(cells.used)} cells hold a number{looks}."
    far = cells.far / cells.used
    if kind is None or far <= (_FAR_IN_A_TEMPLATE if is_template else 1 - _NEARLY_NONE):
        return ""
    template = ", as in the template" if is_template else ""
    return (
        f"{cells.of_all(cells.far)} cells lie beyond five scales of the center: the "
        f"schema says center {kind.center:g} and scale {kind.scale:g}{template}. Say a "
        "usual value, and a usual distance from it."
    )


def _of_amounts(kind: BoundedColumn, cells: Cells) -> str:
    if cells.used <= _NEARLY_NONE * cells.total:
        looks = f"; most are {cells.looks}" if cells.looks else ""
        return f"{cells.of_all(cells.used)} cells hold a number from zero on{looks}."
    if cells.far <= _FAR_IN_A_TEMPLATE * cells.used:
        return ""
    count = cells.of_all(cells.far)
    return f"{count} cells lie above the schema's max, {kind.max:g}, and count as it."


def _rows(
    kinds: Mapping[str, Kind], cells: Mapping[str, Cells], target: str | None
) -> Rows:
    rows = Rows()
    rows.add_column("column", overflow="fold")
    rows.add_column("declared as", overflow="fold")
    for title in ("missing", "not read", "beyond 5 scales"):
        rows.add_column(title, justify="right")
    rows.add_column("look", overflow="fold")
    for name, kind in kinds.items():
        counts = cells[name]
        missing, unread, far = (
            _percent(count, counts.total)
            for count in (counts.missing, counts.unread, counts.far)
        )
        if kind is None:
            text, far = "number", "-"
        elif isinstance(kind, Numeric):
            text = f"{kind.center:g} by {kind.scale:g}"
        elif isinstance(kind, BoundedColumn):
            text, far = f"0 to {kind.max:g}", f"{far} above"
        elif name == target:
            text, unread, far = f"+1 is {kind.categories[0]}", "-", "-"
        else:
            text, far = ", ".join(kind.categories), "-"
        look = counts.looks
        if counts.example and name != target:
            look = f"such as {counts.example!r}"
        if counts.level and name != target:
            share = _percent(counts.reference, counts.total)
            look = ", ".join(
                filter(None, [f"reference level {counts.level!r} ({share})", look])
            )
        rows.add_row(name, text, missing, unread, far, look)
    return rows


def _print_labels(console: Console, column: Column, target: str, kind: Kind) -> None:
    if kind is None or not kind.categories:
        return
    labels = count_texts(column)
    shares = [
        f"{label!r} {_percent(count, len(column))}"
        for label, count in labels.most_common(_MOST_LABELS)
    ]
    more = len(labels) - len(shares)
    shares += [f"and {more:,} others"] if more > 0 else []
    console.print(
        f"Labels of {target}: {', '.join(shares)}. {kind.categories[0]!r} counts as +1."
    )


def _percent(count: int, total: int) -> str:
    share = 100 * count / total
    return "0%" if count == 0 else f"{share:.1f}%" if share >= 0.1 else "<0.1%"
