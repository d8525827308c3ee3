"""Checks that several processes agree before they compute together.

Each process calls the same function with the same arguments and its own share of the
data. Keys above all must be equal: with different noise in each process, one value is
released several times, and the copies of the parameters diverge.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpjax import _validate
from dpjax._types import PyTree

Device = Any  # a jax.Device, which type checkers take for a value
Devices = tuple[Device, ...]


def devices_of(tree: PyTree) -> Devices:
    """Returns the devices over which arrays are sharded; () if one process has them.

    Traced arrays also give (), because their devices are not known.
    """
    for leaf in jax.tree.leaves(tree):
        if _is_elsewhere(leaf):
            return spanning(leaf.sharding.device_set)
    return ()


def spanning(devices: Iterable[Device]) -> Devices:
    """Returns devices in one order, the same in all processes; () if one has all."""
    ordered = tuple(sorted(devices, key=lambda device: device.id))
    return ordered if len({device.process_index for device in ordered}) > 1 else ()


def indices(devices: Devices) -> list[int]:
    """Returns the processes of devices; () stands for this one's."""
    return sorted({x.process_index for x in devices}) or [jax.process_index()]


def is_first(devices: Devices) -> bool:
    """Returns whether this process is the first of those."""
    return jax.process_index() == indices(devices)[0]


def rows_of_all(row: np.ndarray, devices: Devices) -> np.ndarray:
    """Returns all processes' rows (m,), in the order of `indices`; all must call it."""
    if not devices:
        return row[None]
    mesh = Mesh(np.array(devices), ("devices",))
    rows = jax.make_array_from_callback(
        (len(devices), row.size),
        NamedSharding(mesh, PartitionSpec("devices")),
        lambda _: row[None],
    )
    gather = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))
    by_device = np.asarray(gather(rows))
    of = [device.process_index for device in devices]
    return by_device[[of.index(process) for process in indices(devices)]]


def digests(values: Mapping[str, PyTree], devices: Devices) -> dict[str, str]:
    """Returns digests of values, the same on all processes; all must call it.

    A digest covers the bits, shapes, dtypes and paths of all leaves. Each process reads
    its own shards of a sharded array; only digests are sent.

    Raises:
        ValueError: On all processes, if they differ in values that are not sharded.
    """
    by_name = {
        name: (_digest(_own(x)), _digest(_shards(x))) for name, x in values.items()
    }
    row = np.frombuffer(b"".join(map(b"".join, by_name.values())), np.uint8)
    rows = rows_of_all(row, devices).reshape(-1, len(by_name), 2, 32)
    for name, own in zip(by_name, rows[:, :, 0].transpose(1, 0, 2), strict=True):
        differ = (own != own[0]).any(axis=1)
        unlike = [i for i, x in zip(indices(devices), differ, strict=True) if x]
        rule = "the same in all processes"
        _validate.require(
            not unlike, name, f"others in processes {unlike} than in the first", rule
        )
    return {
        name: _digest([own, *(part[i, 1].tobytes() for part in rows)]).hex()
        for i, (name, (own, _)) in enumerate(by_name.items())
    }


def _is_elsewhere(leaf: Any) -> bool:
    """Returns whether a part of a concrete array is in other processes."""
    is_array = isinstance(leaf, jax.Array) and _validate.is_concrete(leaf)
    return is_array and not leaf.is_fully_addressable


def _digest(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def _own(value: PyTree) -> Iterator[bytes]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(value):
        if isinstance(leaf, str):
            yield leaf.encode()
            continue
        bits = _bits(leaf)
        yield repr((jax.tree_util.keystr(path), bits.dtype, bits.shape)).encode()
        if not _is_elsewhere(bits):
            yield np.ascontiguousarray(bits).tobytes()
        elif bits.is_fully_replicated:
            yield np.ascontiguousarray(bits.addressable_data(0)).tobytes()


def _shards(value: PyTree) -> Iterator[bytes]:
    for leaf in jax.tree.leaves(value):
        if _is_elsewhere(leaf) and not leaf.is_fully_replicated:
            shards = _bits(leaf).addressable_shards
            for shard in sorted(shards, key=lambda shard: shard.device.id):
                yield repr(shard.index).encode()
                yield np.ascontiguousarray(shard.data).tobytes()


def _bits(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
