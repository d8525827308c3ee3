"""Runs `dpjax` in this process."""

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
