"""Declares options as fields of a dataclass, each with its type, help and check.

The help of a command and the checks before it starts are derived from these fields.
"""

import dataclasses
import functools
import importlib
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dpjax import _validate
from dpjax.tables.cli._terminal import refusals, stage

REQUIRED = dataclasses.MISSING  # the default of an option that must be given
_NUMBERS = {float: "a number", int: "a whole number"}


@dataclass(frozen=True)
class Option:
    """The declaration of an option, besides its name, type and default."""

    panel: str  # the section of the help that shows the option
    help: str
    check: Callable[..., None] | None = None  # of a value: check(**{"--name": value})
    metavar: str = ""  # the name of a positional argument in the help


def _declared(panel: str, help: str, check: Any = None, *, default: Any = None) -> Any:
    option = Option(panel, help, check)
    return dataclasses.field(default=default, metadata={"option": option})


of_privacy, of_data, of_method, of_output = (
    functools.partial(_declared, panel)
    for panel in ("Privacy", "Data of a file", "Method", "Output")
)


def argument(metavar: str, help: str) -> Any:
    """Declares a positional argument of a command."""
    return dataclasses.field(metadata={"option": Option("", help, None, metavar)})


def flag(field: str) -> str:
    """Returns the option of a field, such as "--batch-size" of `batch_size`."""
    return f"--{field.replace('_', '-')}"


def declared(options: Any) -> dict[str, tuple[Any, Option]]:
    """Returns the type and the declaration of every field that is an option."""
    hints = typing.get_type_hints(options)
    given = [field for field in dataclasses.fields(options) if field.init]
    return {x.name: (hints[x.name], x.metadata["option"]) for x in given}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a command; the class's docstring is the command's help."""

    def __post_init__(self) -> None:
        """Checks each option alone."""
        for name, (_, option) in declared(type(self)).items():
            value = getattr(self, name)
            if option.check and value is not None:
                option.check(**{flag(name): value})

    def require(self, name: str, is_fine: bool, rule: str) -> None:
        """Raises `ValueError` with `rule` if the option is given and not `is_fine`."""
        value = getattr(self, name)
        is_fine |= value is None or value is False
        shown = str(value) if isinstance(value, Path) else value
        _validate.require(is_fine, flag(name), shown, rule)


def required(is_fine: Callable[[Any], bool], rule: str) -> Callable[..., None]:
    """Returns a check that raises `ValueError` with `rule` unless `is_fine(value)`."""

    def check(**values: Any) -> None:
        for name, value in values.items():
            _validate.require(is_fine(value), name, value, rule)

    return check


check_seed = required(lambda seed: 0 <= seed < 2**32, "from 0 to 2^32 - 1")
Generator = Literal["threefry", "chacha20"]
# The source of each generator's key, as a report states it.
FROM_SYSTEM: dict[Generator, str] = {
    "threefry": "from the operating system",
    "chacha20": "from the operating system, of 256 bits, for ChaCha20",
}


def command(options: type[Options], place: str) -> Callable[..., None]:
    """Returns a function for typer that runs a command.

    The fields of the class `options` are the command's options, and `place` names the
    module and function that run it, such as "_train.train". The function raises
    `ValueError` if an option, a file or the schema is wrong, before it has written
    anything; and `OSError` if a file cannot be read or written.
    """
    says, empty = declared(options), inspect.Parameter.empty
    defaults = {x.name: x.default for x in dataclasses.fields(options)}
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=empty if defaults[name] is REQUIRED else defaults[name],
            annotation=Annotated[hint, _seen_by_typer(name, hint, option)],
        )
        for name, (hint, option) in says.items()
    ]
    as_typed = {k: x.metavar or flag(k) for k, (_, x) in says.items()}
    as_typed["table"] = as_typed.get("source", "table")  # errors may name it so
    module, name = place.split(".")

    def run(**given: Any) -> None:
        with refusals(as_typed):
            settings = options(**given)
            stage("Starting")
            runner = importlib.import_module(f"dpjax.tables.cli.{module}")
            getattr(runner, name)(settings)

    run.__doc__ = options.__doc__
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def _seen_by_typer(name: str, hint: Any, option: Option) -> Any:
    """Returns typer's argument or option for a field with this name and type `hint`."""
    if option.metavar:
        return typer.Argument(metavar=option.metavar, help=option.help)
    text = option.help.replace("[", r"\[")  # rich reads brackets as markup
    given: dict[str, Any] = {"help": text, "rich_help_panel": option.panel}
    kind = next(x for x in (*typing.get_args(hint), hint) if x in _NUMBERS or x is hint)
    if kind is bool:
        return typer.Option(flag(name), **given)
    if kind in _NUMBERS:

        def parsed(text: Any) -> Any:
            try:
                return kind(text)
            except ValueError:  # unlike typer's own error, this one repeats the text
                message = f"must be {_NUMBERS[kind]}, got {text!r}."
                raise typer.BadParameter(message) from None

        given |= {"parser": parsed, "metavar": f"<{kind.__name__}>"}
    return typer.Option(**given)
