"""Docstrings as reStructuredText: they are plain text with code in single backticks."""

import re
from collections.abc import Callable, Mapping

# What reStructuredText would read as markup.
_MARKUP = re.compile(r"([\\*|]|_(?=\W|$))")
_CODE = re.compile(r"(`[^`\n]+`)")
_BULLET = re.compile(r"^(\s*\* )(.*)$")


def as_rst(
    lines: list[str],
    formulas: Mapping[str, str],
    target: Callable[[str], str | None],
) -> list[str]:
    """Returns the lines of a docstring, in reStructuredText.

    A block after an empty line that is further indented is a formula or code.

    Args:
        lines: of the docstring.
        formulas: what they are in TeX.
        target: from code in backticks to the public name that it is, if it is one.
    """

    def converted(line: str) -> str:
        if line.count("`") % 2:
            return line  # code that goes on in another line
        bullet = _BULLET.match(line)
        head, text = bullet.groups() if bullet else ("", line)
        parts = _CODE.split(text)
        parts[::2] = [_with_formulas(part, formulas) for part in parts[::2]]
        for i in range(1, len(parts), 2):
            code = parts[i][1:-1]
            name = target(code)
            parts[i] = f":py:obj:`{code} <{name}>`" if name else f"``{code}``"
        return head + "".join(parts)

    result: list[str] = []
    literal = previous = None  # indentation of a block, and of the last line of text
    in_doctest, skipped = False, 0
    for i, line in enumerate(lines):
        if i < skipped:
            continue
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if not text:
            in_doctest = False
            result.append("")
            continue
        after_empty = i > 0 and not lines[i - 1].strip()
        if literal is not None and indent < literal:
            literal = None
        if text.startswith(">>>") and literal is None:
            in_doctest, previous = True, indent
        if literal is None and not in_doctest:
            if after_empty and previous is not None and indent > previous:
                literal = indent
                whole, end = _block(lines, i, indent)
                if whole in formulas:
                    formula = " " * indent + formulas[whole]
                    result += [" " * previous + ".. math::", "", formula]
                    skipped = end
                    continue
                result += [" " * previous + "::", ""]
            else:
                line, previous = converted(line), indent
        result.append(line)
    return result


def _block(lines: list[str], start: int, indent: int) -> tuple[str, int]:
    """Returns the words of the block that starts there, and the index of its end."""
    end = start
    while end < len(lines) and lines[end].startswith(" " * indent):
        end += 1
    return " ".join(" ".join(lines[start:end]).split()), end


def _with_formulas(text: str, formulas: Mapping[str, str]) -> str:
    text = _MARKUP.sub(r"\\\1", text)
    for plain, tex in formulas.items():
        text = text.replace(_MARKUP.sub(r"\\\1", plain), rf"\ :math:`{tex}`\ ")
    return text
