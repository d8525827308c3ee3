"""Begins and ends a private release: its key, its files, and its run folder."""

import contextlib
import hashlib
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from dpjax import _files, _store, _validate
from dpjax._types import Key
from dpjax.mechanisms import secret_key
from dpjax.mechanisms._chacha import key_of_words
from dpjax.tables.cli import _ledger
from dpjax.tables.cli._options import FROM_SYSTEM, Generator, flag
from dpjax.tables.cli._settings import ReleaseOptions, public_name
from dpjax.tables.cli._terminal import warn

_KEY, _STATES, _PAID = "key.npz", "states", "paid.npz"
# A killed process leaves partial files behind, which match too.
_NAMES = r"(key|paid)\.npz"
_FILE = re.compile(rf"{_NAMES}|\.{_NAMES}\.\d+\.part")


class RunFolder(NamedTuple):
    """A folder from which a killed run resumes: its key, states, and ledger entry.

    Only its owner can read it, because the key or a state is enough to subtract the
    noise. The folder is removed before the run's release is written. A process that is
    killed earlier leaves it behind, to resume from, and as secret as the data.

    A key belongs to one command on one table: their digest is saved with it. On other
    records the same key would draw the same noise, and the difference of the two
    releases would reveal the records.
    """

    path: Path
    run: str = ""  # the digest of the command and the table, keyed by the run's key

    def checked(self) -> "RunFolder":
        """Returns this folder with its real path; raises if it cannot be used.

        A run removes its folder in the end. So it must be new, empty or of a stopped
        run, and not a link; and this process must be able to write to it.
        """
        shown, is_link = str(self.path), self.path.is_symlink()
        rule = "a folder and no symbolic link, since it is removed in the end"
        _validate.require(not is_link, "--checkpoint", shown, rule)
        is_fine = _files.can_be_folder(self.path)
        is_fine = is_fine and (not self.path.exists() or self._is_of_a_run())
        rule = "a folder of a run that was stopped, an empty or a new one, that can be "
        _validate.require(is_fine, "--checkpoint", shown, f"{rule}written to")
        return RunFolder(Path(os.path.realpath(self.path)))

    def _is_of_a_run(self) -> bool:
        """Returns whether the folder is empty or of a stopped run: safe to remove."""
        files = {path.name: path for path in self.path.iterdir()}
        folders, states = [], []
        if (path := files.pop(_STATES, None)) is not None:
            folders, states = [path], [*path.iterdir()] if path.is_dir() else []
        folders += states
        return (
            all(map(_FILE.fullmatch, files))
            and all(path.is_file() for path in files.values())
            and all(path.is_dir() for path in folders)
            and all(_store.STATE.fullmatch(path.name) for path in states)
            and not any(path.is_symlink() for path in (*files.values(), *folders))
        )

    @property
    def states(self) -> Path:
        """The folder in which a solver keeps its states."""
        return self.path / _STATES

    def has_states(self) -> bool:
        """Returns whether there is a state to resume from."""
        return self.states.is_dir() and any(self.states.iterdir())

    def kept_key(self) -> Key | None:
        """Returns the key of the run that was stopped, or None."""
        if not (self.path / _KEY).exists():
            return None
        _, content = _store.unpacked(self.path / _KEY)
        words = content.get("key", np.zeros(0, np.uint32))
        is_key = words.dtype == np.uint32 and words.shape in ((2,), (8,))
        _validate.require(is_key, "--checkpoint", str(self.path), "a folder of a run")
        return key_of_words(words)

    def bound(self, key: Key, parts: Iterable[bytes]) -> "RunFolder":
        """Returns the folder tied to a run by a digest; raises if it has another key.

        `key` is the key of the noise, and `parts` the bytes of the options and records.
        The error depends on the records. It is for the curator, who keeps the folder
        secret, and outside of the guarantee.
        """
        words = np.asarray(jax.random.key_data(key))
        digest = hashlib.blake2b(words.tobytes(), digest_size=32)
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        bound = self._replace(run=digest.hexdigest())
        if (self.path / _KEY).exists():
            run, saved = _store.unpacked(self.path / _KEY)
            is_same = run == {"run": bound.run} and np.array_equal(saved["key"], words)
            rule = "new or of this run, with the same options and records (for "
            rule += "the curator's eyes only, outside the guarantee)"
            _validate.require(is_same, "--checkpoint", str(self.path), rule)
        return bound

    def keep_key(self, key: Key) -> None:
        """Saves the key of the run, before anything is drawn from it."""
        words = np.asarray(jax.random.key_data(key))
        self._write(_KEY, {"key": words}, {"run": self.run})

    def paid(self, settings: str) -> str | None:
        """Returns the identifier of the run's entry in a ledger, if there is one."""
        if not (self.path / _PAID).exists():
            return None
        content, _ = _store.unpacked(self.path / _PAID)
        return content.get("entry") if content.get("settings") == settings else None

    def keep_paid(self, entry: str, settings: str) -> None:
        """Saves the identifier of the run's entry in a ledger."""
        self._write(_PAID, {}, {"entry": entry, "settings": settings})

    def _write(self, name: str, arrays: _store.Arrays, run: Mapping[str, str]) -> None:
        _store.make_private(self.path)
        content = _store.packed(arrays, run)
        path = self.path / name
        _files.write_whole(path, content, name="--checkpoint", is_secret=True)

    def remove(self) -> None:
        """Removes the files of the run, the key first, before its release is written.

        Then removes the folder, unless it holds other files or cannot be removed, such
        as a mount point. When this returns, the files are gone from the disk even if
        the machine stops.
        """
        whys = []
        names = [path.name for path in self.path.glob("*")]
        ours = filter(_FILE.fullmatch, sorted(names, key=lambda name: _KEY not in name))
        for name in (*ours, _STATES):
            path = self.path / name
            try:
                if name != _STATES:
                    path.unlink()
                elif path.exists():
                    shutil.rmtree(path)
            except OSError as why:
                whys.append(str(why))
        if whys:
            raise OSError(
                f"--checkpoint {self.path} could not be removed ({'; '.join(whys)}): "
                "remove it, because anyone who finds it can subtract the noise."
            )
        _store.sync(self.path)
        with contextlib.suppress(OSError):
            self.path.rmdir()
        _store.sync(self.path.parent)


