"""Records grouped by user, so that all records of one user are one sample.

Neighboring data sets differ in one user: its records may be replaced by any records
with the same id, more or fewer, or none. The gradient of a user is the mean or the sum
of the gradients of its records, and an estimator bounds it like any other sample. So a
robust mean over users has the sensitivity of a robust mean over as many samples.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._sharding import manual_axes_of
from dpjax._sums.stream import SampleStream
from dpjax._tree import register
from dpjax._types import PyTree

UserGradient = Literal["mean", "sum"]  # of the gradients of a user's records


@register("records", "is_record")
@dataclass(frozen=True)
class UserRecords:
    """Holds the records of users, with one row for each user; `by_user` makes it.

    Attributes:
        records: pytree, leaves of shape (num_users, records_per_user, ...).
        is_record: shape (num_users, records_per_user), false where a user has no more
            records.
        user_gradient: "mean" or "sum" of the gradients of a user's records.
    """

    records: PyTree
    is_record: jax.Array
    user_gradient: UserGradient = "mean"


def by_user(
    records: PyTree,
    user_ids: jax.Array,
    *,
    num_users: int,
    records_per_user: int,
    user_gradient: UserGradient = "mean",
) -> UserRecords:
    """Returns records with one row for each user, for training that protects users.

    Use the result as the data of a solver or of `Batching.draw`, which then draw users,
    or the batch of `robust_grad` and `streamed_grad`. It can be sharded over devices.

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
        user_gradient: "mean" or "sum" of the gradients of a user's records. The
            gradient of a user without records is zero.

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
    _validate.choice(UserGradient, user_gradient=user_gradient)
    _validate.count(num_users=num_users, records_per_user=records_per_user)
    records = _validate.numbers(records, "records")
    axes = manual_axes_of(records)
    rule = "those of all devices: call by_user before jax.shard_map, which shards users"
    _validate.require(not axes, "records", f"shards over the mesh axes {axes}", rule)
    ids = within_range(user_ids, num_users)
    return _laid_out(num_users, records_per_user, user_gradient, records, ids)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _laid_out(num_users, records_per_user, user_gradient, records, user_ids):
    num_records = _validate.leading_size(records, "records")
    spans = UserSpans.of(user_ids, num_records, None, num_users)
    return spans.gather(records, spans.bounds, records_per_user, user_gradient)


class UserSpans(NamedTuple):
    """Holds record indices sorted by user, (n,), and each user's range of them."""

    order: jax.Array
    bounds: jax.Array

    @classmethod
    def of(cls, user_ids, num_records, is_padding_example, num_users) -> "UserSpans":
        """Returns indices (n,) that sort records by user, and the range of each user.

        user_ids are integers (n,). Padding, and ids outside of [0, num_users), belong
        to no user.
        """
        ids = within_range(user_ids, num_users)
        shown = jax.ShapeDtypeStruct(ids.shape, ids.dtype)
        rule = f"integers of shape ({num_records},), one for each record"
        is_fine = ids.shape == (num_records,) and jnp.issubdtype(ids.dtype, jnp.integer)
        _validate.require(is_fine, "user_ids", shown, rule)
        ids = ids.astype(int)  # num_users may not fit into 8 or 16 bits
        is_users = (ids >= 0) & (ids < num_users)
        if is_padding_example is not None:
            is_users &= ~jnp.asarray(is_padding_example)
        # Records of no user are sorted to the end, behind the last bound.
        ids = jnp.where(is_users, ids, num_users)
        order = jnp.argsort(ids, stable=True)
        bounds = jnp.searchsorted(ids[order], jnp.arange(num_users + 1))
        return cls(order, jnp.stack([bounds[:-1], bounds[1:]], axis=1))

    def gather(self, records, bounds, records_per_user, user_gradient) -> UserRecords:
        """Returns k users' records, padded; `bounds` (k, 2) are ranges in `order`."""
        num_records = len(self.order)
        start, stop = bounds[:, :1], bounds[:, 1:]
        place = start + jnp.arange(records_per_user)[None]
        is_record = place < stop
        # Pad with the user's first record: at zeros a loss may have no derivative.
        place = jnp.where(is_record, place, start)
        index = self.order.at[place].get(mode="fill", fill_value=num_records)
        index = jnp.where(start < stop, index, num_records)

        def take(x: jax.Array) -> jax.Array:
            return jnp.asarray(x).at[index].get(mode="fill", fill_value=0)

        return UserRecords(jax.tree.map(take, records), is_record, user_gradient)


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


def check_users(user_ids, num_users, records_per_user, user_gradient) -> None:
    """Raises `ValueError` if these arguments of `robust_grad` do not fit."""
    # user_ids are integers (n,), or None if samples are records and not users.
    _validate.choice(UserGradient, user_gradient=user_gradient)
    if user_ids is None:
        rule, many = "None without user_ids", records_per_user
        _validate.require(num_users is None, "num_users", num_users, rule)
        _validate.require(many is None, "records_per_user", many, rule)
        return
    _validate.count(num_users=num_users)
    if records_per_user is not None:
        _validate.count(records_per_user=records_per_user)


def stream_of_users(
    rows: SampleStream, is_padding_example, axes, users
) -> SampleStream:
    """Returns a stream with a gradient for each user, from `rows`, one for each record.

    An estimator then bounds users. `users` has user_ids, num_users, records_per_user
    and user_gradient of `robust_grad`. Records where is_padding_example (n,) is true
    count for nothing. `axes`, over which records are sharded, must be ().
    """
    user_ids, num_users, records_per_user, user_gradient = users
    rule = (
        "of a batch on one device: to shard users over devices, lay their records out "
        "by dpjax.gradients.by_user"
    )
    _validate.require(not axes, "user_ids", f"shards over the mesh axes {axes}", rule)
    _validate.mask(is_padding_example, rows.num_rows)
    spans = UserSpans.of(user_ids, rows.num_rows, is_padding_example, num_users)
    size = min(records_per_user or rows.num_rows, rows.num_rows)
    make_factored = rows.make_factored

    def of_users(shared: PyTree, bounds: jax.Array) -> tuple[PyTree, UserRecords]:
        params, batch, spans = shared
        return params, spans.gather(batch, bounds, size, user_gradient)

    def make_samples(shared: PyTree, bounds: jax.Array) -> Any:
        return rows.make_samples(*of_users(shared, bounds))

    def make_factors(shared: PyTree, bounds: jax.Array) -> Any:
        assert make_factored is not None
        make = make_factored(*of_users(shared, bounds[:1]))
        return lambda some: make(of_users(shared, some)[1])

    return SampleStream(
        make_samples,
        (rows.shared, rows.rows, spans),
        spans.bounds,
        rows.microbatch_size,
        None if make_factored is None else make_factors,
    )
