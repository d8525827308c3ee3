"""A schema to correct: guessed from names, or on request from the records.

The names of columns are public, and so are the types that a Parquet file declares:
number, text, time. The categories of its enumerations are not treated as public,
because they usually are those that occur in the records.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpjax import _validate
from dpjax.tables.cli._check import count_texts, remarks_on_lines, say_to_curator
from dpjax.tables.cli._schema import FILL_IN, check_target, toml_key, toml_text
from dpjax.tables.cli._settings import SchemaSettings, link_of
from dpjax.tables.cli._terminal import (
    check_output,
    end_stage,
    warn,
    write_output,
)
from dpjax.tables.io._tables import Column, column_names, declared_kinds, read_columns
from dpjax.tables.io._texts import float32_of, is_mark
from dpjax.tables.io._untrusted import printable
from dpjax.tables.models._terms import Link

_MOST_CATEGORIES = 30


class Guess(NamedTuple):
    """A guess of what a column holds.

    Attributes:
        center: a usual number; None if it is not guessed.
        scale: a usual distance of numbers from the center.
        categories: the categories; empty if they are not guessed, None for numbers.
        left_out: why the column should be left out; empty if it should not.
        is_exposure: whether the target is in proportion to the column.
        size: the usual size of numbers above zero; None if it is not guessed.
    """

    center: float | None = None
    scale: float | None = None
    categories: tuple[str, ...] | None = None
    left_out: str = ""
    is_exposure: bool = False
    size: float | None = None


_NAMES_A_RECORD = Guess(left_out="tells records apart")
_HAS_TIMES = Guess(left_out="holds times or dates")
_IS_INDEX = Guess(left_out="is an index without a name")
_IS_CATEGORY = Guess(categories=())
_IS_CODE = Guess(left_out="has too many categories")
# The usual content of columns whose names have these words. The first match counts.
# Amounts of money have no usual size.
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
    """Guesses from the names, and from the types that a Parquet file declares."""
    guesses = {name: guess_name(name) for name in names}
    for name, kind in declared_kinds(path).items():
        guess = guesses[name]
        is_named = bool(guess.left_out)
        if kind == "time":
            guesses[name] = _HAS_TIMES
        elif kind == "nested":
            guesses[name] = Guess(left_out="holds lists or records")
        elif kind == "truth":
            guesses[name] = Guess(categories=("true",))
        elif kind == "text" and not is_named:
            guesses[name] = _IS_CATEGORY
        elif kind == "number" and (guess.categories is not None or guess == _HAS_TIMES):
            guesses[name] = Guess()
    return guesses


def guess_name(name: str) -> Guess:
    """Guesses what a column holds from its name."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()
    if re.fullmatch(r"|unnamed: ?[0-9]+|__index_level_[0-9]+__", spaced.strip()):
        return _IS_INDEX
    words = re.split(r"[^a-z0-9]+", spaced)
    return next((guess for word, guess in _GUESSES.items() if word in words), Guess())


def guess_cells(column: Column) -> Guess:
    """Guesses what a column holds from its cells, without any privacy."""
    known = float32_of(column)
    known = known[~np.isnan(known)]
    texts = {t: count for t, count in count_texts(column).items() if not is_mark(t)}
    if len(known) >= 0.9 * sum(texts.values()) > 0 and len(texts) > 2:
        low, middle, high = np.quantile(known, (1 / 6, 1 / 2, 5 / 6)).tolist()
        # Half of the middle two thirds: a standard deviation, of normal numbers.
        amounts = known[known > 0]
        size = _rounded(float(np.median(amounts))) if len(amounts) else None
        return Guess(_rounded(middle), _rounded((high - low) / 2) or 1.0, size=size)
    if 0 < len(texts) <= _MOST_CATEGORIES:
        # One of two categories is the reference level, which the intercept represents:
        # only the other one needs a weight.
        named = sorted(texts, key=lambda text: (text.lower() in _YES, text))
        return Guess(categories=tuple(named[-1:] if len(named) == 2 else named))
    return Guess(left_out="has no value" if not texts else "has too many categories")


def _rounded(number: float) -> float:
    """Rounds to one digit, which reveals less of the number."""
    return float(f"{number:.0e}")


