"""The commands for the owner of a table: `check`, and `schema`, which proposes one.

No guarantee covers counts of cells. They are only for somebody who may read the records
anyway, and are written to no file. A schema is guessed from public facts: the names of
columns, and the types that a Parquet file declares (number, text, time), but not the
categories of enumerations, which usually list what occurs in the records. With
--from-data a schema is guessed from the records too.
"""

import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from dpjax import _validate
from dpjax.tables.cli import _schema, _terminal
from dpjax.tables.cli._settings import CheckSettings, SchemaSettings, link_of
from dpjax.tables.columns import _kinds
from dpjax.tables.columns._kinds import BoundedColumn, Numeric, dates_of, labels_of
from dpjax.tables.io import _tables, _texts
from dpjax.tables.io._tables import Column, column_names, read_columns
from dpjax.tables.io._texts import UNDECODED, TextFormat, Texts, float32_of, is_mark
from dpjax.tables.io._untrusted import printable
from dpjax.tables.models._terms import Link

_FAR = 5.0  # scales from the center
_LONGEST = 30  # characters of a cell that are shown
_NEARLY_ALL = 0.9  # share of the lines
_CURRENCY = re.compile("[$€£¥]|[A-Z]{3}")
# Negative numbers: with a typographic minus, in brackets, or with a minus at the end.
_NEGATIVE = re.compile(
    "[\u2212\u2013]{0}|\\({0}\\)|{0}[-\u2212]".format(r"[\d.,' ]*\d[.,]? ?")
)
_NO_DIGITS = re.compile(r"[^\d.,' ]")
# Options, and the format of numbers that they read.
_FORMATS: dict[str, dict[str, Any]] = {
    "": {},
    "--thousands ,": {"thousands": ","},
    "--decimal ,": {"decimal": ","},
    '--thousands "\'"': {"thousands": "'"},
    '--thousands " "': {"thousands": " "},
    "--decimal , --thousands .": {"decimal": ",", "thousands": "."},
    '--decimal , --thousands " "': {"decimal": ",", "thousands": " "},
}
_NEARLY_NONE = 0.01  # share of the cells
_TOO_FEW_LABELS = 0.001
_FAR_IN_A_TEMPLATE = 0.25
_MOST_LABELS = 10


class Cells(NamedTuple):
    """Counts of a column's cells, by whether training can use them."""

    total: int
    missing: int  # cells without a value
    unread: int  # cells with a value that is no number, or is in no category
    far: int = 0  # cells over five scales from the center, or above the maximum
    looks: str = ""  # the commonest format of unread numbers, and how to read it
    example: str = ""  # the commonest value that is in no category
    reference: int = 0  # cells in no category, if these are the reference level
    undecoded: int = 0  # missing cells whose bytes do not decode

    @property
    def used(self) -> int:
        """The number of cells that hold a number, or one of the categories."""
        return self.total - self.missing - self.unread - self.reference

    def of_all(self, count: int) -> str:
        """Returns a count in words, such as "3 of 40"."""
        return f"{count:,} of {self.total:,}"


def check(settings: CheckSettings) -> None:
    """Runs `dpjax check`: prints which cells of a file can be used; not private."""
    path, text_format = Path(settings.source), settings.text_format
    about_lines = [*remarks_on_lines(path, text_format)]
    console = _terminal.terminal()
    console.print(
        "NOT PRIVATE: for the eyes of the data's owner. These numbers are of the "
        "records, no guarantee covers them, and they are written nowhere.",
        style="bold red",
    )
    for text in about_lines:
        console.print(text, soft_wrap=True)
    schema, target, _ = _schema.declared_columns(settings)
    kinds = schema.kinds(target)
    form = replace(text_format, dates=dates_of(kinds))
    columns = read_columns(path, [*kinds], text_format=form)
    cells = {name: count_cells(kind, columns[name]) for name, kind in kinds.items()}
    console.print(_rows(schema, cells, target))
    if target is None:
        console.print("No target was checked: --target names it.")
    elif labels := getattr(kinds[target], "categories", ()):
        counts = count_texts(columns[target])
        shares = [
            f"{label!r} {_percent(count, counts.total())}"
            for label, count in counts.most_common(_MOST_LABELS)
        ]
        more = len(counts) - len(shares)
        shares += [f"and {more:,} others"] if more > 0 else []
        shown = f"Labels of {target}: {', '.join(shares)}."
        if schema.link == "logit":
            shown += f" {' or '.join(map(repr, labels))} counts as +1."
        console.print(shown)
    messages = [*_findings(schema, cells, target), *_remarks(schema, cells, target)]
    for text in messages or ["Nearly every column can be used."]:
        console.print(text, soft_wrap=True)


