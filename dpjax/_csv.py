"""Reads text with a header into columns of strings, by a grammar of its own.

The readers of other packages let a stray quote swallow all records up to the next one,
or stop there: a cell would choose how many records there are. Here

- the header is the first line, so that names depend on no record;
- a record is a line, or several lines if a cell has a line break inside quotes;
- a quoted cell begins and ends next to a delimiter or at an end of its record, and
  quotes inside it are doubled (RFC 4180); any other quote is a plain character;
- a record of several lines has exactly as many cells as the header, and at most 2^20
  characters; if not, its first line is a separate record.

So text that a CSV writer has quoted is read back, and a cell affects its own record
only: neighboring tables differ in one record as it is read. Missing cells of a line
are empty, and surplus cells are ignored. Bytes that do not decode stay in their line.
In UTF-16 a line ends at the bytes of a line break, even at an odd position, so that a
stray byte moves no other line.

Polars splits and parses blocks of lines. Only lines with a quote inside a cell, or a
delimiter or line break inside quotes, are parsed one by one.
"""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

_BLOCK = 1 << 22  # bytes
_LONGEST = 1 << 20  # characters of a record of several lines
_DELIMITERS = {",": ",", ";": ";", "\t": r"\t", "|": r"\|"}  # in regular expressions


def read_names(path: Path, encoding: str | None) -> list[str]:
    """Returns the names in the header."""
    for block in _blocks(path, encoding):
        return _header(block[0]).names
    return []


def read_frames(path: Path, names: list[str], encoding: str | None) -> Iterator[Any]:
    """Yields some columns as polars frames of strings, block by block.

    Raises:
        ValueError: if a name is not in the header, or there is none.
    """
    import polars as pl

    grammar = carried = None
    places: list[int] = []
    blocks = _blocks(path, encoding)
    block = next(blocks, None)
    while block is not None:
        following = next(blocks, None)
        if grammar is None:
            grammar = _header(block[0])
            block = block[1:]
            if missing := set(names) - set(grammar.names):
                raise ValueError(f"its columns have changed: {missing} are not there")
            places = [grammar.names.index(name) for name in names]
        if carried is not None:
            block = pl.concat([carried, block])
        frame, carried = _split(block, grammar, places, is_last=following is None)
        yield frame.rename(dict(zip(frame.columns, names, strict=True)))
        block = following
    if grammar is None:
        raise ValueError("it has no header")


class _Grammar(NamedTuple):
    """The regular expressions that split lines into cells."""

    names: list[str]
    delimiter: str
    quoted: re.Pattern[str]
    opened: re.Pattern[str]
    closed: re.Pattern[str]
    plain: re.Pattern[str]
    wrapped: str  # a line whose quotes only surround cells without a delimiter

    @classmethod
    def of(cls, delimiter: str, header: str) -> "_Grammar":
        d = _DELIMITERS[delimiter]
        inside, end = r'(?:[^"]++|"")*+', rf'" *\r?(?={d}|\Z)'
        cell = rf'(?:[^"{d}]*| *"[^"{d}]*" *)'
        grammar = cls(
            names=[],
            delimiter=delimiter,
            quoted=re.compile(rf' *"({inside}){end}'),
            opened=re.compile(rf' *"{inside}\Z'),
            closed=re.compile(rf"{inside}({end})?"),
            plain=re.compile(rf"[^{d}]*"),
            wrapped=rf"^{cell}(?:{d}{cell})*\r?$",
        )
        return grammar._replace(names=[name.strip() for name in grammar.cells(header)])

    def cells(self, record: str) -> list[str]:
        """Returns the cells of one record."""
        found, at = [], 0
        while True:
            match = self.quoted.match(record, at)
            if match is not None:
                found.append(match[1].replace('""', '"'))
            else:
                match = cast(re.Match[str], self.plain.match(record, at))
                found.append(match[0])
            if match.end() == len(record):
                return found
            at = match.end() + 1

    def scan(self, line: str, at: int) -> tuple[int, bool]:
        """Returns how many cells end in a line from a place on, and if one is open.

        Example:
            >>> _Grammar.of(",", "x").scan('1,"a ""b"", c,', 0)
            (1, True)
        """
        num_cells = 0
        while True:
            match = self.quoted.match(line, at)
            if match is None and self.opened.match(line, at):
                return num_cells, True
            match = match or cast(re.Match[str], self.plain.match(line, at))
            num_cells += 1
            if match.end() == len(line):
                return num_cells, False
            at = match.end() + 1

    def last_line(self, lines: list[str], first: int) -> int | None:
        """Returns the last line of a record, or None if it is beyond these lines."""
        num_cells, is_open = self.scan(lines[first], 0)
        last, size = first, len(lines[first])
        while is_open:
            last += 1
            if num_cells >= len(self.names) or size > _LONGEST:
                return first
            if last == len(lines):
                return None
            line = lines[last]
            size += len(line)
            match = cast(re.Match[str], self.closed.match(line))
            at = match.end()
            if match[1] is None:
                if at < len(line):  # a quote that is neither doubled nor the last
                    return first
                continue
            num_cells += 1
            if at == len(line):
                break
            more, is_open = self.scan(line, at + 1)
            num_cells += more
        is_whole = last == first or num_cells == len(self.names)
        return last if is_whole and size <= _LONGEST else first


