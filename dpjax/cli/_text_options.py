"""The options that say how a file writes text: of every command that reads one."""

from dataclasses import dataclass
from typing import Annotated

from dpjax._texts import TextFormat
from dpjax.cli._options import check_each, of_data


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """How a file writes text and numbers: the same for all commands that read one."""

    encoding: Annotated[
        str | None,
        of_data(
            "How text is encoded, such as latin-1 or cp1252; UTF-8 by default, or "
            "UTF-16 where the file begins as that does."
        ),
    ] = None
    decimal: Annotated[
        str | None,
        of_data("What numbers in text have before a fraction: . by default, or ,"),
    ] = None
    thousands: Annotated[
        str | None,
        of_data("What may stand between groups of three digits: one of . , ' or ' '."),
    ] = None
    currency: Annotated[
        str | None, of_data("What numbers may have before or after them: EUR, or $.")
    ] = None

    def __post_init__(self) -> None:
        check_each(self)
        _ = self.text_format  # checks what they are together

    @property
    def text_format(self) -> TextFormat:
        """How the file is read."""
        return TextFormat(
            encoding=self.encoding,
            decimal=self.decimal or ".",
            thousands=self.thousands,
            currency=self.currency,
        )