def warn_curator(
    schema: _schema.Schema, target: str, columns: Mapping[str, Column]
) -> bool:
    """Prints which columns training cannot use; returns whether there are any.

    `target` names the column to predict, `columns` has the cells by column. Messages
    depend on the records: they go to standard error, for the data's owner, who sees a
    wrong schema before a budget is spent.
    """
    kinds = schema.kinds(target).items()
    cells = {name: count_cells(kind, columns[name]) for name, kind in kinds}
    findings = [*_findings(schema, cells, target)]
    say_to_curator([*findings, *_remarks(schema, cells, target)])
    return bool(findings)


def _findings(
    schema: _schema.Schema, cells: Mapping[str, Cells], target: str | None
) -> Iterator[str]:
    """Yields a warning for each column whose cells the schema does not fit.

    Nearly no cell can be used, or many numbers are far from the declared center. The
    counts (`cells`) are by column; `target` names the column to predict, or is None.
    The data's owner then corrects the schema.
    """
    kinds = schema.kinds(target)
    numeric = [kind for kind in kinds.values() if isinstance(kind, Numeric)]
    is_template = all(kind == Numeric() for kind in numeric)
    for name, kind in kinds.items():
        if kind is not None and kind.categories and not _kinds.is_date(kind):
            is_positive = name == target and schema.link == "logit"
            text = _unmatched(kind.categories, cells[name], is_positive=is_positive)
        else:
            text = _unread(kind, cells[name], is_template=is_template)
        if text:
            yield f"{'target' if name == target else 'column'} {name!r}: {text}"


def _remarks(
    schema: _schema.Schema, cells: Mapping[str, Cells], target: str | None
) -> Iterator[str]:
    """Yields messages on missing targets, undecodable bytes and unlisted categories.

    The data's owner sees them; the schema may still be right. Arguments are as in
    `_findings`.
    """
    for name, kind in schema.kinds(target).items():
        counts = cells[name]
        gone = counts.total - counts.used if schema.link != "logit" else counts.missing
        least = _NEARLY_NONE * counts.total
        if name == target and least <= gone < counts.total - least:
            yield (
                f"target {name!r}: {counts.of_all(gone)} cells are missing or not "
                "read: their records have no weight."
            )
        if counts.undecoded:
            yield f"column {name!r}: {undecoded(counts)}"
        reference = kind.reference if kind is not None and counts.used else None
        if reference is not None and counts.unread > least:
            yield (
                f"column {name!r}: {counts.of_all(counts.unread)} cells, such as "
                f"{counts.example!r}, match none of the schema's categories: they "
                f"count as its reference, {reference!r}. If they are a level, list it."
            )


def _unmatched(labels: tuple[str, ...], cells: Cells, *, is_positive: bool) -> str:
    """Returns a warning if too few of a column's cells have a listed category, else "".

    The schema lists the categories `labels`; `cells` has the counts. With `is_positive`
    they are positive labels: it is a warning, too, if nearly all cells have them.
    """
    share, used = cells.used / max(cells.total, 1), cells.of_all(cells.used)
    if is_positive:
        if _TOO_FEW_LABELS < share < 1 - _TOO_FEW_LABELS:
            return ""
        return (
            f"{used} cells are the schema's positive, {labels[0]!r}; it must be "
            "written as in the file."
        )
    if labels == (_schema.FILL_IN,):
        return "its categories are still to be listed in the schema."
    if share > _NEARLY_NONE:
        return ""
    more = f", others are such as {cells.example!r}" if cells.example else ""
    return (
        f"{used} cells match one of the schema's categories "
        f"({', '.join(map(repr, labels[:5]))}){more}; categories must be written as in "
        "the file."
    )


