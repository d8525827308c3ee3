"""The terminal: progress, paths, and how commands refuse."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from dpjax._untrusted import printable

# What runs, how many steps are done, and of how many, if that is known.
OnStep = Callable[[str, int, int | None], None]
_NOTHING: Mapping[str, str] = {}


class SchemaNeeded(ValueError):
    """There is no schema; `template` is the text of one to fill in."""

    def __init__(self, message: str, template: str):
        super().__init__(message)
        self.template = template


class _Terminal(Console):
    """A console that every text reaches as characters that show, one line each."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def terminal(*, stderr: bool = False) -> Console:
    """A console that takes every text as it is: names may hold brackets and colons.

    But for control characters, which a name in a file may hold too: they are escaped.
    What goes to stderr is for the curator, and outside of the guarantee.
    """
    return _Terminal(stderr=stderr, markup=False, emoji=False, highlight=False)


@contextlib.contextmanager
def refusals(as_typed: Mapping[str, str] = _NOTHING) -> Iterator[None]:
    """Shows an error on one line, so that paths in it can be copied; exits with 2.

    By the rules of the package no such error depends on a value in a private record,
    but that of --strict.

    Args:
        as_typed: how options are typed, by the names that errors may begin with.
    """
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        first, rest = (*str(error).split(" ", 1), "")[:2]
        first = as_typed.get(first, first) if rest.startswith("must ") else first
        said = f"{first} {rest}".rstrip()
        terminal(stderr=True).print(f"Error: {said}", style="red", soft_wrap=True)
        if isinstance(error, SchemaNeeded):
            print(error.template)
        raise typer.Exit(2) from None


@contextlib.contextmanager
def progress_bars(console: Console) -> Iterator[OnStep]:
    """Shows a bar a name, and gives the function that moves it."""
    columns = TextColumn("{task.description:30}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console) as progress:
        bars = {}

        def on_step(name: str, step: int, total: int | None) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=total)
            progress.update(bars[name], completed=step, total=total)

        yield on_step


def show_paths(console: Console, paths: Sequence[Path]) -> None:
    """Prints where the files are, a line each, so that they can be copied."""
    for path in paths:
        console.print(f"wrote {path}", soft_wrap=True)
