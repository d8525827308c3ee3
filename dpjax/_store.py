"""A folder with the states of one run, from which dpjax resumes the run.

Solvers, searches and the command all rely on these rules:

* The folder is as secret as the data, since it holds the state of random keys. Only its
  owner can read it.
* It belongs to one run from before the first key is used. Another run is refused,
  because it would draw the same noise for other data.
* One process has it open at a time; processes of `jax.distributed` have it together.
* A state is completely on the disk before the previous state is removed, so a process
  may be killed at any time.
"""

import contextlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from dpjax import _files, _sharding, _validate

# Names of the folders of states: a step, with ".part" while the state is written.
STATE = re.compile(r"\d+(\.part)?")
_PIECE = re.compile(r"\d+\.npz|\..*\.part")  # names of the files of each process
Arrays = Mapping[str, np.ndarray]


class Store(NamedTuple):
    """Reads and writes states of a run, arrays that it resumes from; `opened` makes it.

    Attributes:
        folder: a folder with nothing else.
        run: digests of everything that identifies the run, by name.
        option: name of the folder in messages.
        devices: the devices of several processes, or ().
    """

    folder: Path
    run: Mapping[str, str]
    option: str = "checkpoint"
    devices: _sharding.Devices = ()

    @property
    def step(self) -> int | None:
        """The last saved step; 0 before the first one, None in an empty folder."""
        names = [path.name for path in self.folder.iterdir()]
        return max((int(name) for name in names if name.isdecimal()), default=None)

    def claim(self) -> None:
        """Saves the run's digests, before the first key is used."""
        if self.step is None:
            self.save(0, {})

    def latest(self) -> Arrays:
        """Returns the arrays of the last saved step."""
        return self._read(self.step)[1]

    def save(self, step: int, arrays: Arrays) -> None:
        """Saves arrays as the state of a step, all or none, and removes the last state.

        All processes must call it, each with its own part of the arrays.
        """
        part = self.folder / f"{step}.part"
        if self._is_first:
            part.mkdir(mode=0o700)
        self._of_all(0)  # waits for all processes
        content = packed(arrays, self.run)
        path = part / self._piece
        _files.write_whole(path, content, name=self.option, is_secret=True)
        sync(part)
        self._of_all(0)
        if self._is_first:
            part.rename(self.folder / str(step))
            sync(self.folder)
            self._remove("", keep=str(step))
        self._of_all(0)

    def check(self) -> None:
        """Raises `ValueError` if the saved state is of a run with other arguments."""
        # Such a run would draw the noise of the saved run again, for other data.
        if self._is_first:
            self._remove(".part")  # a process may have been killed while it wrote
        step = self.step
        steps = self._of_all(-1 if step is None else step)
        rule = "a folder that all processes share (they see different steps)"
        self._require(bool((steps == steps[0]).all()), rule)
        if step is None:
            return
        saved, _ = self._read(step)
        different = [name for name in self.run if self.run[name] != saved.get(name)]
        rule = f"new or of this run (it is of another {', another '.join(different)})"
        self._require(not different, rule)

    def _read(self, step: int | None) -> tuple[dict[str, str], Arrays]:
        """Returns the run's digests and this process's arrays, as saved at a step."""
        path = self.folder / str(step) / self._piece
        # Any folder may have a number as its name, but only a state has this file.
        if not path.parent.joinpath("0.npz").exists():
            raise ValueError(
                f"{self.option} must be a new folder, or one with only a run's states, "
                f"got one with {str(path.parent)!r}, which is no state. Choose another."
            )
        # If fewer processes saved it, this one has no file; the first has the digests.
        return unpacked(path if path.exists() else path.with_name("0.npz"))

    def _remove(self, ending: str, keep: str = "") -> None:
        """Removes complete ("") or partial (".part") state folders, except `keep`."""
        for folder in [*self.folder.iterdir()]:
            is_state = STATE.fullmatch(folder.name) and folder.suffix == ending
            if is_state and folder.name != keep and folder.is_dir():
                for path in [*folder.iterdir()]:
                    if _PIECE.fullmatch(path.name):
                        path.unlink()
                with contextlib.suppress(OSError):  # an unknown file is in it
                    folder.rmdir()

    def _require(self, is_fine: bool, rule: str) -> None:
        _validate.require(is_fine, self.option, str(self.folder), rule)

    @property
    def _is_first(self) -> bool:
        return _sharding.is_first_process(self.devices)

    @property
    def _piece(self) -> str:
        return f"{_sharding.processes_of(self.devices).index(jax.process_index())}.npz"

    def _of_all(self, number: int) -> np.ndarray:
        """Returns the numbers of all processes, after waiting for them."""
        return _sharding.rows_of_all(np.array([number], np.int32), self.devices)