def _unread(kind: Any, cells: Cells, *, is_template: bool) -> str:
    """Returns a warning if the declaration of a column of numbers seems wrong, else "".

    It does if nearly no cell is a number, or many are far from the center that `kind`,
    the declaration, has; `cells` has the counts. With `is_template` all columns have
    center 0 and scale 1, as `dpjax schema` writes without a guess: then fewer are many.
    """
    is_amount = isinstance(kind, BoundedColumn)
    if cells.used <= _NEARLY_NONE * cells.total:
        looks = f"; most are {cells.looks}" if cells.looks else ""
        number = "a number from zero on" if is_amount else "a number"
        if form := getattr(kind, "format", ""):
            number = f"a date in the format {form}"
        return f"{cells.of_all(cells.used)} cells hold {number}{looks}."
    most = _FAR_IN_A_TEMPLATE if is_amount or is_template else 1 - _NEARLY_NONE
    if kind is None or cells.far <= most * cells.used:
        return ""
    far = cells.of_all(cells.far)
    if is_amount:
        return f"{far} cells lie above the schema's max, {kind.max:g}, and count as it."
    template = ", as in the template" if is_template else ""
    return (
        f"{far} cells lie beyond five scales of the center: the schema says center "
        f"{kind.center:g} and scale {kind.scale:g}{template}. Say a usual value, and a "
        "usual distance from it."
    )


def _rows(
    schema: _schema.Schema, cells: Mapping[str, Cells], target: str | None
) -> Table:
    """Returns the table that `check` prints; arguments are as in `_findings`."""
    # A line has a column's declaration, and shares of its cells that cannot be used.
    lines, right = [], ["missing", "not read", "beyond 5 scales"]
    for name, kind in schema.kinds(target).items():
        counts, is_positive = cells[name], name == target and schema.link == "logit"
        missing, unread, far, reference = (
            _percent(count, counts.total)
            for count in (counts.missing, counts.unread, counts.far, counts.reference)
        )
        if kind is None:
            text, far = "number", "-"
        elif isinstance(kind, Numeric):
            text = kind.text()
        elif isinstance(kind, BoundedColumn):
            text, far = f"0 to {kind.max:g}", f"{far} above"
        elif is_positive:
            text, unread, far = f"+1 is {' or '.join(kind.categories)}", "-", "-"
        else:
            text, far = ", ".join(labels_of(kind)), "-"
        look = counts.looks
        if counts.example and not is_positive:
            look = f"such as {counts.example!r}"
            name_of = "reference" if name != target else "no class"
            look = f"{name_of} ({reference}), {look}" if counts.reference else look
        lines.append([name, text, missing, unread, far, look])
    return _terminal.table_of(["column", "declared as", *right, "look"], lines, right)


def _percent(count: int, total: int) -> str:
    share = 100 * count / total
    return "0%" if count == 0 else f"{share:.1f}%" if share >= 0.1 else "<0.1%"


def count_cells(kind: _schema.Kind, column: Column) -> Cells:
    """Counts the cells of a column (n,) that are missing, not readable, or far.

    Messages to the data's owner have these counts, which no guarantee covers. `kind` is
    the schema's declaration of the column; None stands for numbers of unknown range.
    """
    is_used = (kind or Numeric()).is_read(column)
    unused = count_texts(column[np.flatnonzero(~is_used)])
    texts = {text: count for text, count in unused.items() if not is_mark(text)}
    unread = sum(texts.values())
    cells = Cells(
        len(column),
        sum(unused.values()) - unread,
        unread,
        undecoded=sum(count for text, count in unused.items() if UNDECODED in text),
    )
    if kind is not None and kind.categories:
        (example, _), *_ = Counter(texts).most_common(1) or [("", 0)]
        cells = cells._replace(example=example[:_LONGEST])
        # The reference is what is not listed, unless the list is spelled otherwise.
        is_open = kind.reference is None and cells.used > 0
        return cells._replace(unread=0, reference=unread) if is_open else cells
    if _kinds.is_date(kind):
        (example, _), *_ = Counter(texts).most_common(1) or [("", 0)]
        return cells._replace(looks=f"like {example[:_LONGEST]}" if texts else "")
    known, far = float32_of(column), 0
    if isinstance(kind, BoundedColumn):
        far = int(np.sum(known[is_used] > np.float32(kind.max)))
    elif kind is not None:
        far = int(np.sum(np.abs(known[is_used] - kind.center) > _FAR * kind.scale))
    return cells._replace(far=far, looks=_look(texts))


