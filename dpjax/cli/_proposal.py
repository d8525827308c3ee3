"""`dpjax schema`: prints or writes a schema to correct."""

from pathlib import Path

from dpjax import _files, _validate
from dpjax._tables import column_names, read_columns
from dpjax.cli._command_settings import SchemaSettings
from dpjax.cli._guesses import guess_cells, guess_names, schema_text
from dpjax.cli._losses import link_of
from dpjax.cli._terminal import show_paths, terminal


def propose(settings: SchemaSettings) -> None:
    """Prints or writes a schema to correct.

    Raises:
        ValueError: if the file, the target or the output is wrong; nothing is written.
        OSError: if a file cannot be read or written.
    """
    path, target, output = Path(settings.source), settings.target, settings.output
    if output is not None:
        _files.check_file("--output", output, suffix=".toml")
        rule = "a new file; this one is there, perhaps corrected by hand"
        _validate.require(not output.exists(), "--output", str(output), rule)
    names = column_names(path)
    rule = f"a column of {names}"
    _validate.require(target is None or target in names, "--target", target, rule)
    guesses = guess_names(path, names)
    how = "the names alone"
    if settings.from_data:
        open_names = [
            name
            for name, one in guesses.items()
            if not one.left_out and (name == target or not one.is_exposure)
        ]
        columns = read_columns(path, open_names)
        guesses |= {name: guess_cells(column) for name, column in columns.items()}
        how = "THE RECORDS, which no guarantee covers"
        terminal(stderr=True).print(
            "Warning: what --from-data guesses tells of the records, and no guarantee "
            "of a model that is trained with it covers that. Use it for public data, "
            "or put what you knew before in its place.",
            style="yellow",
        )
    link = link_of(settings.loss) if settings.loss else None
    text = schema_text(guesses, target=target, how=how, link=link) + "\n"
    if output is None:
        print(text, end="")
    else:
        _files.write_whole(output, text.encode(), name="--output")
        show_paths(terminal(), [output])