def schema_text(
    guesses: Mapping[str, Guess],
    *,
    target: str | None,
    how: str = "the names alone",
    link: Link | None = None,
    is_quoted: bool = False,
) -> str:
    """Returns the text of a schema to correct.

    Example:
        >>> names = ["age", "town", "id", "price"]
        >>> guesses = {name: guess_name(name) for name in names}
        >>> print(schema_text(guesses, target="price"))
        # What is public about each column: it must be known without looking at the
        # records. Numbers enter as (x - center) / scale: say a usual value, and a usual
        # distance from it. Categories must be written as in the file. Delete the
        # columns that are not to be used. With --private-ranges, sections of numbers
        # may be empty: center and scale then cost a part of the budget.
        # Guessed from the names alone: correct every line.
        <BLANKLINE>
        [columns.age]
        center = 40
        scale = 20
        <BLANKLINE>
        [columns.town]
        categories = ["FILL IN"]  # list them: "a", "b"
        <BLANKLINE>
        # [columns.id] is left out: it tells records apart.
        <BLANKLINE>
        [target]
        column = "price"
        center = 0.0  # not guessed
        scale = 1.0
    """
    sections, has_exposure = [], False
    for name, guess in guesses.items():
        title, column = f"[columns.{toml_key(name)}]", f"column = {toml_text(name)}"
        lines = f"[exposure]\n{column}\nmax = 1.0"
        if name == target:
            continue
        if guess.left_out:
            sections.append(f"# {title} is left out: it {guess.left_out}.\n")
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
        last += f"column = {toml_text(target)}\n"
        guess = guesses[target]
    if link == "logit" or (link is None and guess.categories is not None):
        label = toml_text(guess.categories[-1] if guess.categories else "yes")
        last += f"positive = {label}  # counts as +1, anything else as -1\n"
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
    "distance from it. Categories must be written as in the file. Delete the columns "
    "that are not to be used. With --private-ranges, sections of numbers may be empty: "
    "center and scale then cost a part of the budget."
)


def _entry(guess: Guess) -> str:
    if guess.categories is None:
        if guess.center is None:
            return "center = 0.0  # not guessed\nscale = 1.0\n"
        return f"center = {guess.center}\nscale = {guess.scale}\n"
    if not guess.categories:
        return f'categories = ["{FILL_IN}"]  # list them: "a", "b"\n'
    return f"categories = [{', '.join(map(toml_text, guess.categories))}]\n"


def propose(settings: SchemaSettings) -> None:
    """Prints or writes a schema to correct."""
    path, target, output = Path(settings.source), settings.target, settings.output
    text_format, how = settings.text_format, "the names alone"
    if output is not None:
        check_output(output, {}, ".toml")
        rule = "a new file; this one is there, perhaps corrected by hand"
        _validate.require(not output.exists(), "--output", str(output), rule)
    names = column_names(path, text_format)
    if len(names) == 1:
        warn(
            f"Warning: the only column is {printable(names[0])!r}. If this is a title "
            "above the header, --skip-lines 1 leaves it out."
        )
    check_target(target, names)
    guesses = guess_names(path, names)
    if settings.from_data:
        # A name says that these are times; numbers are measured all the same.
        times = {name for name, guess in guesses.items() if guess == _HAS_TIMES}
        times -= set(declared_kinds(path))
        read = [
            name
            for name, guess in guesses.items()
            if (name in times or not guess.left_out)
            and (name == target or not guess.is_exposure)
        ]
        say_to_curator(remarks_on_lines(path, text_format))
        columns = read_columns(path, read, text_format=text_format) if read else {}
        seen = {name: guess_cells(column) for name, column in columns.items()}
        guesses |= {
            name: guess
            for name, guess in seen.items()
            if name not in times or guess.center is not None
        }
        how = "THE RECORDS, which no guarantee covers"
        warn(
            "Warning: the guesses of --from-data depend on the records, and the "
            "guarantee of a model that uses them does not cover that. Use them for "
            "public data, or replace them by what you knew before."
        )
    link = link_of(settings.loss) if settings.loss else None
    more = {"how": how, "link": link, "is_quoted": text_format.quoted}
    text = schema_text(guesses, target=target, **more)
    if output is None:
        end_stage()
        print(text)
    else:
        write_output(output, f"{text}\n".encode())