def count_texts(column: Column) -> Counter[str]:
    """Counts how often a column has each text."""
    if not isinstance(column, Texts):
        return Counter(map(_texts.text_of, column.tolist()))
    texts, codes = column.distinct
    counts = np.bincount(codes, minlength=len(texts)).tolist()
    return Counter(dict(zip(texts, counts, strict=True)))


def say_to_curator(texts: Iterable[str]) -> None:
    """Prints messages, if any, on standard error: no guarantee covers them."""
    for place, text in enumerate(texts):
        if place == 0:
            _terminal.warn(
                "For the curator's eyes only, outside the guarantee (computed from the "
                "records, and written nowhere; dpjax check tells more):"
            )
        _terminal.warn(f"  {text}")


def remarks_on_lines(path: Path, text_format: TextFormat) -> Iterator[str]:
    """Yields advice on lines of a text file that may be no records, such as totals."""
    for name, lines in _tables.surveys(path, text_format).items():
        if lines.title:
            yield (
                f"{name}: line {lines.title + 1} looks like the header: if a title is "
                f"above it, use --skip-lines {lines.title}."
            )
        elif lines.one_more >= _NEARLY_ALL * lines.records > 0:
            yield (
                f"{name}: {lines.one_more:,} of {lines.records:,} lines have one cell "
                "more than the header: if the first is the name of a row, as R writes "
                "it, use --row-names."
            )
        elif lines.surplus:
            yield (
                f"{name}: {lines.surplus:,} of {lines.records:,} lines have more cells "
                "than the header, which are not read: a cell with a delimiter in it "
                "needs quotes."
            )
        if lines.opened:
            how = "--quoted reads cells with line breaks"
            how = "without --quoted a line is a record" if text_format.quoted else how
            yield f"{name}: {lines.opened:,} cells begin with an open quote: {how}."
        last = lines.blank_at_end + text_format.last_lines
        if lines.total:
            yield (
                f"{name}: the last line with text begins with {lines.total!r}: if it "
                f"is a sum and no record, use --last-lines {last + 1}."
            )
        elif lines.blank_at_end:
            yield (
                f"{name}: blank lines at the end count as records "
                f"({lines.blank_at_end:,}): --last-lines {last} leaves them out."
            )
        if lines.blank > lines.blank_at_end:
            inside = lines.blank - lines.blank_at_end
            yield f"{name}: blank lines between others count as records ({inside:,})."


def undecoded(cells: Cells) -> str:
    """Returns the message about cells whose bytes do not decode."""
    return (
        f"the bytes of {cells.of_all(cells.undecoded)} cells do not decode: they count "
        "as missing. --encoding says how the file is encoded: latin-1 or cp1252, if "
        "it is of Western Europe."
    )


