"""The folder from which a killed `dpjax train` or `dpjax tune` resumes."""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _files, _validate
from dpjax._types import Key
from dpjax.solvers import Checkpoint

_WORDS = 2  # of the key, before the digest
_KEY, _STATES, _ITERATES = "key.npy", "states", "iterates.npz"
_PAID, _SEARCH = "paid.json", "search.npz"  # which `dpjax.tuning` writes
_STATE = re.compile(r"\d+(\.orbax-checkpoint-tmp.*)?")  # by its step; while it is saved
# Also while they are written, which a kill leaves behind.
_NAMES = r"(key\.npy|iterates\.npz|paid\.json|search\.npz)"
_FILE = re.compile(rf"{_NAMES}|\.{_NAMES}\.\d+\.part")


class RunFolder(NamedTuple):
    """A folder for one run: its key, its solver's states, and the iterates shown.

    It is made for its owner alone, since whoever has the key or a state can subtract
    the noise, and removed before the run's parameters and report appear. A process that
    is killed before leaves it behind, to resume from, and as secret as the data.

    A key belongs to one command on one table, whose digest lies beside it: on other
    records the same noise would be drawn, and a difference of releases would show them.

    Attributes:
        path: where it is.
        run: the digest of command and table, keyed by the run's key; of 32 bytes.

    Example:
        >>> import tempfile
        >>> folder = RunFolder(Path(tempfile.mkdtemp(), "run"))
        >>> folder.keep_key(jax.random.key(3))
        >>> folder.kept_key()
        Array((), dtype=key<fry>) overlaying:
        [0 3]
        >>> folder.remove()
    """

    path: Path
    run: bytes = b""

    def checked(self) -> "RunFolder":
        """Returns itself, by the one path without links, if it may be removed later.

        Raises:
            ValueError: if it is no folder, a link to one, or holds files of something
                else.
        """
        _validate.require(
            not self.path.is_symlink(),
            "--checkpoint",
            str(self.path),
            "a folder, no link to one, since it is removed in the end",
        )
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
            and all(_STATE.fullmatch(path.name) for path in kept[1:])
            and not any(path.is_symlink() for path in (*entries.values(), *kept))
        )

    def make(self) -> None:
        """Makes the folder where it is missing, and its owner's alone."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)

    def has_states(self) -> bool:
        """Tells whether there is a state to resume from."""
        states = self.path / _STATES
        has_steps = states.is_dir() and any(states.iterdir())
        return has_steps or (self.path / _SEARCH).exists()

    def kept_key(self) -> Key | None:
        """Returns the key of the run that was stopped, if there was one."""
        if not (self.path / _KEY).exists():
            return None
        words = jnp.asarray(np.load(self.path / _KEY)[:_WORDS])
        return jax.random.wrap_key_data(words, impl="threefry2x32")

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
        digest = hashlib.blake2b(_bytes_of(key), digest_size=32)
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        bound = self._replace(run=digest.digest())
        kept = self.path / _KEY
        _validate.require(
            not kept.exists() or np.load(kept).tobytes() == bound._key_file(key),
            "--checkpoint",
            str(self.path),
            "of the same run, with the same options and the same records (for the "
            "curator's eyes only, outside the guarantee)",
        )
        return bound

    def keep_key(self, key: Key) -> None:
        """Keeps the key of the run, before anything is drawn from it."""
        self.make()
        with _files.replacing(self.path / _KEY) as file:
            np.save(file, np.frombuffer(self._key_file(key), np.uint32))

    def _key_file(self, key: Key) -> bytes:
        return _bytes_of(key) + self.run

    def paid(self, settings: str) -> str | None:
        """Returns the entry of a ledger that paid for this run, if there is one.

        Args:
            settings: of the run; one of others is another run.
        """
        path = self.path / _PAID
        if not path.exists():
            return None
        entry, of = json.loads(path.read_text("utf-8"))
        return entry if of == settings else None

    def keep_paid(self, entry: str, settings: str) -> None:
        """Keeps the entry of a ledger that pays for the run."""
        self.make()
        content = json.dumps([entry, settings]).encode()
        _files.write_whole(self.path / _PAID, content, name="--checkpoint")

    def checkpoint(self, every: int) -> Checkpoint:
        """Returns where the solver saves its states."""
        return Checkpoint(self.path / _STATES, every)

    def iterates(self) -> dict[int, np.ndarray]:
        """Returns the iterates that were shown, by their step."""
        if not (self.path / _ITERATES).exists():
            return {}
        with np.load(self.path / _ITERATES) as saved:
            return dict(zip(saved["steps"].tolist(), saved["iterates"], strict=True))

    def keep_iterates(self, iterates: Mapping[int, np.ndarray]) -> None:
        """Keeps the iterates that were shown."""
        shown = np.array([*iterates.values()])
        with _files.replacing(self.path / _ITERATES) as file:
            np.savez(file, steps=list(iterates), iterates=shown)

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
        for step in (self._sync, self.path.rmdir, RunFolder(self.path.parent)._sync):
            with contextlib.suppress(OSError):  # or the system knows no such waiting
                step()

    def _sync(self) -> None:
        """Waits until the disk has what was removed from the folder."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _bytes_of(key: Key) -> bytes:
    return np.asarray(jax.random.key_data(key)).tobytes()
