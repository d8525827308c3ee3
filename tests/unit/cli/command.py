"""Runs `dpjax` in this process."""

import os
import re

import pytest
from typer.testing import CliRunner

from dpjax.cli._app import app


def invoke(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def words_of(text):
    """The words of an output, without frames and line breaks."""
    return " ".join(text.replace("│", " ").split())


def said_by(*arguments):
    """The exit code of a command that does not crash, and its words: out and err."""
    result = invoke(*arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, words_of(result.stdout), words_of(result.stderr)


def done(result):
    """Returns the result of a command that has done what it was asked."""
    assert result.exit_code == 0, (result.exception, result.stderr)
    return result


def refused(result, *parts):
    """Checks that a command was refused, with words that its message has."""
    assert result.exit_code == 2, result.exception
    for part in parts:
        assert part in words_of(result.stderr)


def tree(folder):
    """All that lies in a folder: what files hold, and where links lead to."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_symlink():
            found[path] = os.readlink(path)
        else:
            found[path] = path.read_bytes() if path.is_file() else None
    return found


def refusals(lines, run=invoke):
    """Returns a test of lines `words => message`: refused, and nothing is written.

    The words are those of a command, which runs in the fixture `folder`.
    """

    @pytest.mark.parametrize(
        ("words", "message"), re.findall(r"^(.+?) =>\s+(.+)$", lines, re.MULTILINE)
    )
    def test(folder, words, message):
        before = tree(folder)
        refused(run(*words.split()), message)
        assert tree(folder) == before

    return test
