"""The folder from which a killed `dpjax train` or `dpjax tune` resumes."""

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
from dpjax._types import Key
from dpjax.mechanisms._shared import key_of_words

_KEY, _STATES, _ITERATES, _PAID = "key.npz", "states", "iterates.npz", "paid.npz"
# Also while they are written, which a kill leaves behind.
_NAMES = r"(key|iterates|paid)\.npz"
_FILE = re.compile(rf"{_NAMES}|\.{_NAMES}\.\d+\.part")


class RunFolder(NamedTuple):
    """A folder for one run: its key, its states, and the iterates shown.

    It is made for its owner alone, since whoever has the key or a state can subtract
    the noise, and removed before the run's parameters and report appear. A process that
    is killed before leaves it behind, to resume from, and as secret as the data.

    A key belongs to one command on one table, whose digest lies beside it: on other
    records the same noise would be drawn, and a difference of releases would show them.

    Attributes:
        path: where it is.
        run: the digest of command and table, keyed by the run's key.
    """

    path: Path
    run: str = ""

    def checked(self) -> "RunFolder":
        """Returns itself, by the one path without links, if it may be removed later.

        Raises:
            ValueError: if it is no folder, a link to one, or holds files of something
                else.
        """
        rule = "a folder, no link to one, since it is removed in the end"
        is_fine = not self.path.is_symlink()
        _validate.require(is_fine, "--checkpoint", str(self.path), rule)
        _validate.require(
            _validate.can_be_folder(self.path)
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
        kept = [] if states is None else [states]
        if states is not None and states.is_dir():
            kept += states.iterdir()
        return (
            all(map(_FILE.fullmatch, entries))
            and all(path.is_file() for path in entries.values())
            and all(path.is_dir() for path in kept)
            and all(_store.STATE.fullmatch(path.name) for path in kept[1:])
            and not any(path.is_symlink() for path in (*entries.values(), *kept))
        )

    def make(self) -> None:
        """Makes the folder where it is missing, and its owner's alone."""
        _store.make_private(self.path)

    @property
    def states(self) -> Path:
        """Where a solver or a search keeps its states."""
        return self.path / _STATES

    def has_states(self) -> bool:
        """Tells whether there is a state to resume from."""
        return self.states.is_dir() and any(self.states.iterdir())

    def kept_key(self) -> Key | None:
        """Returns the key of the run that was stopped, if there was one."""
        if not (self.path / _KEY).exists():
            return None
        _, kept = self._read(_KEY)
        return key_of_words(kept["key"])

    def bound(self, key: Key, parts: Iterable[bytes]) -> "RunFolder":
        """Returns itself as the folder of one run.

        That it refuses tells of the records: it is for the curator, whose secret the
        folder is, and outside of the guarantee.

        Args:
            key: of the run.
            parts: all that the run computes from, but for the key.

        Raises:
            ValueError: if a key is kept here, and it is another run's.
        """
        words = np.asarray(jax.random.key_data(key))
        digest = hashlib.blake2b(words.tobytes(), digest_size=32)
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        bound = self._replace(run=digest.hexdigest())
        is_same = True
        if (self.path / _KEY).exists():
            run, kept = self._read(_KEY)
            is_same = run == {"run": bound.run} and np.array_equal(kept["key"], words)
        rule = (
            "of the same run, with the same options and the same records (for the "
            "curator's eyes only, outside the guarantee)"
        )
        _validate.require(is_same, "--checkpoint", str(self.path), rule)
        return bound

    def keep_key(self, key: Key) -> None:
        """Keeps the key of the run, before anything is drawn from it."""
        words = np.asarray(jax.random.key_data(key))
        self._write(_KEY, {"key": words}, {"run": self.run})

    def paid(self, settings: str) -> str | None:
        """Returns the entry of a ledger that paid for this run, if there is one.

        Args:
            settings: of the run; one of others is another run.
        """
        if not (self.path / _PAID).exists():
            return None
        kept, _ = self._read(_PAID)
        return kept["entry"] if kept["settings"] == settings else None

    def keep_paid(self, entry: str, settings: str) -> None:
        """Keeps the entry of a ledger that pays for the run."""
        self._write(_PAID, {}, {"entry": entry, "settings": settings})

    def iterates(self) -> dict[int, np.ndarray]:
        """Returns the iterates that were shown, by their step."""
        if not (self.path / _ITERATES).exists():
            return {}
        _, kept = self._read(_ITERATES)
        return dict(zip(kept["steps"].tolist(), kept["iterates"], strict=True))

    def keep_iterates(self, iterates: Mapping[int, np.ndarray]) -> None:
        """Keeps the iterates that were shown."""
        steps, shown = np.array([*iterates]), np.array([*iterates.values()])
        self._write(_ITERATES, {"steps": steps, "iterates": shown}, {})

    def _read(self, name: str) -> tuple[dict[str, str], _store.Arrays]:
        return _store.unpacked(self.path / name)

    def _write(self, name: str, arrays: _store.Arrays, run: Mapping[str, str]) -> None:
        self.make()
        content = _store.packed(arrays, run)
        _files.write_whole(self.path / name, content, name="--checkpoint")

    def remove(self) -> None:
        """Removes what the run kept, its key first, before its release appears.

        And then the folder, but where something else has come into it, or where it
        cannot be removed, such as a mounted one. All of it is gone from the disk when
        this returns, even if the machine stops then.

        Raises:
            OSError: if something is left that tells of the noise.
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
                "remove it, for who finds it can subtract the run's noise."
            )
        _store.sync(self.path)
        with contextlib.suppress(OSError):
            self.path.rmdir()
        _store.sync(self.path.parent)
