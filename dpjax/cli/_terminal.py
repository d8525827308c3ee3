"""The terminal: progress, paths, and how commands refuse."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
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

    def print(self, *objects: Any, **options: Any) -> None:
        end_stage()  # whose line would be torn
        super().print(*objects, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def terminal(*, stderr: bool = False) -> Console:
    """A console that takes every text as it is: names may hold brackets and colons.

    But for control characters, which a name in a file may hold too: they are escaped.
    What goes to stderr is for the curator, and outside of the guarantee.
    """
    return _Terminal(stderr=stderr, markup=False, emoji=False, highlight=False)


_stages: list[Progress] = []  # the one that is shown, if any


def stage(text: str) -> None:
    """Shows what a command is at and for how long, until anything else is printed.

    It shows on a terminal alone, and leaves nothing there.
    """
    end_stage()
    console = Console(stderr=True)
    if not console.is_terminal:
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    shown = Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=False,  # which need not be a terminal
        redirect_stderr=False,
    )
    shown.add_task(printable(text), total=None)
    shown.start()
    _stages.append(shown)


def end_stage() -> None:
    """Takes away what `stage` shows."""
    while _stages:
        _stages.pop().stop()


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
    finally:
        end_stage()


@contextlib.contextmanager
def progress_bars(console: Console) -> Iterator[OnStep]:
    """Shows a bar a name and its time, and gives the function that moves it.

    Until the first step a method compiles.
    """
    columns = TextColumn("{task.description:30}"), BarColumn(), MofNCompleteColumn()
    end_stage()
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bars = {}

        def on_step(name: str, step: int, total: int | None) -> None:
            said = name if step else f"{name} (compiling)"
            if name not in bars:
                bars[name] = progress.add_task(said, total=total)
            options = {"completed": step, "total": total, "description": said}
            progress.update(bars[name], **options)

        yield on_step


def show_paths(console: Console, paths: Sequence[Path]) -> None:
    """Prints where the files are, a line each, so that they can be copied."""
    for path in paths:
        console.print(f"wrote {path}", soft_wrap=True)
