"""Rows that are sharded over axes of a device mesh, and processes that share a mesh.

Inside `jax.shard_map` these axes are Manual: an array of rows is the shard of one
device, and collectives over the axes reach the other devices. `by_device` calls a
function in this way. A value is then replicated over an axis, or varies over it. JAX
tracks this, except with check_vma=False, where no value is known to vary.

Several processes call the same function with the same arguments, each with its own
share of the data. Keys must be equal: with different noise in each process, one value
is released several times, and the copies of the parameters diverge.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray, Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from dpjax import _validate
from dpjax._types import PyTree

AxisName = str | tuple[str, ...]
Device = Any  # a jax.Device, which type checkers do not accept as a type
Devices = tuple[Device, ...]


def row_axes(rows: PyTree, axis_name: AxisName | None) -> tuple[str, ...]:
    """Returns the names of the mesh axes over which rows are sharded, () if none."""
    # `by_device` needs them. They are those of axis_name, `()` for none; if it is None,
    # those of the arrays in `rows`, which must agree. Traced arrays show Explicit axes.
    axes_of_leaves = sorted({_leading_axes(x) for x in jax.tree.leaves(rows)} - {()})
    if axis_name is None:
        rule = f"given, as arrays are sharded over different axes: {axes_of_leaves}"
        _validate.require(len(axes_of_leaves) <= 1, "axis_name", axis_name, rule)
        return axes_of_leaves[0] if axes_of_leaves else ()
    axes = (axis_name,) if isinstance(axis_name, str) else axis_name
    is_fine = isinstance(axes, tuple) and (len(axes) > 0 or not axes_of_leaves)
    is_fine = is_fine and all(isinstance(axis, str) and axis for axis in axes)
    rule = "a mesh axis, or a tuple of different axes; () only if rows are not sharded"
    is_fine = is_fine and len(axes) == len(set(axes))
    _validate.require(is_fine, "axis_name", axis_name, rule)
    return axes


def manual_axes_of(rows: PyTree) -> tuple[str, ...]:
    """Returns the Manual axes over which rows vary; all if JAX does not track them."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return axes if _is_unchecked(axes) else tuple(sorted(varying_over(rows)))


def num_shares(axes: tuple[str, ...]) -> int:
    """Returns the number of shards of an array of rows, 1 outside `jax.shard_map`."""
    return jax.lax.axis_size(axes) if _are_manual(axes) else 1


def num_other_devices(x: jax.Array) -> int:
    """Returns the number of devices over the Auto and Explicit axes of x's mesh."""
    # A traced array may be sharded over Auto axes without showing it.
    mesh = jax.typeof(x).sharding.mesh
    sizes = zip(mesh.axis_types, mesh.axis_sizes, strict=True)
    return math.prod(size for kind, size in sizes if kind is not AxisType.Manual)


def by_device(
    function: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    axes: tuple[str, ...],
    replicated: PyTree,
    rows: PyTree,
) -> tuple[PyTree, PyTree]:
    """Returns `function(replicated, rows)`, which each device calls with its own rows.

    The function returns a replicated pytree, such as a mean by `psum`, and a pytree
    sharded like rows, over `axes` of `row_axes`. Rows are leaves (n, ...), or (n /
    devices, ...) in `shard_map`. A mesh must have the axes, and its devices divide n.
    """
    is_manual = _are_manual(axes)
    if is_manual:
        rule = (
            "mesh axes over which every array of rows is sharded, because rows that "
            "are the same on all devices would count several times"
        )
        vary = [varying_axes(x) >= set(axes) for x in jax.tree.leaves(rows)]
        _validate.require(_is_unchecked(axes) or all(vary), "axis_name", axes, rule)
    if is_manual or not axes:
        return function(replicated, rows)
    mesh = _mesh_of(axes, (rows, replicated))
    num_rows = _validate.leading_size(rows, "rows")
    num_devices = math.prod(mesh.shape[axis] for axis in axes)
    rule = (
        f"axes whose {num_devices} devices divide {num_rows} rows evenly: add rows "
        "that is_padding_example marks, and give the number without them as "
        "normalize_by"
    )
    _validate.require(num_rows % num_devices == 0, "axis_name", axes, rule)
    _check_other_axes(mesh, axes, (replicated, rows))
    by_row = PartitionSpec(axes)
    mapped = jax.shard_map(
        function,
        mesh=mesh,
        in_specs=(PartitionSpec(), by_row),
        out_specs=(PartitionSpec(), by_row),
        axis_names=set(axes),
    )

    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    # Under Explicit axes `shard_map` takes only arrays of its own sharding.
    if AxisType.Explicit in {types[axis] for axis in axes}:
        everywhere = NamedSharding(mesh, PartitionSpec())
        replicated = jax.sharding.reshard(replicated, everywhere)
        rows = jax.sharding.reshard(rows, NamedSharding(mesh, by_row))
    return jax.jit(mapped)(replicated, rows)


