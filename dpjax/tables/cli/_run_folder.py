"""The folder from which a killed `dpjax train` resumes."""

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from dpjax import _files, _store, _validate
from dpjax._files import can_be_folder
from dpjax._types import Key
from dpjax.mechanisms._chacha import key_of_words

_KEY, _STATES, _PAID = "key.npz", "states", "paid.npz"
# Also the partial files that a killed process leaves behind.
_NAMES = r"(key|paid)\.npz"
_FILE = re.compile(rf"{_NAMES}|\.{_NAMES}\.\d+\.part")


class RunFolder(NamedTuple):
    """A folder for one run: its key, its states, and its entry in a ledger.

    Only its owner can read it, because the key or a state is enough to subtract the
    noise. It is removed before the run's parameters and report are written. A process
    that is killed earlier leaves it behind, to resume from, and as secret as the data.

    A key belongs to one command on one table, whose digest is saved with it. On other
    records the same key would draw the same noise, and the difference of the two
    releases would reveal the records.

    Attributes:
        path: path of the folder.
        run: the digest of command and table, keyed by the run's key.
    """

    path: Path
    run: str = ""

    def checked(self) -> "RunFolder":
        """Returns itself with its path resolved, if it may be removed later.

        Raises:
            ValueError: If it is no folder, is a link, or holds other files than those
                of a run.
        """
        rule = "a folder, no link to one, since it is removed in the end"
        is_fine = not self.path.is_symlink()
        _validate.require(is_fine, "--checkpoint", str(self.path), rule)
        _validate.require(
            can_be_folder(self.path)
            and (not self.path.exists() or self._is_of_a_run()),
            "--checkpoint",
            str(self.path),
            "a folder of a run that was stopped, an empty or a new one, that can be "
            "written to",
        )
        return RunFolder(Path(os.path.realpath(self.path)))

    def _is_of_a_run(self) -> bool:
        entries = {path.name: path for path in self.path.iterdir()}
        states = entries.pop(_STATES, None)
        paths = [] if states is None else [states]
        if states is not None and states.is_dir():
            paths += states.iterdir()
        return (
            all(map(_FILE.fullmatch, entries))
            and all(path.is_file() for path in entries.values())
            and all(path.is_dir() for path in paths)
            and all(_store.STATE.fullmatch(path.name) for path in paths[1:])
            and not any(path.is_symlink() for path in (*entries.values(), *paths))
        )

    def make(self) -> None:
        """Makes the folder if it is missing, readable by its owner alone."""
        _store.make_private(self.path)

    @property
    def states(self) -> Path:
        """Where a solver keeps its states."""
        return self.path / _STATES

    def has_states(self) -> bool:
        """Tells whether there is a state to resume from."""
        return self.states.is_dir() and any(self.states.iterdir())

    def kept_key(self) -> Key | None:
        """Returns the key of the run that was stopped, if there was one."""
        if not (self.path / _KEY).exists():
            return None
        _, content = self._read(_KEY)
        return key_of_words(content["key"])

    def bound(self, key: Key, parts: Iterable[bytes]) -> "RunFolder":
        """Returns itself as the folder of one run.

        The error depends on the records. It is for the curator, whose secret the folder
        is, and outside of the guarantee.

        Args:
            key: key of the run.
            parts: everything else that determines the run.

        Raises:
            ValueError: If the folder holds the key of another run.
        """
        words = np.asarray(jax.random.key_data(key))
        digest = hashlib.blake2b(words.tobytes(), digest_size=32)
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        bound = self._replace(run=digest.hexdigest())
        is_same = True
        if (self.path / _KEY).exists():
            run, saved = self._read(_KEY)
            is_same = run == {"run": bound.run} and np.array_equal(saved["key"], words)
        rule = (
            "of the same run, with the same options and the same records (for the "
            "curator's eyes only, outside the guarantee)"
        )
        _validate.require(is_same, "--checkpoint", str(self.path), rule)
        return bound

    def keep_key(self, key: Key) -> None:
        """Saves the key of the run, before anything is drawn from it."""
        words = np.asarray(jax.random.key_data(key))
        self._write(_KEY, {"key": words}, {"run": self.run})

    def paid(self, settings: str) -> str | None:
        """Returns the identifier of the run's entry in a ledger, if there is one.

        Args:
            settings: settings of the run; with others it is another run.
        """
        if not (self.path / _PAID).exists():
            return None
        content, _ = self._read(_PAID)
        return content["entry"] if content["settings"] == settings else None

    def keep_paid(self, entry: str, settings: str) -> None:
        """Saves the identifier of the run's entry in a ledger."""
        self._write(_PAID, {}, {"entry": entry, "settings": settings})

    def _read(self, name: str) -> tuple[dict[str, str], _store.Arrays]:
        return _store.unpacked(self.path / name)

    def _write(self, name: str, arrays: _store.Arrays, run: Mapping[str, str]) -> None:
        self.make()
        content = _store.packed(arrays, run)
        _files.write_whole(self.path / name, content, name="--checkpoint")

    def remove(self) -> None:
        """Removes the files of the run, the key first, before its release is written.

        Then removes the folder, unless it holds other files or cannot be removed, such
        as a mounted one. When this returns, the files are gone from the disk even if
        the machine stops.

        Raises:
            OSError: if a file is left from which the noise could be computed.
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
