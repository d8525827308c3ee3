"""The begin and end of a private release: files, key, and folder to resume from."""

import contextlib
import dataclasses
import itertools
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax

from dpjax import _files, _validate
from dpjax._types import Key
from dpjax.tables.cli import _display, _ledger, _report
from dpjax.tables.cli._options import FROM_SYSTEM, flag
from dpjax.tables.cli._run_folder import RunFolder
from dpjax.tables.cli._runs import system_key
from dpjax.tables.cli._settings import ReleaseOptions, public_name
from dpjax.tables.cli._sources import Table
from dpjax.tables.cli._terminal import terminal


class Release(NamedTuple):
    """A private release that a command makes.

    Attributes:
        folder: the folder for its files.
        key: the key of all its noise.
        noise_key: the source of the key, in words.
        is_seeded: whether the key is a known seed, so that nothing is protected.
        run_folder: the folder from which it can be resumed, if any.
    """

    folder: Path
    key: Key
    noise_key: str
    is_seeded: bool
    run_folder: RunFolder | None

    def bound(self, settings: ReleaseOptions, table: Table | None) -> "Release":
        """Returns the release with its folder bound to these options and records.

        Raises:
            ValueError: If the folder holds the key of another run.
        """
        if self.run_folder is None:
            return self
        options = dataclasses.replace(settings, output=None, checkpoint=None)
        records = () if table is None else table.parts()
        parts = itertools.chain([repr(options).encode()], records)
        return self._replace(run_folder=self.run_folder.bound(self.key, parts))

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Saves the key for the duration of a run.

        If the run breaks off, the key stays only if there is a state to resume from. A
        seed is not saved, because the same command gives it again.
        """
        folder = self.run_folder
        if folder is None:
            try:
                yield
            except KeyboardInterrupt:
                _say_stopped("With --checkpoint FOLDER a run can be resumed.")
                raise
            return
        try:
            folder.make()
            if not self.is_seeded:
                folder.keep_key(jax.random.clone(self.key))
            yield
        except BaseException as why:
            if not folder.has_states():
                folder.remove()
            elif isinstance(why, KeyboardInterrupt):
                _say_stopped(
                    "The same command goes on from here; it needs --checkpoint "
                    f"{folder.path}, which holds the key and is as secret as the data."
                )
            raise

    def remove_kept(self) -> None:
        """Removes the folder to resume from, the key first."""
        if self.run_folder is not None:
            self.run_folder.remove()


def begin(settings: ReleaseOptions, names: Sequence[str]) -> Release:
    """Checks the paths of a release, and draws its key or loads a saved one.

    The folder of --checkpoint must be no link, and apart from the output and the files
    that are read, because it is removed in the end.

    Args:
        settings: the options.
        names: names of the release's files.

    Raises:
        ValueError: If a folder or the ledger is wrong; nothing has been read.
    """
    name, source = public_name(settings.source), Path(settings.source)
    folder = settings.output or Path("dpjax-output", Path(name or source).stem)
    inputs = {} if name is not None else {"DATA": source}
    for option in ("schema", "unit_names", "ledger"):
        if (path := getattr(settings, option, None)) is not None:
            inputs[flag(option)] = path
    if settings.ledger is not None:
        _ledger.check_room(settings.ledger, settings.unit)
    _report.check_folder(folder, inputs, names)
    run_folder = None
    if settings.checkpoint is not None:
        _check_apart(settings.checkpoint, folder, inputs)
        run_folder = RunFolder(settings.checkpoint).checked()
    if settings.seed is not None:
        _display.warn_of_seed(terminal(stderr=True))
        key, noise_key = (
            jax.random.key(settings.seed),
            "seeded, hence for public data only",
        )
    else:
        key = run_folder.kept_key() if run_folder is not None else None
        key = system_key(settings.generator) if key is None else key
        noise_key = FROM_SYSTEM[settings.generator]
    return Release(folder, key, noise_key, settings.seed is not None, run_folder)


def _check_apart(checkpoint: Path, output: Path, inputs: Mapping[str, Path]) -> None:
    both = (output, checkpoint), (checkpoint, output)
    rule = f"apart from --output {output}, neither inside the other, since it is "
    overlaps = any(_files.is_within(*pair) for pair in both)
    shown = str(checkpoint)
    _validate.require(not overlaps, "--checkpoint", shown, f"{rule}removed in the end")
    for name, path in inputs.items():
        is_apart = not _files.is_within(path, checkpoint)
        rule = f"a folder without {name} {path}, since it is removed in the end"
        _validate.require(is_apart, "--checkpoint", shown, rule)


def _say_stopped(how: str) -> None:
    text = f"Stopped; nothing was written to --output. {how}"
    terminal(stderr=True).print(text, style="yellow", soft_wrap=True)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delays Ctrl-C and other signals to stop until the block has ended.

    Only the main thread receives such signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    # None is a handler outside of Python, which could not be restored.
    numbers = [number for number in numbers if signal.getsignal(number) is not None]
    came: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in numbers
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)