class Release(NamedTuple):
    """A private release that a command makes."""

    folder: Path  # for its files
    key: Key  # of all its noise
    noise_key: str  # the source of the key, in words
    is_seeded: bool  # if the key is a known seed, nothing is protected
    run_folder: RunFolder | None  # from which it can be resumed, if any

    @contextlib.contextmanager
    def recorded(self) -> Iterator[dict[str, bytes]]:
        """Yields a dict, which the block fills with files by name; then writes them.

        Meanwhile the key is saved in the folder of --checkpoint. If the run breaks off,
        the folder stays only if it has a state to resume from. A seed is not saved,
        because the same command gives it again.
        """
        files: dict[str, bytes] = {}
        folder, how = self.run_folder, "With --checkpoint FOLDER a run can be resumed."
        try:
            if folder is not None:
                _store.make_private(folder.path)
                if not self.is_seeded:
                    folder.keep_key(jax.random.clone(self.key))
            yield files
        except BaseException as why:
            if folder is not None and folder.has_states():
                how = "The same command goes on from here; it needs --checkpoint "
                how += f"{folder.path}, which has the key and is as secret as the data."
            elif folder is not None:
                how = "There was no state to go on from."
                folder.remove()
            if isinstance(why, KeyboardInterrupt):
                warn(f"Stopped; nothing was written to --output. {how}")
            raise
        self.write(files)

    def write(self, files: Mapping[str, bytes]) -> None:
        """Writes the released files, all or none, before anything else can fail.

        The files appear in their order, after the key is gone: a key that is left could
        draw the same noise for other records. A kill in between loses the run.
        """
        forget = (lambda: None) if self.run_folder is None else self.run_folder.remove
        with _uninterrupted():
            _files.write_together(self.folder, files, name="--output", before=forget)


def begin(settings: ReleaseOptions, names: Sequence[str]) -> Release:
    """Returns a release with checked paths, and a new key or that of a stopped run.

    `names` are the files to write. The folder of --checkpoint must not be a link, and
    must be apart from the output and the inputs, because it is removed in the end.
    """
    name, source = public_name(settings.source), Path(settings.source)
    folder = settings.output or Path("dpjax-output", Path(name or source).stem)
    inputs = {} if name is not None else {"DATA": source}
    for option in ("schema", "unit_names", "ledger"):
        if (path := getattr(settings, option, None)) is not None:
            inputs[flag(option)] = path
    if settings.ledger is not None:
        _ledger.check_room(settings.ledger, settings.unit)
    _files.check_folder("--output", folder, names=names)
    _files.check_spared("--output", [folder / name for name in names], inputs)
    run_folder = None
    if (checkpoint := settings.checkpoint) is not None:
        both = ((folder, checkpoint), (checkpoint, folder))
        end = "since it is removed in the end"
        is_apart = not any(_files.is_within(*pair) for pair in both)
        rule = f"apart from --output {folder}, neither inside the other, {end}"
        _validate.require(is_apart, "--checkpoint", str(checkpoint), rule)
        for option, path in inputs.items():
            is_apart = not _files.is_within(path, checkpoint)
            rule = f"a folder that does not hold {option} {path}, {end}"
            _validate.require(is_apart, "--checkpoint", str(checkpoint), rule)
        run_folder = RunFolder(checkpoint).checked()
    if settings.seed is not None:
        warn(
            "Warning: anyone who knows --seed can subtract the noise, and then nothing "
            "is protected. Use it on public data only."
        )
        key = jax.random.key(settings.seed)
        noise_key = "seeded, hence for public data only"
        return Release(folder, key, noise_key, True, run_folder)
    key = None if run_folder is None else run_folder.kept_key()
    key = _system_key(settings.generator) if key is None else key
    return Release(folder, key, FROM_SYSTEM[settings.generator], False, run_folder)


def _system_key(generator: Generator) -> Key:
    """Returns a key from the operating system; guessing it reveals the noise."""
    if generator == "chacha20":
        return secret_key()
    return key_of_words(np.frombuffer(os.urandom(8), np.uint32))


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delays Ctrl-C and other signals, so that the block is not left half done."""
    # Only the main thread receives such signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {}
    for name in {"SIGINT", "SIGTERM", "SIGHUP"} & {*dir(signal)}:  # Windows has no HUP
        number = getattr(signal, name)
        if signal.getsignal(number) is not None:  # else Python could not restore it
            handlers[number] = signal.signal(number, lambda one, _: came.append(one))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)
