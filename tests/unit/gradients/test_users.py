"""Gradients of users: who counts, for how much, and what one user can move."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import gradients, transforms
from dpjax.estimators import Clipping, MedianOfMeans, Winsorization
from tests.unit.refusals import refused

NUM_RECORDS, NUM_USERS = 24, 6
PARAMS = {"w": jnp.array([[0.3, -0.2], [0.5, 0.1]]), "b": jnp.array([0.1, -0.4])}


def loss_fn(params, example):
    hidden = jnp.tanh(example["x"] @ params["w"] + params["b"])
    return 0.5 * jnp.square(jnp.sum(hidden) - example["y"])


RNG = np.random.default_rng(0)
BATCH = {
    "x": jnp.asarray(RNG.standard_t(2, (NUM_RECORDS, 2)), jnp.float32),
    "y": jnp.asarray(3 * RNG.standard_normal(NUM_RECORDS), jnp.float32),
}
# User 3 has no records; -1 and 6 are nobody, the extremes of the type as well.
IDS = np.random.default_rng(1).choice(np.int32([0, 1, 2, 4, 5]), NUM_RECORDS)
IDS[[3, 7, 11, 12]] = [-1, NUM_USERS, 2**31 - 1, -(2**31)]
MOST = [(Clipping(0.7), 3), (Winsorization(0.4), NUM_RECORDS)]
MOST += [(MedianOfMeans(Winsorization(1.0), 3), 1)]


@pytest.fixture(scope="module")
def by_record():
    grads = jax.jit(gradients.per_sample_grad(loss_fn))(PARAMS, BATCH)
    return jax.tree.map(np.asarray, grads)


def of_users(by_record, most):
    """Gradients of users from those of records, one user after the other."""

    def one(x, user):
        mine = np.flatnonzero(user == IDS)[:most]
        return x[mine].sum(axis=0) / max(len(mine), 1)

    return jax.tree.map(
        lambda x: jnp.stack([one(x, user) for user in range(NUM_USERS)]), by_record
    )


@pytest.mark.parametrize(("estimator", "most"), MOST)
def test_a_robust_gradient_is_the_estimator_of_users_gradients(
    by_record, estimator, most
):
    sizes = {"num_users": NUM_USERS, "records_per_user": most}

    @jax.jit
    def mean(params, batch, ids):
        users = gradients.by_user(batch, ids, **sizes)
        return gradients.robust_grad(loss_fn, estimator)(params, users)

    result = mean(PARAMS, BATCH, IDS)
    samples = of_users(by_record, most)
    chex.assert_trees_all_close(result, estimator(samples), rtol=2e-05, atol=1e-6)


def test_a_row_of_users_is_a_sample(by_record):
    # Laid out, masked like any row, privatized; the surplus is dropped by index.
    users = gradients.by_user(BATCH, IDS, num_users=NUM_USERS, records_per_user=2)
    assert users.is_record.sum(axis=1).tolist()[3] == 0
    assert gradients.check_model(loss_fn, PARAMS, users).problems == ()
    counts = np.bincount(IDS[(IDS >= 0) & (IDS < 6)], minlength=6)
    np.testing.assert_array_equal(users.is_record.sum(axis=1), np.minimum(counts, 2))
    optimizer = transforms.privatize(
        Clipping(0.7), noise_multiplier=0.0, key=jax.random.key(0), sampled=False
    )

    @jax.jit
    def update(users, mask):
        stream = gradients.streamed_grad(loss_fn)(PARAMS, users)
        state, marks = optimizer.init(PARAMS), {"is_padding_example": mask}
        return optimizer.update(stream, state, PARAMS, **marks)[0]

    mask = jnp.arange(NUM_USERS) == 1
    samples = of_users(by_record, 2)
    expected = Clipping(0.7)(samples, mask)
    chex.assert_trees_all_close(update(users, mask), expected, rtol=2e-05, atol=1e-6)
    materialised = jax.jit(gradients.per_sample_grad(loss_fn))(PARAMS, users)
    chex.assert_trees_all_close(materialised, samples, rtol=2e-05, atol=1e-6)


def test_many_records_of_a_user_are_differentiated_in_turn():
    x = jnp.linspace(-1.0, 1.0, 150)
    users = gradients.by_user(x, jnp.zeros(150, int), num_users=1, records_per_user=150)
    grad_fn = gradients.robust_grad(
        lambda w, x: (jnp.square(w - x), x), Winsorization(9.0), has_aux=True
    )
    mean, aux = jax.jit(grad_fn)(1.0, users)
    np.testing.assert_allclose(mean, 2.0, rtol=1e-5)
    assert aux.shape == (1, 150)


@pytest.mark.parametrize(
    "ids",
    [
        np.array([1, 2**32 + 1, -(2**63), 2**63 - 1]),  # JAX would keep 32 bits
        np.array([1, 2**64 - 1, 2**32, 300], np.uint64),
        [1, -1, 300, 2**40],
    ],
)
def test_ids_of_any_size_are_somebodys_or_nobodys(ids):
    users = gradients.by_user(jnp.arange(4), ids, num_users=300, records_per_user=4)
    assert users.is_record.sum() == users.is_record[1].sum() == 1
    few = jnp.array([1, 255, 0, 0], jnp.uint8)  # cannot hold the number 300
    users = gradients.by_user(jnp.arange(4), few, num_users=300, records_per_user=1)
    assert jnp.flatnonzero(users.is_record[:, 0]).tolist() == [0, 1, 255]


test_bad_arguments_are_named = refused(
    lambda ids: gradients.by_user(jnp.ones(4), ids, num_users=2, records_per_user=1),
    (jnp.zeros(3, int), "user_ids must be integers"),
    (jnp.zeros(4), "user_ids must be integers"),
)
