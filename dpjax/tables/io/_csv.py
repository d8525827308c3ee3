"""Reads text, or a sheet of Excel, with a header into columns of strings.

No cell changes the number of records, or the content of another record:

- The line end of the header is the line end of the whole file: LF, before which one CR
  is dropped, or CR. The other of these two characters is then part of a cell, except
  for an LF right after the header's CR.
- A line is a record. Quotes enclose a cell if they stand next to delimiters or ends of
  the line and quotes inside are doubled. Elsewhere a quote is an ordinary character.
- Missing cells of a line are empty, and surplus cells are ignored. Bytes that do not
  decode stay in their line. UTF-16 is read in code units of two bytes each.

`TextFormat.quoted` reads RFC 4180 instead, in which a line end within quotes is part of
a cell. A quote that does not close then takes the next lines with it, so the rules
above hold for tables of a CSV writer, which quotes all cells that contain a quote.

In a sheet each row is a record, as each line is in a text.
"""

import codecs
import contextlib
import gzip
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpjax._lazy import optional
from dpjax.tables.io._texts import UNDECODED, TextFormat, Texts, pl

_START = 1 << 22  # the header must end within so many bytes
_BLOCK = 1 << 22  # bytes that are read at once
_ROWS = 1 << 16  # rows of a sheet that are read at once
_LOOKED_AT = 30  # lines that are searched for a header
_DELIMITERS = ",;\t|"
_INSIDE = r'"(?:[^"]|"")*"'  # a cell in quotes
_PAIRED = '"[^"]*"'  # text in quotes; doubled quotes divide it into several matches
_LINE_END = re.compile(r"\n|\r(?=[^\n])")
_SEPARATOR = re.compile(r'"?sep=([,;\t|])"?\r?', re.IGNORECASE)
_UNPRINTED = re.compile(rf"[\0-\x08\x0b\x0c\x0e-\x1f\x7f{UNDECODED}]")
# The first bytes of files of other kinds.
_OTHER_FILES = {
    b"\x1f\x8b": "compressed by gzip: rename it, to end in .csv.gz or .tsv.gz",
    b"PK\x03\x04": "a zip archive: rename it, to end in .xlsx, if it is of Excel",
    b"\xd0\xcf\x11\xe0": "an old Excel file (.xls): save it as .xlsx, or as CSV",
    b"PAR1": "a Parquet file: rename it, to end in .parquet",
}
_TOTALS = re.compile(
    r"(grand |sub|sub-)?totals?|total[ei]s?|totaal|sum|summe|gesamt|somme|suma",
    re.IGNORECASE,
)


class Survey(NamedTuple):
    """Counts of odd lines of a file, which no guarantee covers."""

    records: int
    title: int  # lines above one that looks more like the header, else 0
    surplus: int  # records with more cells than the header has names
    one_more: int  # records with exactly one cell more
    opened: int  # cells with a quote at their start that does not close
    blank: int  # records without any text
    blank_at_end: int
    total: str  # the last record's first cell, if it is a word for a sum, else ""


def read_names(path: Path, text_format: TextFormat) -> list[str]:
    """Returns the names in the header, such as "column 3" for a third blank cell."""
    return named(_begin(path, text_format)[0])


def named(names: Iterable[str]) -> list[str]:
    """Returns names of columns in which a blank one is replaced by its place."""
    return [name or f"column {place}" for place, name in enumerate(names, 1)]


def read_chunks(
    path: Path, names: list[str], text_format: TextFormat
) -> Iterator[dict[str, Any]]:
    """Yields blocks of a file's records, as dicts from `names` to `Texts` (strings)."""
    header, delimiter, _, blocks = _begin(path, text_format)
    header = named(header)
    if missing := set(names) - set(header):
        raise ValueError(f"its columns have changed: {missing} are gone, try again")
    for records in blocks:
        cells = _cells(records, delimiter)
        yield {
            name: Texts(_column(cells, header.index(name), delimiter), text_format)
            for name in names
        }


