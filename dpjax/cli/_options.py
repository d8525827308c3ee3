"""Options as data: each is one field of a dataclass, with its type, help and check.

What typer sees of a command, and what is checked before it starts, follow from them.
"""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal

import typer

from dpjax import _validate
from dpjax.cli._terminal import refusals, stage

PRIVACY, DATA, METHOD, OUTPUT = "Privacy", "Data of a file", "Method", "Output"
# Arguments of functions by another name than their option's.
_ALIASES = {"num_steps": "steps", "num_subsets": "subsets", "table": "source"}
_NUMBERS = {float: "a number", int: "a whole number"}


@dataclass(frozen=True)
class Option:
    """What is said of an option beside its name, type and default.

    Attributes:
        panel: where the help shows it.
        help: what it is.
        check: of a value that is not None: `check(**{"--name": value})`.
    """

    panel: str
    help: str
    check: Callable[..., None] | None = None


of_privacy, of_data, of_method, of_output = (
    functools.partial(Option, panel) for panel in (PRIVACY, DATA, METHOD, OUTPUT)
)


@dataclass(frozen=True)
class Argument:
    """What is said of what a command is given first, without a name."""

    metavar: str
    help: str


def flag(field: str) -> str:
    """Returns how a field is given: "--batch-size"."""
    return f"--{field.replace('_', '-')}"


def declared(options: Any) -> dict[str, tuple[Any, Option | Argument]]:
    """Returns the type and the declaration of every field that can be given."""
    hints = typing.get_type_hints(options, include_extras=True)
    given = [field.name for field in dataclasses.fields(options) if field.init]
    return {name: typing.get_args(hints[name]) for name in given}


def check_each(options: Any) -> None:
    """Checks every option by itself.

    Raises:
        ValueError: where one breaks its rule.
    """
    for name, (_, said) in declared(type(options)).items():
        value = getattr(options, name)
        if isinstance(said, Option) and said.check and value is not None:
            said.check(**{flag(name): value})


def required(is_fine: Callable[[Any], bool], rule: str) -> Callable[..., None]:
    """Makes the check of an option of a rule."""

    def check(**values: Any) -> None:
        for name, value in values.items():
            _validate.require(is_fine(value), name, value, rule)

    return check


Generator = Literal["threefry", "chacha20"]
# Where a key comes from, in the words of a report.
FROM_SYSTEM: dict[Generator, str] = {
    "threefry": "from the operating system",
    "chacha20": "from the operating system, of 256 bits, for ChaCha20",
}
check_seed = required(lambda seed: 0 <= seed < 2**32, "from 0 to 2^32 - 1")


def taking(options: type) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Makes a function of options into one that typer takes as a command."""
    missing = inspect.Parameter.empty
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=getattr(options, name, missing),
            annotation=Annotated[hint, _seen_by_typer(name, hint, said)],
        )
        for name, (hint, said) in declared(options).items()
    ]

    as_typed = {
        name: said.metavar if isinstance(said, Argument) else flag(name)
        for name, (_, said) in declared(options).items()
    }
    as_typed |= {
        name: as_typed[field] for name, field in _ALIASES.items() if field in as_typed
    }

    def decorate(run: Callable[[Any], None]) -> Callable[..., None]:
        @functools.wraps(run)
        def command(**given: Any) -> None:
            with refusals(as_typed):
                settings = options(**given)
                stage("Starting")
                run(settings)

        vars(command)["__signature__"] = inspect.Signature(parameters)
        return command

    return decorate


def _seen_by_typer(name: str, hint: Any, said: Option | Argument) -> Any:
    if isinstance(said, Argument):
        return typer.Argument(metavar=said.metavar, help=said.help)
    text = said.help.replace("[", r"\[")  # for rich a bracket begins its markup
    panel: dict[str, Any] = {"help": text, "rich_help_panel": said.panel}
    kinds = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
    (kind,) = (kind for kind in kinds if kind is not NoneType)
    if kind is bool:
        return typer.Option(flag(name), **panel)
    if kind not in _NUMBERS:
        return typer.Option(**panel)
    parser = functools.partial(_parsed, kind)
    return typer.Option(parser=parser, metavar=f"<{kind.__name__}>", **panel)


def _parsed(kind: type, text: Any) -> Any:
    """Reads a number; the error, unlike typer's own, repeats what could not be read."""
    try:
        return kind(text)
    except ValueError:
        message = f"must be {_NUMBERS[kind]}, got {text!r}."
        raise typer.BadParameter(message) from None