@contextlib.contextmanager
def opened(
    path: str | os.PathLike[str],
    run: Mapping[str, str],
    *,
    option: str = "checkpoint",
    devices: _sharding.Devices = (),
) -> Iterator[Store]:
    """Opens a folder of states of this run, and yields a `Store` to save and read them.

    `run` has digests of the run's arguments; `Store` explains the rest. This raises
    `ValueError` for a folder of another run, for one that holds other files, and for
    one that another process has open: two runs that both find an empty folder would
    both draw from the same key. The lock ends with the block or the process.
    """
    import fcntl  # not on Windows, where the rest of the package works

    folder = Path(path).absolute()
    _files.check_folder(option, folder)
    make_private(folder)
    store = Store(folder, run, option, devices)
    if devices:  # all processes must see one folder, or they would wait forever
        names = _sharding.rows_of_all(np.frombuffer(os.urandom(16), np.uint8), devices)
        marker = folder / f".{names[0].tobytes().hex()}"
        if store._is_first:
            marker.touch(mode=0o600)
        store._of_all(0)  # until the first process has made the marker
        is_shared = store._of_all(marker.exists()).all()
        if store._is_first:
            marker.unlink()
        store._require(bool(is_shared), "a folder that all processes share")
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        is_free = True
        if store._is_first:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                is_free = False
        is_free = bool(store._of_all(is_free).all())
        store._require(is_free, "a folder that no other process has open")
        store.check()
        yield store
    finally:
        os.close(descriptor)


def make_private(folder: Path) -> None:
    """Makes a folder if it is missing, readable by its owner alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def sync(folder: Path) -> None:
    """Waits until the disk has all renames and removals in a folder."""
    with contextlib.suppress(OSError):  # some systems cannot sync a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def packed(arrays: Arrays, run: Mapping[str, str]) -> bytes:
    """Returns the bytes of a file with arrays of any dtype and the run's digests."""
    kinds = {name: [str(x.dtype), x.shape] for name, x in arrays.items()}
    head = json.dumps([dict(run), kinds]).encode()
    parts = [np.frombuffer(x.tobytes(), np.uint8) for x in arrays.values()]
    file = io.BytesIO()
    np.savez(file, np.frombuffer(head, np.uint8), *parts)
    return file.getvalue()


def unpacked(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Returns the run's digests and the arrays of a file that `packed` made.

    Raises `ValueError` for another or a damaged file, without its secret content.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as saved:
            run, kinds = json.loads(saved["arr_0"].tobytes())
            arrays = {
                name: np.frombuffer(
                    saved[f"arr_{i}"].tobytes(), np.dtype(dtype)
                ).reshape(shape)
                for i, (name, (dtype, shape)) in enumerate(kinds.items(), 1)
            }
        return dict(run), arrays
    except OSError:
        raise
    except Exception:  # zipfile, NumPy and json raise errors of many types
        rule = "a file that a run has written in full"
        raise ValueError(f"checkpoint must have {rule}, got {str(path)!r}.") from None
