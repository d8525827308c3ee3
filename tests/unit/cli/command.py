"""Runs `dpjax` in this process."""

import os
import re

import pytest
from typer.testing import CliRunner

from dpjax.tables.cli._app import app
from dpjax.tables.cli._outputs import files


def invoke(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def words_of(text):
    """Returns the words of an output, without frames and line breaks."""
    return " ".join(text.replace("│", " ").split())


def outputs_of(*arguments):
    """Returns the exit code of a command that does not crash, and its words."""
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
    """Returns the content of every file in a folder, and where links lead to."""
    return {
        path: os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


def model_content(model):
    """Returns the content of a model's file, as the command writes it."""
    return files(model, {})["model.npz"]


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