def survey(path: Path, text_format: TextFormat) -> Survey:
    """Counts lines of a file that may be no records, to warn its owner; not private."""
    header, delimiter, _, blocks = _begin(path, text_format)
    counts, blank_at_end, last = Counter[str](), 0, ""
    for records in blocks:
        cells = _cells(records, delimiter)
        num_cells, ends = cells.list.len(), _column(cells, -1, delimiter)
        is_surplus = (num_cells > len(header)) & (ends.str.strip_chars() != "")
        texts = records.str.strip_chars(f'{delimiter} \t\r\n"')
        has_text = (texts != "").arg_true().to_list()
        counts.update(
            records=len(records),
            surplus=int(is_surplus.sum()),
            one_more=int((is_surplus & (num_cells == len(header) + 1)).sum()),
            opened=int(_opened(cells, delimiter).sum()),
            blank=len(records) - len(has_text),
        )
        blank_at_end += len(records)
        if has_text:
            blank_at_end = len(records) - 1 - has_text[-1]
            last = texts[has_text[-1]].partition(delimiter)[0].strip(' ":')
    total = last if _TOTALS.fullmatch(last) else ""
    title = _title_lines(path, text_format)
    return Survey(**counts, title=title, blank_at_end=blank_at_end, total=total)


def _title_lines(path: Path, text_format: TextFormat) -> int:
    """Returns the number of lines above one that looks more like the header, or 0.

    It has more names and no number, and most lines below it have as many cells.
    """

    def is_name(cells: list[str]) -> list[bool]:
        texts = [cell for cell in cells if cell]
        return np.isnan(Texts.of(texts, text_format).numbers).tolist()

    header, _, above, blocks = _begin(path, text_format)
    most, lines = sum(is_name(header)), [*next(blocks, [])[:_LOOKED_AT]]
    for place, line in enumerate(lines, 1):
        delimiter = _delimiter(path, line)
        row, *below = (_row(other, delimiter) for other in lines[place - 1 :])
        is_like = 2 * sum(len(other) > most for other in below) > len(below)
        names = is_name(row)
        if is_like and all(names) and len(names) > most:
            return above + place
    return 0


def _begin(
    path: Path, text_format: TextFormat
) -> tuple[list[str], str, int, Iterator[Any]]:
    """Opens a text file or sheet, and reads its header; all readers here begin so."""
    # Returns the column names ("" for blank ones), the delimiter, the number of lines
    # above the header, and an iterator of polars series with a text for each record.
    # A first line such as "sep=;" names the delimiter, and is above the header.
    if path.suffix.lower() == ".xlsx":
        lines = _rows(path, text_format.decimal)
    else:
        lines = _lines(path, text_format.encoding, is_quoted=text_format.quoted)
    block = next(lines, pl.Series([""]))
    directive = _SEPARATOR.fullmatch(block[0])
    skipped = max(text_format.skip_lines, 1 if directive else 0)
    blocks = _without_first(chain([block], lines), skipped)
    if text_format.quoted:
        blocks = _joined(blocks)
    block = next(blocks, pl.Series([""]))
    header = block[0].removesuffix("\r")
    delimiter = directive[1] if directive else _delimiter(path, header)
    names = _names(header, delimiter)
    if text_format.row_names and names:
        names = ["", *names]
    blocks = chain([block[1:]], blocks)
    return names, delimiter, skipped, _without_last(blocks, text_format.last_lines)


def _names(header: str, delimiter: str) -> list[str]:
    """Returns the column names in a header line, [] if all are empty."""
    if _UNPRINTED.search(header):
        raise ValueError(
            "its header is not text in UTF-8, or in the encoding that was given: give "
            "the file's --encoding, such as latin-1 or cp1252"
        )
    if _opened(_cells(pl.Series([header]), delimiter), delimiter).any():
        raise ValueError(
            "its header is not one line, because a quote in it does not close: "
            "--quoted reads files whose cells have line breaks"
        )
    names = _row(header, delimiter)
    return names if any(names) else []


