"""Checkpoints: a run saves its state every few steps, and can resume from it."""

import contextlib
import os
import platform
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _sharding, _store, _validate
from dpjax._files import can_be_folder
from dpjax._store import Store
from dpjax._types import PyTree


class Checkpoint(NamedTuple):
    """Sets in which folder a run saves its state, and how often.

    A run that finds its own state in the folder resumes from it: after a kill the same
    call returns the same parameters, bit for bit on the same machine, and draws its
    noise once. Even before its first step a run claims the folder, for one process at a
    time. The state of a finished run stays, and the same call returns the same release.

    Several processes of `jax.distributed` save together, into one folder that all of
    them see. A run resumes only on as many processes and devices as it had.

    The folder is as SECRET as the data, because it holds the random keys: anyone who
    knows them can subtract the noise. Only its owner may read it. Keep it apart from
    published files, and remove it after the last use; dpjax does not remove it.

    Attributes:
        folder: a folder of this run alone; it is made if it is missing.
        every: number of steps between two saved states. The last step is always saved.

    Raises:
        ValueError: From a solver, if the folder cannot be written to or made, is a link
            to nowhere, is open in another process, is not the same for all processes,
            holds other files, or belongs to another run. Runs differ if their program
            (loss, steps, batching), compiler (XLA_FLAGS included), device or processor,
            number of devices or processes, data, key or any number differs. With the
            same key and other data or other rounding, the difference of two releases
            would show the data without noise. The error depends on the data, and no
            guarantee covers it: only the folder's owner may see it.

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
        """Returns the checkpoint, or raises if its folder or `every` is invalid."""
        folder, rule = getattr(self, "folder", None), "a Checkpoint(folder, every)"
        is_fine = isinstance(self, Checkpoint) and isinstance(folder, str | os.PathLike)
        _validate.require(is_fine, "checkpoint", self, rule)
        _validate.count(every=self.every)
        is_fine = can_be_folder(Path(self.folder))
        rule = "a folder that can be written to, or made"
        _validate.require(is_fine, "checkpoint", str(folder), rule)
        return self


def opened(
    checkpoint: Checkpoint, run: Mapping[str, str], devices: _sharding.Devices
) -> AbstractContextManager[Store]:
    """Opens the folder of a checkpoint, and raises if it belongs to another run."""
    rule = f"None unless all {jax.process_count()} processes take part in the run"
    is_fine = len(_sharding.processes_of(devices)) == jax.process_count()
    _validate.require(is_fine, "checkpoint", checkpoint, rule)
    return _store.opened(checkpoint.folder, run, devices=devices)


def latest(store: Store, like: PyTree) -> tuple[int, PyTree]:
    """Returns the last saved step and its state; (0, like) if none is saved."""
    if not store.step:
        return 0, like
    arrays = store.latest()
    leaves, treedef = jax.tree.flatten(like)
    loaded = [_as(leaf, arrays, i) for i, leaf in enumerate(leaves)]
    return store.step, jax.tree.unflatten(treedef, loaded)


def save(store: Store, step: int, state: PyTree) -> None:
    """Saves a state, completely or not at all, and then removes the state before it."""
    pieces = {
        f"{i}.{j}": np.asarray(piece)
        for i, leaf in enumerate(jax.tree.leaves(state))
        for j, piece in enumerate(_pieces(_without_key(leaf)))
    }
    store.save(step, pieces)


def identity(
    program: str, arguments: Mapping[str, PyTree], devices: _sharding.Devices
) -> dict[str, str]:
    """Returns digests by name, which tell whether a saved state belongs to this run."""
    # `program` is the text of the compiled steps, `arguments` are the pytrees that they
    # read, and `devices` the devices of all processes, () for a single process.
    used = {
        device
        for leaf in jax.tree.leaves(dict(arguments))
        if isinstance(leaf, jax.Array)
        for device in leaf.sharding.device_set
    }
    of = [device.process_index for device in used]
    versions = jax.__version__, metadata.version("jaxlib")
    flags = os.environ.get("XLA_FLAGS", "")
    kinds = sorted({_kind(device) for device in used})
    return {
        **_sharding.digests({"program": program, **arguments}, devices),
        "compiler or device": " ".join((*versions, flags, *kinds)),
        # With another number of devices the same sums would be rounded otherwise.
        "number of processes or devices": str([of.count(i) for i in sorted(set(of))]),
    }


def _kind(device: Any) -> str:
    """Returns a JAX device's kind, for a CPU with its model, for the run's identity."""
    if device.platform != "cpu":
        return device.device_kind
    # The compiler uses the widest instructions of a CPU, and the order in which
    # numbers are added depends on this width.
    text = ""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
    lines = re.findall(r"(?mi)^(?:model name|flags|features)\s*:.*$", text)
    words = sorted(set(lines)) or [platform.processor()]
    return " ".join([device.device_kind, platform.machine(), *words])


def is_key(leaf: Any) -> bool:
    """Tells whether a leaf is a typed key."""
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)


def _without_key(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def _pieces(leaf: jax.Array) -> list[Any]:
    """Returns the pieces of leaf that this process holds: all of it, or its shards."""
    if leaf.is_fully_addressable or leaf.is_fully_replicated:
        return [leaf]
    return [shard.data for shard in _shards(leaf)]


def _shards(leaf: jax.Array) -> list[Any]:
    return sorted(leaf.addressable_shards, key=lambda shard: shard.device.id)


def _as(like: Any, arrays: _store.Arrays, i: int) -> Any:
    """Returns a resumed run's leaf number i, with type and sharding of `like`."""
    # `arrays` has this process's shards of all leaves: "i.j" is shard j of leaf i.
    bits = _without_key(like)
    pieces = [arrays[f"{i}.{j}"] for j, _ in enumerate(_pieces(bits))]
    joined, place = pieces[0], (bits.shape, bits.sharding)
    if not like.committed:
        leaf = jnp.asarray(joined)
    elif bits.is_fully_addressable or bits.is_fully_replicated:
        leaf = jax.make_array_from_callback(*place, lambda index: joined[index])
    else:
        shards = [
            jax.device_put(piece, shard.device)
            for piece, shard in zip(pieces, _shards(bits), strict=True)
        ]
        leaf = jax.make_array_from_single_device_arrays(*place, shards)
    if not is_key(like):
        return leaf
    return jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(like))