def gathered(tree: PyTree) -> PyTree:
    """Returns a tree with sharded arrays copied to all devices, such as for a sort."""

    def replicated(x: jax.Array, mesh: Mesh) -> jax.Array:
        place = NamedSharding(mesh, PartitionSpec())
        return jax.jit(lambda x: x, out_shardings=place)(x)

    return _over_auto_axes(replicated, tree)


def with_auto_axes(tree: PyTree) -> PyTree:
    """Returns a tree with the same shards of arrays, over Auto axes of the mesh."""
    # JAX rejects operations on an array over Explicit axes and an array without a mesh.

    def same(x: Any, mesh: Mesh) -> jax.Array:
        return jax.device_put(x, NamedSharding(mesh, x.sharding.spec))

    return _over_auto_axes(same, tree)


def _over_auto_axes(move: Callable[[Any, Mesh], jax.Array], tree: PyTree) -> PyTree:
    """Returns a tree with `move(array, mesh)` of arrays that are sharded by rows."""

    def moved(x: Any) -> Any:
        if isinstance(x, Tracer) or not _leading_axes(x):
            return x
        return move(x, Mesh(x.sharding.mesh.devices, x.sharding.mesh.axis_names))

    return jax.tree.map(moved, tree)


def psum(tree: PyTree, axes: tuple[str, ...]) -> PyTree:
    """Returns the sum over all devices, inside `by_device`."""
    return jax.lax.psum(tree, axes) if axes else tree