def _row(record: str, delimiter: str) -> list[str]:
    """Returns the cells of a record without quotes or blanks around them."""
    cells = _cells(pl.Series([record]), delimiter).explode()
    return [cell.strip() for cell in _unquoted(cells, delimiter)]


def _delimiter(path: Path, header: str) -> str:
    """Returns a tab for a .tsv file or sheet, else the header's commonest delimiter."""
    is_tabbed = path.name.lower().removesuffix(".gz").endswith((".tsv", ".xlsx"))
    outside = re.sub(_PAIRED, "", header)
    return "\t" if is_tabbed else max(_DELIMITERS, key=outside.count)


def _cells(records: Any, delimiter: str) -> Any:
    """Returns a series with a list of the cells of each record, as they are written."""
    d = re.escape(delimiter)
    records = records.str.strip_suffix("\r")
    if not records.str.contains('"', literal=True).any():
        return records.str.split(delimiter)
    # A cell is in quotes, or else ends at the next delimiter.
    return (records + delimiter).str.extract_all(rf" *{_INSIDE} *{d}|[^{d}]*{d}")


def _column(cells: Any, place: int, delimiter: str) -> Any:
    return _unquoted(cells.list.get(place, null_on_oob=True).fill_null(""), delimiter)


def _unquoted(written: Any, delimiter: str) -> Any:
    """Returns cells without a delimiter at their end or quotes around them."""
    written = written.str.strip_suffix(delimiter)
    if not written.str.contains('"', literal=True).any():
        return written
    inside = written.str.extract(rf"^ *({_INSIDE}) *$").str.slice(1)
    inside = inside.str.strip_suffix('"').str.replace_all('""', '"', literal=True)
    return inside.fill_null(written)


def _opened(cells: Any, delimiter: str) -> Any:
    """Returns a flat series: which cells begin with a quote that does not close."""
    written = cells.explode().str.strip_suffix(delimiter)
    return written.str.contains('^ *"') & ~written.str.contains(rf"^ *{_INSIDE} *$")


def _rows(path: Path, decimal: str) -> Iterator[Any]:
    """Yields series of lines, the rows of an Excel file's first sheet, with tabs."""
    excel = optional("openpyxl", "an Excel file needs openpyxl", "excel")
    options = {"read_only": True, "data_only": True}
    with contextlib.ExitStack() as stack:
        # The library would leave a damaged file open.
        file = stack.enter_context(path.open("rb"))
        book = _guarded(lambda: excel.load_workbook(file, **options))
        stack.enter_context(contextlib.closing(book))
        sheet = _guarded(lambda: book.worksheets[0])
        sheet.reset_dimensions()  # those that the file states may be wrong
        rows = sheet.iter_rows(values_only=True)
        while block := _guarded(lambda: [*islice(rows, _ROWS)]):
            texts = ("\t".join(_written(x, decimal) for x in row) for row in block)
            yield pl.Series([text.rstrip("\t") for text in texts], dtype=pl.String)


def _guarded(read: Callable[[], Any]) -> Any:
    """Returns the result of a reader of Excel files; nothing that it says is shown."""
    # A warning or an error may have a cell in it.
    try:
        with warnings.catch_warnings(action="ignore"):
            return read()
    except Exception:
        raise ValueError("it is not written as Excel writes files") from None