def _look(texts: Mapping[str, int]) -> str:
    """Returns how cells that are not read write numbers: "like 1,5 (try --decimal ,)".

    `texts` maps each text to its number of cells. The options are those that read most
    cells; the result is "" if they do not read half of them.
    """
    texts = dict(Counter(texts).most_common(1_000))  # enough to see a format
    odd = [text for text in texts if np.isnan(_texts.number_of(text))]
    negative = [text for text in odd if _NEGATIVE.fullmatch(text)]
    looks = {f"write -{_NO_DIGITS.sub('', x).strip()}": negative for x in negative[:1]}
    # Of options that read as many cells, the first are advised.
    signs = Counter(sign for text in odd for sign in _CURRENCY.findall(text))
    currencies = [None, *(sign for sign, _ in signs.most_common(1))]
    for marks, currency, percent in product(_FORMATS, currencies, [False, True]):
        text_format = TextFormat(**_FORMATS[marks], currency=currency, percent=percent)
        numbers = Texts.of(odd, text_format).numbers
        sign = f"--currency {shlex.quote(currency)}" if currency else ""
        words = filter(None, [marks, sign, "--percent" * percent])
        read = [odd[place] for place in np.flatnonzero(~np.isnan(numbers))]
        looks[f"try {' '.join(words)}"] = read
    advice, read = max(looks.items(), key=lambda look: sum(texts[x] for x in look[1]))
    is_common = 2 * sum(texts[text] for text in read) >= sum(texts.values())
    return f"like {read[0][:_LONGEST]} ({advice})" if read and is_common else ""


_MOST_CATEGORIES = 30


class Guess(NamedTuple):
    """A guess about the content of a column."""

    center: float | None = None  # a usual number; None if it is not guessed
    scale: float | None = None  # a usual distance of numbers from the center
    categories: tuple[str, ...] | None = None  # () if not guessed, None for numbers
    dates: tuple[str, str, str] | None = None  # the first, the last, and the format
    left_out: str = ""  # why the column should be left out, if it should
    is_exposure: bool = False  # the target is in proportion to the column
    size: float | None = None  # the usual size of numbers above zero


_NAMES_A_RECORD = Guess(left_out="tells records apart")
_HAS_TIMES = Guess(left_out="holds times or dates")
_HAS_NO_NAME = Guess(left_out="has no name in the file")
_IS_CATEGORY = Guess(categories=())
_IS_CODE = Guess(left_out="has too many categories")
# Guesses for columns with these words in their names. The first match counts. Amounts
# of money have no usual size, so there is no guess for them.
_WORDS: dict[str, Guess] = {
    "id ids uuid guid key index name surname firstname lastname email mail phone "
    "telephone ssn address street iban account": _NAMES_A_RECORD,
    "date datetime timestamp dob birthday": _HAS_TIMES,
    "zip zipcode postcode postal": _IS_CODE,
    "exposure exposures expo": Guess(1, 1, is_exposure=True),
    "is has flag indicator": Guess(0.5, 0.5),
    "sex gender region country county city town state province district status type "
    "category class kind group segment brand color colour make model job occupation "
    "profession education degree marital race ethnicity religion language channel plan "
    "product department sector industry fuel smoker married sold churn fraud approved "
    "label currency relationship workclass": _IS_CATEGORY,
    "age": Guess(40, 20),
    "year yr": Guess(2010, 10),
    "month": Guess(6.5, 3.5),
    "weekday dow": Guess(4, 2),
    "day": Guess(15, 9),
    "hour": Guess(12, 7),
    "hours": Guess(40, 15),
    "bmi": Guess(27, 5),
    "height": Guess(170, 10),
    "weight": Guess(75, 15),
    "lat latitude": Guess(0, 45),
    "lon lng long longitude": Guess(0, 90),
    "pct percent percentage": Guess(50, 30),
    "share ratio rate probability prob": Guess(0.5, 0.5),
    "rooms bedrooms bathrooms floors children kids dependents count num": Guess(3, 3),
}
_GUESSES = {word: guess for words, guess in _WORDS.items() for word in words.split()}
_YES = ("yes", "true", "1", "y", "t")


def guess_names(path: Path, names: Sequence[str]) -> dict[str, Guess]:
    """Guesses each column's declaration in a schema from its name and Parquet type."""
    guesses = {name: guess_name(name) for name in names}
    for name, kind in _tables.declared_kinds(path).items():
        guess = guesses[name]
        is_no_number = guess.categories is not None or guess == _HAS_TIMES
        by_kind = {
            "times": _HAS_TIMES,
            "nested": Guess(left_out="holds lists or records"),
            "truth": Guess(categories=("false", "true")),
            "text": guess if guess.left_out else _IS_CATEGORY,
            "numbers": Guess() if is_no_number else guess,
        }
        guesses[name] = by_kind.get(kind, guess)
    return guesses


