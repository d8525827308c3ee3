"""Records grouped by user, so that all records of one user are one sample.

Neighboring data sets differ in one user: its records may be replaced by any records
with the same id, more or fewer, or none. The gradient of a user is the mean of the
gradients of its records, and an estimator bounds it like any other sample. So a robust
mean over users has the sensitivity of a robust mean over as many samples.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._sharding import manual_axes_of
from dpjax._tree import narrowed_numbers, register
from dpjax._types import PyTree


@register("records", "is_record")
@dataclass(frozen=True)
class UserRecords:
    """Holds the records of users, with one row for each user; `by_user` makes it.

    Attributes:
        records: pytree, leaves of shape (num_users, records_per_user, ...).
        is_record: shape (num_users, records_per_user), false where a user has no more
            records.
    """

    records: PyTree
    is_record: jax.Array


def by_user(
    records: PyTree, user_ids: jax.Array, *, num_users: int, records_per_user: int
) -> UserRecords:
    """Returns records with one row for each user, for training that protects users.

    The gradient of a user is the mean of its records' gradients, zero without records.
    Use the result as the data of a solver or of a batching, which then draw users, or
    as the batch of `robust_grad` and `streamed_grad`. It can be sharded over devices.
    In `dp_linear_model` and `dp_additive_model` each record counts by itself.

    Args:
        records: pytree, leaves of shape (n, ...).
        user_ids: integers of shape (n,), the user of each record. A record with an id
            outside of [0, num_users) belongs to no user and is left out. A user's id
            must not depend on records, so number users by a public list of names. If
            they were numbered by order of appearance, or by
            `np.unique(names, return_inverse=True)`, then one user who loses all records
            would renumber the other users.
        num_users: public number of users, with records or without.
        records_per_user: public bound. The first records of a user by index are
            kept, the surplus is dropped.

    Returns:
        `UserRecords` with leaves (num_users, records_per_user, ...), padded.

    Raises:
        ValueError: If a count is not positive, user_ids are no integers of shape (n,),
            or leaves disagree on n; inside `jax.shard_map`, if records may be sharded
            over devices. Never because of an id's value.

    Privacy:
        Replace-one is of users: the records of one user change under the same id, also
        in number, and there may be none. The ids, the number of users and
        records_per_user are public. If records move from one id to another, two users
        change.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import Winsorization
        >>> from dpjax.gradients import by_user, robust_grad
        >>> users = by_user(jnp.array([1.0, 3.0, 9.0]), jnp.array([0, 0, 1]),
        ...                 num_users=2, records_per_user=2)
        >>> print(users.records.tolist())
        [[1.0, 3.0], [9.0, 9.0]]
        >>> loss_fn = lambda w, x: 0.5 * (w - x) ** 2
        >>> print(robust_grad(loss_fn, Winsorization(1.0))(1.5, users))
        -0.75

    Reference:
        McMahan, Ramage, Talwar, Zhang (2018), "Learning differentially private
        recurrent language models", for a bound on the contribution of a user.
    """
    _validate.count(num_users=num_users, records_per_user=records_per_user)
    records = narrowed_numbers(records, "records")
    axes = manual_axes_of(records)
    rule = "those of all devices: call by_user before jax.shard_map, which shards users"
    _validate.require(not axes, "records", f"shards over the mesh axes {axes}", rule)
    ids = within_range(user_ids, num_users)
    return _laid_out(num_users, records_per_user, records, ids)


@partial(jax.jit, static_argnums=(0, 1))
def _laid_out(num_users, records_per_user, records, ids) -> UserRecords:
    """Returns the records of each user, (num_users, records_per_user, ...), padded."""
    num_records = _validate.leading_size(records, "records")
    shown = jax.ShapeDtypeStruct(ids.shape, ids.dtype)
    rule = f"integers of shape ({num_records},), one for each record"
    is_fine = ids.shape == (num_records,) and jnp.issubdtype(ids.dtype, jnp.integer)
    _validate.require(is_fine, "user_ids", shown, rule)
    ids = ids.astype(int)  # num_users may not fit into 8 or 16 bits
    # Records of no user are sorted to the end, behind the last user's.
    ids = jnp.where((ids >= 0) & (ids < num_users), ids, num_users)
    order = jnp.argsort(ids, stable=True)
    bounds = jnp.searchsorted(ids[order], jnp.arange(num_users + 1))
    start, stop = bounds[:-1, None], bounds[1:, None]
    place = start + jnp.arange(records_per_user)[None]
    is_record = place < stop
    # Pad with the user's first record: at zeros a loss may have no derivative.
    place = jnp.where(is_record, place, start)
    index = order.at[place].get(mode="fill", fill_value=num_records)
    index = jnp.where(start < stop, index, num_records)

    def take(x: jax.Array) -> jax.Array:
        return jnp.asarray(x).at[index].get(mode="fill", fill_value=0)

    return UserRecords(jax.tree.map(take, records), is_record)


def within_range(user_ids: Any, num_users: int) -> jax.Array:
    """Returns user ids as a JAX array, with -1 for NumPy ids out of range."""
    # JAX would cut 64 bits to 32, which could give a record to another user.
    if isinstance(user_ids, jax.Array):
        return user_ids
    ids = _validate.numbers(np.asarray(user_ids), "user_ids", "integers")
    if np.issubdtype(ids.dtype, np.integer):
        is_user = (ids >= 0) & (ids < num_users)
        ids = np.where(is_user, np.where(is_user, ids, 0).astype(np.int32), -1)
    return jnp.asarray(ids)