def _header(line: str) -> _Grammar:
    """Returns the grammar that the first line implies; no other line is looked at.

    Raises:
        ValueError: if a name continues in the next line, which may be a record.
    """
    # What splits it into the most names, a comma if all do alike.
    grammars = [_Grammar.of(delimiter, line) for delimiter in _DELIMITERS]
    grammar = max(grammars, key=lambda one: len(one.names))
    if grammar.scan(line, 0)[1]:
        raise ValueError("its header is not one line: a quote in it does not close")
    return grammar


def _split(
    lines: Any, grammar: _Grammar, places: list[int], *, is_last: bool
) -> tuple[Any, Any]:
    """Returns a frame of the columns at some places, and lines for the next block."""
    import polars as pl

    carried = None
    is_quoted = lines.str.contains('"', literal=True)
    odd: list[list[str]] = []  # the cells of records that are taken apart one by one
    odd_at: list[int] = []
    kept = pl.repeat(True, len(lines), eager=True)
    if is_quoted.any():
        is_odd = is_quoted & ~lines.str.contains(grammar.wrapped)
        texts = lines.to_list() if is_odd.any() else []
        dropped, last = [], -1
        for at in is_odd.arg_true().to_list():
            if at <= last:
                continue
            found = grammar.last_line(texts, at)
            if found is None and not is_last:
                carried = lines[at:]
                dropped += range(at, len(lines))
                break
            last = at if found is None else found
            dropped += range(at, last + 1)
            record = "\n".join(texts[at : last + 1]).removesuffix("\r")
            cells = grammar.cells(record)
            odd.append([cells[p] if p < len(cells) else "" for p in places])
            odd_at.append(at)
        lines = lines.str.replace_all('"', "", literal=True)
        if dropped:
            kept = kept.scatter(dropped, False)
    rows = kept.arg_true()
    split = (
        lines.filter(kept)
        .str.strip_suffix("\r")
        .str.split_exact(grammar.delimiter, max(*places, 1))
    )
    frame = split.struct.unnest().select(
        pl.col(f"field_{place}").alias(str(index)) for index, place in enumerate(places)
    )
    if odd:
        names = frame.columns
        others = pl.DataFrame(odd, schema=dict.fromkeys(names, pl.String), orient="row")
        order = pl.concat([rows, pl.Series(odd_at, dtype=rows.dtype)]).arg_sort()
        frame = pl.concat([frame, others])[order]
    return frame, carried


def _blocks(path: Path, encoding: str | None) -> Iterator[Any]:
    """Yields blocks of lines as polars series of strings."""
    with _opened(path) as file:
        chunk = file.read(_BLOCK)
        codec, end, mark = _codec(chunk, encoding)
        rest, chunk = b"", chunk.removeprefix(mark)
        while chunk:
            head, found, rest = (rest + chunk).rpartition(end)
            if found:
                yield _decoded(head, codec, end)
            chunk = file.read(_BLOCK)
        if rest:
            yield _decoded(rest, codec, end)


def _opened(path: Path) -> IO[bytes]:
    if path.suffix.lower() == ".gz":
        return cast(IO[bytes], gzip.open(path))
    return path.open("rb")


def _codec(start: bytes, encoding: str | None) -> tuple[str, bytes, bytes]:
    """Returns the encoding of a file, its line break, and its byte order mark."""
    said = "" if encoding is None else re.sub("[-_]", "", encoding.lower())
    if said in ("", "utf8", "utf8sig", "utf16"):
        # UTF-16 by its mark, or by a zero byte beside a letter.
        is_little = start[:2] == b"\xff\xfe" or start[1:2] == b"\0"
        is_big = start[:2] == b"\xfe\xff" or (not is_little and start[:1] == b"\0")
        if said in ("", "utf16") and (is_little or is_big or said):
            said = "utf16be" if is_big else "utf16le"
    if said == "utf16le":
        return "utf-16-le", b"\n\0", b"\xff\xfe"
    if said == "utf16be":
        return "utf-16-be", b"\0\n", b"\xfe\xff"
    if said in ("", "utf8", "utf8sig"):
        return "utf-8", b"\n", b"\xef\xbb\xbf"
    return cast(str, encoding), b"\n", b""


def _decoded(content: bytes, codec: str, end: bytes) -> Any:
    """Returns lines; bytes that do not decode are U+FFFD in their own line."""
    import polars as pl

    if codec == "utf-8":  # in which no other character has the byte of a line break
        whole = pl.Series([content.decode(codec, "replace")])
        return whole.str.split("\n").explode()
    return pl.Series([_line(line, codec) for line in content.split(end)])


def _line(content: bytes, codec: str) -> str:
    try:
        text = content.decode(codec, "replace").replace("\n", " ")
    except UnicodeError:  # of a codec that cannot replace
        return "\ufffd"
    return text.encode("utf-8", "replace").decode("utf-8")