def guess_name(name: str) -> Guess:
    """Guesses what a column holds from its name."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()
    is_blank = re.fullmatch(r" *|column [0-9]+", name)
    if is_blank or re.fullmatch(r"unnamed: ?[0-9]+|__index_level_[0-9]+__", spaced):
        return _HAS_NO_NAME
    words = re.split(r"[^a-z0-9]+", spaced)
    return next((guess for word, guess in _GUESSES.items() if word in words), Guess())


_DATES = _kinds.ISO, "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%Y%m%d"


def _guess_dates(column: Column, texts: Mapping[str, int]) -> Guess | None:
    """Guesses the format of dates, and the years between which most of them are."""
    for form in _DATES if len(texts) > 1 else ():
        years = _kinds.Date("0001-01-01", "9999-12-31", form, "year").numbers(column)
        years = years[~np.isnan(years)]
        if len(years) >= 0.9 * sum(texts.values()):
            low, high = np.quantile(years, [0.01, 0.99], method="nearest").astype(int)
            return Guess(dates=(f"{low:04}-01-01", f"{high:04}-12-31", form))
    return None


def guess_cells(column: Column) -> Guess:
    """Guesses a column's range, format or categories by its cells: not private."""
    known = float32_of(column)
    known = known[~np.isnan(known)]
    texts = {t: count for t, count in count_texts(column).items() if not is_mark(t)}
    if len(known) == 0 and (dates := _guess_dates(column, texts)):
        return dates
    if len(known) >= 0.9 * sum(texts.values()) > 0 and len(texts) > 2:
        low, middle, high = np.quantile(known, (1 / 6, 1 / 2, 5 / 6)).tolist()
        # Of normal numbers, the middle two thirds span about two standard deviations.
        amounts = known[known > 0]
        size = _rounded(float(np.median(amounts))) if len(amounts) else None
        return Guess(_rounded(middle), _rounded((high - low) / 2) or 1.0, size=size)
    if 1 < len(texts) <= _MOST_CATEGORIES:
        # Without another word the first is the reference, such as "no".
        named = sorted(texts, key=lambda text: (text.lower() in _YES, text))
        return Guess(categories=tuple(named))
    return Guess(left_out="has at most one value") if len(texts) < 2 else _IS_CODE


def _rounded(number: float) -> float:
    """Rounds to one digit, which reveals less of the number."""
    return float(f"{number:.0e}")


def schema_text(
    guesses: Mapping[str, Guess],
    *,
    target: str | None,  # the column to predict
    how: str = "the names alone",  # where the guesses come from
    link: Link | None = None,  # of the loss; decides what the section [target] holds
    is_quoted: bool = False,  # whether cells in quotes may have line breaks
) -> str:
    """Returns the text of a schema in TOML, made of guesses, for the user to correct.

    `guesses` has a guess for each column. It becomes a section of the schema, or a
    comment on why the column is left out.
    """
    sections, has_exposure = [], False
    for name, guess in guesses.items():
        if name == target:
            continue
        title = f"[columns.{_schema.toml_key(name)}]"
        lines = f"[exposure]\ncolumn = {_schema.toml_text(name)}\nmax = 1.0"
        if guess.left_out:
            more = "# With first and last, public dates, it is a number of days.\n"
            more *= guess == _HAS_TIMES
            sections.append(f"# {title} is left out: it {guess.left_out}.\n{more}")
        elif not guess.is_exposure:
            sections.append(f"{title}\n{_entry(guess)}")
        elif link == "log" and not has_exposure:
            has_exposure = True
            sections.append(f"{lines}  # not guessed\n")
        else:
            sections.append(
                f"# {title} is left out: it is an exposure. With --loss\n"
                "# poisson, gamma or tweedie the target is in proportion to it:\n"
                f"{textwrap.indent(lines, '# ')}\n"
            )
    last, guess = "[target]\n", Guess()
    if target is not None:
        last += f"column = {_schema.toml_text(target)}\n"
        guess = guesses[target]
    is_class, has_many = guess.categories is not None, len(guess.categories or ()) > 2
    if link == "softmax" or (link is None and has_many):
        last += _entry(guess._replace(categories=guess.categories or ()))
    elif link == "logit" or (link is None and is_class):
        label = _schema.toml_text(guess.categories[-1] if guess.categories else "yes")
        last += f"positive = {label}  # +1, others are -1; or categories = [...]\n"
    elif link == "log":
        last += f"scale = {guess.size or 1.0}  # what targets above zero mostly are\n"
    else:
        last += _entry(guess._replace(categories=None))
    head = textwrap.fill(_HEAD, 80, initial_indent="# ", subsequent_indent="# ")
    head += f"\n# Guessed from {how}: correct every line.\n"
    head += "\nquoted = true  # cells in quotes may have line breaks\n" * is_quoted
    return head + "\n" + "\n".join([*sections, last]).rstrip("\n")


