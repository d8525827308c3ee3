"""Runs that outlive their process: saved every so many steps, and resumed."""

import contextlib
import os
import platform
import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _processes, _validate
from dpjax._types import PyTree


class Checkpoint(NamedTuple):
    """Where a run saves its state, and how often.

    A run that finds its own state in the folder resumes from it: the same call after a
    kill returns the same parameters, bit for bit on the same machine, and draws its
    noise once. The folder belongs to one run from before its first step, and to one
    process at a time. A state is written whole before the last one is removed. That of
    a finished run stays, and the same call returns the same release from it.

    Several processes of `jax.distributed` save together, into one folder that all of
    them see. A run resumes on as many processes and devices as it had.

    The folder is as SECRET as the data: it holds the state of the random keys, and who
    knows the noise can subtract it. It is made readable to its owner alone. Keep it
    apart from what is published, and remove it after the last use: nothing here does.

    Attributes:
        folder: a folder of this run alone; it is made where it is missing.
        every: saved at every so many steps, and at the last.

    Raises:
        ValueError: by a solver, if the folder cannot be written to or made, is a link
            to nowhere, or belongs to something else or to another run: one with another
            program (loss, steps, batching), compiler (XLA_FLAGS included), device or
            processor, number of devices or processes, data, key or number. With the
            same key on other data, or rounded otherwise, the difference of two releases
            would show the data without noise. That it was refused tells of the data: it
            is for the holder of the folder, outside of the guarantee. Or if another
            process has the folder open, or processes see different folders.
        ImportError: by a solver, without `pip install "dpjax[checkpoints]"` (orbax).

    Example:
        >>> import tempfile
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import losses, solvers
        >>> from dpjax.estimators import Winsorization
        >>> def run(**options):
        ...     return solvers.dp_gradient_descent(
        ...         losses.squared, jnp.zeros(2), (jnp.eye(2), jnp.ones(2)),
        ...         key=jax.random.key(0), epsilon=1.0, delta=0.1, learning_rate=0.1,
        ...         estimator=Winsorization(1.0), num_steps=4, **options).params
        >>> checkpoint = solvers.Checkpoint(tempfile.mkdtemp(), every=2)
        >>> execution = solvers.Execution(checkpoint=checkpoint)
        >>> first = run(execution=execution)
        >>> bool((run(execution=execution) == first).all())
        True
    """

    folder: str | os.PathLike[str]
    every: int = 100

    def checked(self) -> "Checkpoint":
        """Returns itself, or raises for a field out of its range."""
        _validate.require(
            isinstance(self, Checkpoint) and isinstance(self.folder, str | os.PathLike),
            "checkpoint",
            self,
            "a Checkpoint(folder, every)",
        )
        _validate.count(every=self.every)
        _validate.require(
            _validate.can_be_folder(Path(self.folder)),
            "checkpoint",
            str(self.folder),
            "a folder that can be written to, or made",
        )
        return self


class Store:
    """The states of one run in a folder; use `opened`."""

    def __init__(self, manager: Any, run: Mapping[str, str]) -> None:
        self._manager, self._run = manager, run

    def claim(self) -> None:
        """Writes whose folder this is, before the first step uses its keys."""
        import orbax.checkpoint as ocp

        if self._manager.latest_step() is None:
            run = ocp.args.JsonSave(dict(self._run))
            self._manager.save(0, args=ocp.args.Composite(run=run))

    def latest(self, like: PyTree) -> tuple[int, PyTree]:
        """Returns the last step that is saved and its state; (0, like) before it."""
        import orbax.checkpoint as ocp

        step = self._manager.latest_step()
        if not step:
            return 0, like
        template = jax.tree.map(_without_key, like)
        saved = self._manager.restore(
            step, args=ocp.args.Composite(state=ocp.args.StandardRestore(template))
        )
        return step, jax.tree.map(_as, saved["state"], like)

    def save(self, step: int, state: PyTree) -> None:
        """Saves a state, whole or not at all, and then removes the one before it."""
        import orbax.checkpoint as ocp

        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(jax.tree.map(_without_key, state)),
                run=ocp.args.JsonSave(dict(self._run)),
            ),
        )

    def check(self, devices: _processes.Devices) -> None:
        """Requires that what is saved belongs to this run, seen by all processes."""
        import orbax.checkpoint as ocp

        step = self._manager.latest_step()
        seen = _processes.rows_of_all(np.array([-1 if step is None else step]), devices)
        _validate.require(
            bool((seen == seen[0]).all()),
            "checkpoint",
            str(self._manager.directory),
            "a folder that all processes share (they see different steps)",
        )
        if step is None:
            return
        try:
            saved = self._manager.restore(
                step, args=ocp.args.Composite(run=ocp.args.JsonRestore())
            )["run"]
        except (KeyError, FileNotFoundError):  # a folder with a number for its name
            raise ValueError(
                "checkpoint must be a folder of one run's states alone, got "
                f"{str(self._manager.directory / str(step))!r}, which is none."
            ) from None
        others = [name for name in self._run if self._run[name] != saved.get(name)]
        _validate.require(
            not others,
            "checkpoint",
            str(self._manager.directory),
            f"of the same run (another {', another '.join(others)} was saved)",
        )