def from_all(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Returns the arrays x of all devices, stacked in the order of rows, replicated."""
    if not axes:
        return x[None]
    stacked = jnp.zeros((num_shares(axes), *x.shape), x.dtype)
    return psum(stacked.at[jax.lax.axis_index(axes)].set(x), axes)


def varying_axes(x: Any) -> frozenset[str]:
    """Returns the Manual axes over which a value or a type is known to vary."""
    kind = _type(x)
    # The attribute was called `vma` until JAX 0.10.
    kind = getattr(kind, "manual_axis_type", None) or kind
    return getattr(kind, "varying", None) or getattr(kind, "vma", None) or frozenset()


def varying(tree: PyTree, axes: Any) -> PyTree:
    """Returns values cast to vary over mesh axes, inside `jax.shard_map`."""
    # The gradient with respect to a replicated value is summed over devices. With
    # respect to a varying value, each device has its own gradient, of its own rows.

    def cast(x):
        missing = tuple(sorted(set(axes) - varying_axes(x)))
        return jax.lax.pcast(jnp.asarray(x), missing, to="varying") if missing else x

    return jax.tree.map(cast, tree)


def varying_with(tree: PyTree, also: PyTree = ()) -> PyTree:
    """Casts leaves of tree to vary over all axes over which a leaf of either varies."""
    return varying(tree, varying_over((tree, also)))


def varying_over(tree: PyTree) -> frozenset[str]:
    """Returns the axes over which at least one leaf varies."""
    return frozenset().union(*map(varying_axes, jax.tree.leaves(tree)))


def check_key_varies_as(value: PyTree, key: jax.Array) -> None:
    """Raises `ValueError` if a key varies over other mesh axes than the value.

    If devices add the same noise to different values, differences are released without
    noise. If they add different noise to a replicated value, it is released repeatedly.
    """
    of_key = varying_axes(key)
    shown = f"a key that varies over mesh axes {sorted(of_key)}"
    for leaf in jax.tree.leaves(value):
        axes = varying_axes(leaf)
        rule = (
            f"one that varies over the mesh axes {sorted(axes)}, as the value does: "
            "fold_in the axis index, or share one key. For rows that are sharded over "
            "mesh axes, give these as axis_name, and one key for all devices"
        )
        _validate.require(axes == of_key, "key", shown, rule)


def check_key_of_rows(key: jax.Array, rows: PyTree) -> None:
    """Requires a typed key that varies over all axes over which rows may vary."""
    # Otherwise each device would release a mean of its own rows, with the same noise.
    _validate.typed_key(key)
    given = [x for x in jax.tree.leaves(rows) if isinstance(x, jax.Array)]
    axes = manual_axes_of(given)
    rule = (
        "different on each device (jax.random.fold_in), as rows may be sharded over "
        f"the mesh axes {axes}. Or give axis_name: these axes, or () if every device "
        "has all rows; call a function without axis_name outside of jax.shard_map"
    )
    is_fine = set(axes) <= varying_axes(key)
    _validate.require(is_fine, "key", "a key that all devices share", rule)


def zeros(like: Any, shape: tuple[int, ...] | None = None) -> jax.Array:
    """Returns zeros with the dtype, sharding and varying axes of `like`."""
    # A loop may then add arrays like `like` to them. The shape is that of `like` by
    # default; any other must have as many axes.
    shape = like.shape if shape is None else shape
    sharding = _type(like).sharding
    is_explicit = isinstance(sharding, NamedSharding) and any(sharding.spec)
    x = jnp.zeros(shape, like.dtype, out_sharding=sharding if is_explicit else None)
    return varying(x, varying_axes(like))


def _type(x: Any) -> Any:
    return x if isinstance(x, jax.ShapeDtypeStruct | ShapedArray) else jax.typeof(x)


def _leading_axes(x: Any) -> tuple[str, ...]:
    sharding = _sharding_of(x)
    first = sharding.spec[0] if sharding is not None and len(sharding.spec) else None
    return (first,) if isinstance(first, str) else tuple(first or ())


def _sharding_of(x: Any) -> Any:
    """Returns the sharding of an array over a mesh, or None."""
    if isinstance(x, Tracer):
        return jax.typeof(x).sharding
    sharding = getattr(x, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) else None


def _are_manual(axes: tuple[str, ...]) -> bool:
    inside = [axis in jax.sharding.get_abstract_mesh().manual_axes for axis in axes]
    rule = "mesh axes that are all Manual, inside jax.shard_map, or none of them"
    _validate.require(all(inside) or not any(inside), "axis_name", axes, rule)
    return bool(axes) and all(inside)


def _is_unchecked(axes: tuple[str, ...]) -> bool:
    """Returns whether JAX does not track variation over axes (check_vma=False)."""
    return bool(axes) and not varying_axes(jax.lax.axis_index(axes))


def _mesh_of(axes: tuple[str, ...], tree: PyTree) -> Mesh | AbstractMesh:
    """Returns a mesh with all of `axes`: that of `jax.set_mesh`, or of arrays in tree.

    `by_device` maps a function over it; without such a mesh this raises `ValueError`.
    """
    meshes = [jax.sharding.get_abstract_mesh()]
    shardings = map(_sharding_of, jax.tree.leaves(tree))
    meshes += [sharding.mesh for sharding in shardings if sharding is not None]
    meshes = [mesh for mesh in meshes if set(axes) <= set(mesh.axis_names)]
    rule = "axes of a mesh that the arrays lie on, or that jax.set_mesh has set"
    _validate.require(bool(meshes), "axis_name", axes, rule)
    return meshes[0]


def _check_other_axes(
    mesh: Mesh | AbstractMesh, axes: tuple[str, ...], tree: PyTree
) -> None:
    """Raises `ValueError` if leaves are sharded over Explicit axes other than `axes`.

    `shard_map` over `axes` would gather these leaves on every device.
    """
    used = {
        axis
        for x in jax.tree.leaves(tree)
        for part in jax.typeof(x).sharding.spec
        for axis in ((part,) if isinstance(part, str) else part or ())
    }
    unnamed = sorted(used & set(mesh.axis_names) - set(axes))
    rule = (
        "all Explicit mesh axes over which arrays are sharded: in the mesh, make the "
        f"axes {unnamed} jax.sharding.AxisType.Auto"
    )
    _validate.require(not unnamed, "axis_name", axes, rule)


# -- Several processes


def devices_of(tree: PyTree) -> Devices:
    """Returns the devices of arrays; () if one process has all, or if traced."""
    for leaf in jax.tree.leaves(tree):
        if _is_elsewhere(leaf):
            return spanning(leaf.sharding.device_set)
    return ()


def spanning(devices: Iterable[Device]) -> Devices:
    """Returns devices in the same order in all processes; () if one process has all."""
    ordered = tuple(sorted(devices, key=lambda device: device.id))
    return ordered if len({device.process_index for device in ordered}) > 1 else ()


def processes_of(devices: Devices) -> list[int]:
    """Returns the processes of devices; () means this process."""
    return sorted({x.process_index for x in devices}) or [jax.process_index()]


def is_first_process(devices: Devices) -> bool:
    """Returns whether this process is the first process of devices."""
    return jax.process_index() == processes_of(devices)[0]


def rows_of_all(row: np.ndarray, devices: Devices) -> np.ndarray:
    """Gathers the vectors `row` (m,) of all processes, (processes, m), to compare them.

    All processes of `devices` must call it; () stands for this process only.
    """
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
    return by_device[[of.index(process) for process in processes_of(devices)]]


def digests(values: Mapping[str, PyTree], devices: Devices) -> dict[str, str]:
    """Returns a digest of each value, to tell if processes and runs have the same.

    A digest covers the bits, shapes, dtypes and paths of all leaves. The processes of
    `devices`, () for one process, must all call it. Each reads its own shards of an
    array, sends digests only, and gets the same results.

    Raises:
        ValueError: On all processes, if values that are not sharded differ.
    """
    by_name = {
        name: (_digest(_own(x)), _digest(_shards(x))) for name, x in values.items()
    }
    row = np.frombuffer(b"".join(map(b"".join, by_name.values())), np.uint8)
    rows = rows_of_all(row, devices).reshape(-1, len(by_name), 2, 32)
    for name, own in zip(by_name, rows[:, :, 0].transpose(1, 0, 2), strict=True):
        differ = (own != own[0]).any(axis=1)
        unlike = [i for i, x in zip(processes_of(devices), differ, strict=True) if x]
        given = f"another value in processes {unlike} than in the first process"
        _validate.require(not unlike, name, given, "the same in all processes")
    return {
        name: _digest([own, *(part[i, 1].tobytes() for part in rows)]).hex()
        for i, (name, (own, _)) in enumerate(by_name.items())
    }


def _is_elsewhere(leaf: Any) -> bool:
    """Returns whether other processes hold a part of a concrete array."""
    is_array = isinstance(leaf, jax.Array) and _validate.is_concrete(leaf)
    return is_array and not leaf.is_fully_addressable


def _digest(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def _own(value: PyTree) -> Iterator[bytes]:
    """Yields the bytes of all leaves of which each process has every entry."""
    # `digests` hashes them, and raises an error if processes differ. An array sharded
    # over processes adds its path, dtype and shape only; `_shards` yields its entries.
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