_HEAD = (
    "What is public about each column: it must be known without looking at the "
    "records. Numbers enter as (x - center) / scale: say a usual value, and a usual "
    "distance from it. Categories must be all levels, written as in the file; a model "
    "compares them with the first, unless reference names another. Delete the columns "
    "that are not to be used. With --private-ranges, sections of numbers may be empty: "
    "center and scale then cost a part of the budget."
)


def _entry(guess: Guess) -> str:
    if guess.dates is not None:
        first, last, form = map(_schema.toml_text, guess.dates)
        return f"first = {first}\nlast = {last}\nformat = {form}\n"
    if guess.categories is None:
        if guess.center is None:
            return "center = 0.0  # not guessed\nscale = 1.0\n"
        return f"center = {guess.center}\nscale = {guess.scale}\n"
    if not guess.categories:
        return f'categories = ["{_schema.FILL_IN}"]  # list them: "a", "b"\n'
    return f"categories = {_schema.toml_text(guess.categories)}\n"


def propose(settings: SchemaSettings) -> None:
    """Runs `dpjax schema`: prints a guessed schema, or writes it to --output."""
    path, target, output = Path(settings.source), settings.target, settings.output
    text_format, how = settings.text_format, "the names alone"
    if output is not None:
        _terminal.check_output(output, {}, ".toml")
        rule = "a new file; this one is there, perhaps corrected by hand"
        _validate.require(not output.exists(), "--output", str(output), rule)
    names = column_names(path, text_format)
    named = [name for name in names if guess_name(name) != _HAS_NO_NAME]
    if len(named) == 1:
        _terminal.warn(
            f"Warning: the only name is {printable(named[0])!r}. If this is a title "
            "above the header, --skip-lines 1 leaves it out."
        )
    _schema.check_target(target, names)
    guesses = guess_names(path, names)
    if settings.from_data:
        # Names suggest times, but may be wrong: cells that are numbers count.
        times = {name for name, guess in guesses.items() if guess == _HAS_TIMES}
        read = [
            name
            for name, guess in guesses.items()
            if (name in times or not guess.left_out)
            and (name == target or not guess.is_exposure)
        ]
        say_to_curator(remarks_on_lines(path, text_format))
        form = replace(text_format, dates=times)
        columns = read_columns(path, read, text_format=form) if read else {}
        for name, column in columns.items():
            guess = guess_cells(column)
            if name not in times or (guess.center, guess.dates) != (None, None):
                guesses[name] = guess
        how = "THE RECORDS, which no guarantee covers"
        _terminal.warn(
            "Warning: the guesses of --from-data depend on the records, and the "
            "guarantee of a model that uses them does not cover that. Use them for "
            "public data, or replace them by what you knew before."
        )
    link = link_of(settings.loss) if settings.loss else None
    more = {"how": how, "link": link, "is_quoted": text_format.quoted}
    text = schema_text(guesses, target=target, **more)
    if output is None:
        _terminal.end_stage()
        print(text)
    else:
        _terminal.write_output(output, f"{text}\n".encode())