def _written(cell: Any, decimal: str) -> str:
    """Returns a cell of a sheet as a tabbed file writes it, such as 2 for 2.0."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return repr(cell).removesuffix(".0").replace(".", decimal)
    text = str(cell).removesuffix(" 00:00:00")  # the midnight of a date
    doubled = text.replace('"', '""')
    return f'"{doubled}"' if '"' in text or "\t" in text else text


def _lines(path: Path, encoding: str | None, *, is_quoted: bool) -> Iterator[Any]:
    """Yields the decoded lines of a file in blocks, which are polars series."""
    # With `is_quoted` a line end within quotes does not decide between LF and CR.
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        start = file.read(_START)
        for begin, kind in _OTHER_FILES.items():
            if start.startswith(begin):
                raise ValueError(f"it is {kind}")
        codec = _codec(start, encoding)
        # In these encodings no other character contains the code unit of a line end. In
        # other encodings each line is decoded by itself, so that it affects no other.
        is_direct = codec in ("utf-8", "utf-16-le", "utf-16-be", "iso8859-1")
        decoder = codecs.getincrementaldecoder(codec if is_direct else "iso8859-1")
        decode = decoder("replace").decode
        text = decode(start).removeprefix("\ufeff")
        ends = _LINE_END.search(re.sub(_PAIRED, "", text) if is_quoted else text)
        end, chunk = ends[0] if ends else "\n", start
        while chunk:
            chunk = file.read(_BLOCK)
            text += decode(chunk, not chunk)
            if text and not chunk:
                text = text.removesuffix(end) + end  # the last line may lack its end
            lines, is_ended, text = text.rpartition(end)
            if is_ended and is_direct:
                yield pl.Series([lines]).str.split(end).explode()
            elif is_ended:
                decoded = [_decoded(line, codec) for line in lines.split(end)]
                yield pl.Series(decoded, dtype=pl.String)


def _codec(start: bytes, encoding: str | None) -> str:
    """Returns a file's codec, such as utf-16-le, by its first bytes and `encoding`."""
    codec = codecs.lookup(encoding or "utf-8").name
    # Without `encoding` it is UTF-16 (a mark, or zeros beside ASCII letters), or UTF-8.
    is_little = start[:2] == b"\xff\xfe" or start[1:2] == b"\0"
    is_big = start[:2] == b"\xfe\xff" or start[:1] == b"\0"
    if codec == "utf-16" or (encoding is None and (is_little or is_big)):
        return "utf-16-be" if is_big and not is_little else "utf-16-le"
    return "utf-8" if codec == "utf-8-sig" else codec


def _decoded(line: str, codec: str) -> str:
    """Decodes a line that was read as Latin-1; no byte raises an error."""
    try:
        text = line.encode("iso8859-1").decode(codec, "replace")
    except UnicodeError:  # some codecs cannot replace bytes
        return UNDECODED
    return text.encode("utf-8", "replace").decode("utf-8")


def _joined(blocks: Iterator[Any]) -> Iterator[Any]:
    """Yields series of records from series of lines; quoted cells may span lines."""
    rest = pl.Series([], dtype=pl.String)
    for lines in blocks:
        lines = pl.concat([rest, lines])
        is_open = lines.str.count_matches('"', literal=True).cum_sum() % 2 == 1
        if is_open.any():
            record = (~is_open.shift(1, fill_value=False)).cum_sum()
            frame = pl.DataFrame({"record": record, "line": lines})
            grouped = frame.group_by("record", maintain_order=True)
            lines = grouped.agg(pl.col("line").str.join("\n"))["line"]
        place = len(lines) - int(is_open[-1])
        rest = lines[place:]
        if place:
            yield lines[:place]
    if len(rest):
        yield rest


def _without_first(blocks: Iterator[Any], count: int) -> Iterator[Any]:
    for block in blocks:
        if count < len(block):
            yield block[count:]
        count = max(0, count - len(block))


def _without_last(blocks: Iterator[Any], count: int) -> Iterator[Any]:
    """Yields blocks of records (series) without the last `count`, such as totals."""
    rest = pl.Series([], dtype=pl.String)
    for block in blocks:
        block = pl.concat([rest, block])
        place = max(0, len(block) - count)
        rest = block[place:]
        yield block[:place]
