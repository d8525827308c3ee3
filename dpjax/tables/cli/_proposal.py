"""`dpjax schema`: prints or writes a schema to correct."""

from pathlib import Path

from dpjax import _files, _validate
from dpjax.tables.cli._cells import remarks_on_lines, say_to_curator
from dpjax.tables.cli._command_settings import SchemaSettings
from dpjax.tables.cli._guesses import HAS_TIMES, guess_cells, guess_names, schema_text
from dpjax.tables.cli._losses import link_of
from dpjax.tables.cli._terminal import end_stage, show_paths, terminal
from dpjax.tables.io._tables import column_names, declared_kinds, read_columns
from dpjax.tables.io._untrusted import printable


def propose(settings: SchemaSettings) -> None:
    """Prints or writes a schema to correct."""
    path, target, output = Path(settings.source), settings.target, settings.output
    if output is not None:
        _files.check_file("--output", output, suffix=".toml")
        rule = "a new file; this one is there, perhaps corrected by hand"
        _validate.require(not output.exists(), "--output", str(output), rule)
    text_format = settings.text_format
    names = column_names(path, text_format)
    if len(names) == 1:
        terminal(stderr=True).print(
            f"Warning: the only column is {printable(names[0])!r}. If this is a title "
            "above the header, --skip-lines 1 leaves it out.",
            style="yellow",
            soft_wrap=True,
        )
    rule = f"a column of {names}"
    _validate.require(target is None or target in names, "--target", target, rule)
    guesses = guess_names(path, names)
    how = "the names alone"
    if settings.from_data:
        # A name says that these are times; numbers are measured all the same.
        times = {name for name, guess in guesses.items() if guess == HAS_TIMES}
        times -= set(declared_kinds(path))
        open_names = [
            name
            for name, guess in guesses.items()
            if (name in times or not guess.left_out)
            and (name == target or not guess.is_exposure)
        ]
        say_to_curator(terminal(stderr=True), remarks_on_lines(path, text_format))
        columns = {}
        if open_names:
            columns = read_columns(path, open_names, text_format=text_format)
        seen = {name: guess_cells(column) for name, column in columns.items()}
        for name in times & {name for name in seen if seen[name].center is None}:
            del seen[name]
        guesses |= seen
        how = "THE RECORDS, which no guarantee covers"
        terminal(stderr=True).print(
            "Warning: the guesses of --from-data depend on the records, and the "
            "guarantee of a model that uses them does not cover that. Use them for "
            "public data, or replace them by what you knew before.",
            style="yellow",
        )
    link = link_of(settings.loss) if settings.loss else None
    text = schema_text(
        guesses, target=target, how=how, link=link, is_quoted=text_format.quoted
    )
    if output is None:
        end_stage()
        print(text)
    else:
        _files.write_whole(output, f"{text}\n".encode(), name="--output")
        show_paths(terminal(), [output])
