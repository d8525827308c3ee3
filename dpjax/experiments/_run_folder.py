"""The folder from which a killed `dpjax train` is taken up again."""

import io
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._types import Key
from dpjax.solvers import Checkpoint

_KEY, _STATES, _ITERATES = "key.npy", "states", "iterates.npz"


class RunFolder(NamedTuple):
    """A folder for one run: its key, its solver's states, and the iterates shown.

    It is made for its owner alone, since whoever has the key can subtract the noise,
    and removed when the run's files are written.

    Attributes:
        path: where it is.

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

    def check(self) -> None:
        """Requires a folder that may be removed when the run is over.

        Raises:
            ValueError: if it is no folder, or holds files of something else.
        """
        _validate.require(
            not self.path.exists()
            or (
                self.path.is_dir()
                and {path.name for path in self.path.iterdir()}
                <= {_KEY, _STATES, _ITERATES, _partial(_KEY), _partial(_ITERATES)}
            ),
            "--checkpoint",
            str(self.path),
            "a folder of a run that was stopped, an empty or a new one",
        )

    def kept_key(self) -> Key | None:
        """Returns the key of the run that was stopped, if there was one."""
        if not (self.path / _KEY).exists():
            return None
        words = jnp.asarray(np.load(self.path / _KEY))
        return jax.random.wrap_key_data(words, impl="threefry2x32")

    def keep_key(self, key: Key) -> None:
        """Keeps the key of the run, before anything is drawn from it."""
        content = io.BytesIO()
        np.save(content, np.asarray(jax.random.key_data(key)))
        self._write(_KEY, content.getvalue())

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
        content = io.BytesIO()
        np.savez(content, steps=list(iterates), iterates=np.array([*iterates.values()]))
        self._write(_ITERATES, content.getvalue())

    def remove(self) -> None:
        """Removes the folder: the run is over, and nobody needs its key."""
        shutil.rmtree(self.path)

    def _write(self, name: str, content: bytes) -> None:
        """Writes a file whole or not at all."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)
        partial = self.path / _partial(name)
        try:
            with open(partial, "wb") as sink:
                sink.write(content)
                sink.flush()
                os.fsync(sink.fileno())
            os.replace(partial, self.path / name)
        finally:
            partial.unlink(missing_ok=True)


def _partial(name: str) -> str:
    """Returns the name of a file while it is written, which a kill leaves behind."""
    return f".{name}.part"