@contextlib.contextmanager
def opened(
    checkpoint: Checkpoint, run: Mapping[str, str], devices: _processes.Devices
) -> Iterator[Store]:
    """Opens a folder of states, and refuses those of another run.

    Args:
        checkpoint: the folder; all processes see the same one.
        run: what tells this run from others: from `identity`.
        devices: those of several processes, or ().
    """
    try:
        import orbax.checkpoint  # noqa: F401
    except ImportError as why:
        raise ImportError(
            'checkpoints need orbax: pip install "dpjax[checkpoints]"'
        ) from why

    _validate.require(
        len(_processes.indices(devices)) == jax.process_count(),
        "checkpoint",
        checkpoint,
        f"None where not all {jax.process_count()} processes take part in the run",
    )
    folder = Path(checkpoint.folder).absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    _check_shared(folder, devices)
    with _locked(folder, devices), _manager(folder) as manager:
        store = Store(manager, run)
        store.check(devices)
        yield store


def _manager(folder: Path) -> Any:
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(
        max_to_keep=1,
        cleanup_tmp_directories=True,  # of a process that was killed while it saved
        enable_async_checkpointing=False,
        create=False,
    )
    return ocp.CheckpointManager(folder, options=options)


@contextlib.contextmanager
def _locked(folder: Path, devices: _processes.Devices) -> Iterator[None]:
    """Keeps other processes out, until this one leaves or ends.

    Two runs that both find an empty folder would both draw from the same key.
    """
    import fcntl  # which Windows lacks: the rest of the package works there

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        is_free = True
        if _processes.is_first(devices):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                is_free = False
        _validate.require(
            bool(_processes.rows_of_all(np.array([is_free]), devices).all()),
            "checkpoint",
            str(folder),
            "a folder that no other process has open",
        )
        yield
    finally:
        os.close(descriptor)


def _check_shared(folder: Path, devices: _processes.Devices) -> None:
    """Requires that all processes see one folder: else they would wait for ever."""
    if not devices:
        return
    names = _processes.rows_of_all(np.frombuffer(os.urandom(16), np.uint8), devices)
    is_first = _processes.is_first(devices)
    marker = folder / f".{names[0].tobytes().hex()}"
    if is_first:
        marker.touch(mode=0o600)
    _processes.rows_of_all(names[0], devices)  # it has been made
    seen = _processes.rows_of_all(np.array([marker.exists()]), devices)
    if is_first:
        marker.unlink()
    _validate.require(
        bool(seen.all()),
        "checkpoint",
        str(folder),
        "a folder that all processes share",
    )


def identity(
    program: str, arguments: Mapping[str, PyTree], devices: _processes.Devices
) -> dict[str, str]:
    """Returns digests that tell a run from others, by what they are of.

    Args:
        program: the text of the run's program.
        arguments: what it takes; for each, the bits of all leaves, their shapes, types
            and places count.
        devices: those of several processes, or ().
    """
    lie_on = {
        device
        for leaf in jax.tree.leaves(dict(arguments))
        if isinstance(leaf, jax.Array)
        for device in leaf.sharding.device_set
    }
    of = [device.process_index for device in lie_on]
    return {
        **_processes.digests({"program": program, **arguments}, devices),
        "compiler or device": " ".join(
            (
                jax.__version__,
                metadata.version("jaxlib"),
                os.environ.get("XLA_FLAGS", ""),
                *sorted({_kind(device) for device in lie_on}),
            )
        ),
        # With another number the same sums would be rounded otherwise.
        "number of processes or devices": str([of.count(i) for i in sorted(set(of))]),
    }


def _kind(device: Any) -> str:
    """Returns what kind of device this is; of a CPU, with what it can do.

    The compiler takes the widest instructions that it finds, and each width adds up in
    another order.
    """
    if device.platform != "cpu":
        return device.device_kind
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.findall(r"(?mi)^(?:model name|flags|features)\s*:.*$", text)
    words = sorted(set(found)) or [platform.processor()]
    return " ".join([device.device_kind, platform.machine(), *words])


def is_key(leaf: Any) -> bool:
    """Tells whether a leaf is a typed key."""
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)


def _without_key(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def _as(leaf: Any, like: Any) -> Any:
    """Returns what was saved as a leaf of the run: a key, bound to devices or not."""
    if not like.committed:
        leaf = jnp.asarray(np.asarray(leaf))  # orbax binds it to its device
    if not is_key(like):
        return leaf
    return jax.random.wrap_key_data(leaf, impl=str(jax.random.key_impl(like)))
