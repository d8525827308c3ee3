"""Prints progress, paths, tables, texts and error messages on the terminal."""

import contextlib
import importlib.resources
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from rich import progress
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from dpjax import _files
from dpjax.tables.io._untrusted import printable

# Takes the name of a run, the number of steps done, and the total if it is known.
OnStep = Callable[[str, int, int | None], None]
_NOTHING: Mapping[str, str] = {}


class SchemaNeeded(ValueError):
    """Raised if no schema is given; `template` is a schema to fill in."""

    def __init__(self, message: str, template: str):
        super().__init__(message)
        self.template = template


class _Terminal(Console):
    """A console that prints only visible characters, one line for each text."""

    def print(self, *objects: Any, **options: Any) -> None:
        end_stage()  # this text would break its line
        super().print(*objects, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def terminal(*, stderr: bool = False) -> Console:
    """Returns a console that escapes control characters, and prints markup as it is."""
    # Output to stderr is for the curator, and outside of the guarantee.
    return _Terminal(stderr=stderr, markup=False, emoji=False, highlight=False)


def warn(text: str) -> None:
    """Prints a warning for the curator, on one line, so that paths can be copied."""
    terminal(stderr=True).print(text, style="yellow", soft_wrap=True)


_stages: list[Progress] = []  # the stage that is shown, if any


def stage(text: str) -> None:
    """Shows `text` and a clock on a terminal, until something else is printed."""
    end_stage()
    console = Console(stderr=True)
    if not console.is_terminal:
        return
    columns = progress.SpinnerColumn(), "{task.description}", TimeElapsedColumn()
    # Standard output or error may be a file: neither is redirected.
    given: Any = {"redirect_stdout": False, "redirect_stderr": False}
    shown = Progress(*columns, console=console, transient=True, **given)
    shown.add_task(printable(text), total=None)
    shown.start()
    _stages.append(shown)


def end_stage() -> None:
    """Erases the stage that is shown."""
    while _stages:
        _stages.pop().stop()


@contextlib.contextmanager
def refusals(as_typed: Mapping[str, str] = _NOTHING) -> Iterator[None]:
    """Prints an error in the block on one line, so that it can be copied; exits with 2.

    `as_typed` maps an argument's name in Python to the option that the user typed. No
    error depends on values of private records, except with --strict or --checkpoint.
    """
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        # An error begins with the name of an argument: the user typed an option for it.
        first, rest = (*str(error).split(" ", 1), "")[:2]
        first = as_typed.get(first, first) if rest.startswith("must ") else first
        line = f"{first} {rest}".rstrip()
        terminal(stderr=True).print(f"Error: {line}", style="red", soft_wrap=True)
        if isinstance(error, SchemaNeeded):
            print(error.template)
        raise typer.Exit(2) from None
    finally:
        end_stage()


@contextlib.contextmanager
def progress_bars(console: Console) -> Iterator[OnStep]:
    """Shows progress bars; yields `on_step(name, steps, total)`, which moves them."""
    columns = progress.BarColumn(), progress.MofNCompleteColumn(), TimeElapsedColumn()
    end_stage()
    with Progress("{task.description:30}", *columns, console=console) as shown:
        bars = {}

        def on_step(name: str, step: int, total: int | None) -> None:
            # Until its first step, a method compiles.
            stage = name if step else f"{name} (compiling)"
            if name not in bars:
                bars[name] = shown.add_task(stage, total=total)
            options = {"completed": step, "total": total, "description": stage}
            shown.update(bars[name], **options)

        yield on_step


def show_paths(console: Console, paths: Iterable[Path]) -> None:
    """Prints the paths of files, one per line, so that they can be copied."""
    for path in paths:
        console.print(f"wrote {path}", soft_wrap=True)


def check_output(path: Path, inputs: Mapping[str, Path], suffix: str = "") -> None:
    """Requires that --output can be written, and is none of `inputs`, by option."""
    _files.check_file("--output", path, suffix=suffix)
    _files.check_spared("--output", [path], inputs)


def write_output(path: Path, content: bytes) -> None:
    """Writes --output, whole or not at all, and prints its path."""
    _files.write_whole(path, content, name="--output")
    show_paths(terminal(), [path])


def table_of(
    head: Iterable[str], lines: Iterable[Iterable[str]], right: Container[str] = ()
) -> Table:
    """Returns a table with the titles `head`; columns named in `right` align right."""
    shown = Table()
    for title in head:
        side: Any = "right" if title in right else "left"
        shown.add_column(title, justify=side, overflow="fold")
    for line in lines:
        shown.add_row(*line)
    return shown


def chunks_of(name: str) -> list[str]:
    """Returns the paragraphs of a template next to this file."""
    template = importlib.resources.files("dpjax.tables.cli").joinpath(name)
    return template.read_text("utf-8").strip().split("\n\n")


def filled(text: str, values: Mapping[str, Any]) -> str:
    """Returns a text with its placeholders filled in; "" if a value is missing."""
    is_known = all(values.get(x) is not None for x in re.findall(r"{(\w+)", text))
    return " ".join(text.split()).format_map(values) if is_known else ""
