"""Docstrings as reStructuredText: they are plain text with code in single backticks."""

import re

# What reStructuredText would read as markup.
_MARKUP = re.compile(r"([\\*|]|_(?=\W|$))")
_CODE = re.compile(r"(`[^`\n]+`)")
_BULLET = re.compile(r"^(\s*\* )(.*)$")


def as_rst(lines: list[str]) -> list[str]:
    """Returns the lines of a docstring, in reStructuredText.

    Code in backticks stays: the site's default role links it where it is a public name.
    A block after an empty line that is further indented is a formula or code.
    """
    result: list[str] = []
    literal = previous = None  # indentation of a block, and of the last line of text
    in_doctest = False
    for i, line in enumerate(lines):
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
                result += [" " * previous + "::", ""]
            else:
                line, previous = _escaped(line), indent
        result.append(line)
    return result


def _escaped(line: str) -> str:
    bullet = _BULLET.match(line)
    head, text = bullet.groups() if bullet else ("", line)
    parts = _CODE.split(text)
    parts[::2] = [_MARKUP.sub(r"\\\1", part) for part in parts[::2]]
    return head + "".join(parts)
