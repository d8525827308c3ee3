"""Normalization and groups: formulas, bounds under attack, norms from factors."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE
from dpjax.estimators import (
    Clipping,
    Grouped,
    Normalization,
    SmoothedClipping,
    Truncation,
)
from tests.unit.estimators.test_clipping import NORM_ERROR, exact_norm
from tests.unit.refusals import refused

pytestmark = pytest.mark.optimized

BOUNDS = np.array([0.7, 3.0], np.float32)
GROUPS = ("w", ("b", "c/0"))
GROUPED = {
    "clipping": Grouped(Clipping(BOUNDS), GROUPS),
    "smoothed": Grouped(SmoothedClipping(jnp.array(BOUNDS), 9.21), GROUPS),
    "normalization": Grouped(Normalization(0.1), GROUPS),
    "one bound": Grouped(Clipping(1.2), GROUPS),
}
each = pytest.mark.parametrize("name", GROUPED)


def tree_of(rows):
    """Samples (n, 5) as trees: two coordinates in the first group."""
    rows = jnp.asarray(rows, jnp.float32)
    return {"w": rows[:, :2], "b": rows[:, 2], "c": [rows[:, 3:]]}


def rows_of(tree):
    columns = [tree["w"], tree["b"][:, None], tree["c"][0]]
    return np.concatenate([np.asarray(x, np.float64) for x in columns], axis=1)


@pytest.mark.parametrize("offset", [1e-12, 1e-3, 1.0, 1e30])
def test_normalization_is_its_formula(offset):
    sizes = np.float32([1e-37, 1e-20, 1e-3, 1.0, 9e6, 3e37])
    rows = sizes[:, None] * np.float32([0.6, 0.0, -0.8])
    norms = np.linalg.norm(np.asarray(rows, np.float64), axis=1)
    estimator = Normalization(offset)
    found = jax.jit(jax.vmap(estimator.influence))(rows)
    expected = rows / (norms + np.float64(np.float32(offset)))[:, None]
    expected[norms >= 2.0**63 * offset] = 0  # such samples count for nothing
    # So does what is far below float32's range beside the offset.
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-36)
    assert np.linalg.norm(found, axis=1).max() <= 1 + NORM_ERROR
    assert estimator.limit == 1


def test_normalization_is_differentiable_at_zero_and_beyond():
    @jax.jit
    def value(offset, x):
        return Normalization(offset).influence(x)

    derivatives = jax.jit(jax.jacfwd(value, (0, 1)))
    np.testing.assert_allclose(derivatives(0.1, jnp.zeros(2))[1], 10 * np.eye(2))
    with jax.enable_x64(True):
        for size in (1e-3, 0.1, 30.0):
            x = size * jnp.array([0.6, 0.8])
            found = derivatives(jnp.float64(0.1), x)
            eps = 1e-6
            by_offset = (value(0.1 + eps, x) - value(0.1 - eps, x)) / (2 * eps)
            np.testing.assert_allclose(found[0], by_offset, rtol=1e-5, atol=1e-9)
            norm = np.linalg.norm(x)
            exact = np.eye(2) / (norm + 0.1)
            exact -= np.outer(x, x) / norm / (norm + 0.1) ** 2
            np.testing.assert_allclose(found[1], exact, rtol=1e-6)


@each
def test_groups_are_estimated_by_themselves(name):
    grouped = GROUPED[name]
    samples = tree_of(np.random.default_rng(0).standard_t(1.5, (9, 5)))
    found = grouped(samples)
    first, second = grouped._each()
    b, c = second((samples["b"], samples["c"]))
    expected = {"w": first(samples["w"]), "b": b, "c": c}
    chex.assert_trees_all_close(found, expected, rtol=1e-6)
    limits = [float(first.limit), float(second.limit)]
    assert grouped.limit == pytest.approx(np.hypot(*limits), rel=1e-6)
    traced = jax.jit(lambda x: x.limit)(grouped)
    np.testing.assert_allclose(traced, grouped.limit, rtol=1e-6)


def test_limits_that_would_overflow():
    grouped = Grouped(Clipping(jnp.array([3e29, 4e29])), ("a", "b"))
    assert grouped.limit == pytest.approx(5e29, rel=1e-6)
    np.testing.assert_allclose(jax.jit(lambda x: x.limit)(grouped), 5e29, rtol=1e-6)


WILD = np.float32([0.7, -0.7, 3.0, 1.0, 1e-45, 1e19, -3e38, np.inf, np.nan, 0.0])


@each
def test_no_neighbour_moves_groups_beyond_the_sensitivity(name):
    # All groups of the replaced record turn round at once, and by wild values.
    n, grouped = 17, GROUPED[name]
    rng = np.random.default_rng(1)
    directions = rng.normal(size=(60, 5))
    rows = np.concatenate(
        [1e15 * directions, rng.choice(WILD, (60, 5)), 2 * np.eye(5)]
    ).astype(np.float32)
    others = np.where(np.arange(len(rows))[:, None] < 90, -rows, rng.permutation(rows))
    check_moves(grouped, n, rows, others, least=0.99)


def check_moves(mean, n, rows, others, *, least):
    """Checks how far one of n equal rows moves a mean that is replaced, and removed.

    At most as far as stated, and in the l2 norm at least so much of it.
    """

    @jax.jit
    def changes(rows, others):
        def change(row, other):
            base = jnp.tile(row, (n, 1))
            replaced = mean(tree_of(base.at[3].set(other)), jnp.zeros(n, bool))
            removed = mean(tree_of(base), jnp.arange(n) == 3)
            return [rows_of_one(x) for x in (mean(tree_of(base)), replaced, removed)]

        return jax.lax.map(lambda pair: change(*pair), (rows, others))

    first, *seconds = (np.asarray(x, np.float64) for x in changes(rows, others))
    for second, relation in zip(seconds, (REPLACE_ONE, ADD_OR_REMOVE_ONE), strict=True):
        stated = mean.sensitivity(n, rows.shape[1], relation)
        moves = np.linalg.norm(first - second, axis=1)
        assert moves.max() <= stated.l2
        assert moves.max() > least * stated.l2
        assert np.abs(first - second).max() <= stated.linf
        assert np.abs(first - second).sum(axis=1).max() <= stated.l1


def rows_of_one(mean):
    return jnp.concatenate([mean["w"], mean["b"][None], mean["c"][0]])


def network(params, example):
    x, y = example
    hidden = jnp.tanh(x @ params["first"]["kernel"] + params["first"]["bias"])
    return (hidden @ params["last"]["kernel"]).sum() * y


@pytest.fixture(scope="module")
def factored():
    rng = np.random.default_rng(2)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    params = {
        "first": {"kernel": normal(6, 40), "bias": normal(40)},
        "last": {"kernel": normal(40, 3)},
    }
    targets = normal(12).at[:3].set(jnp.array([0.0, 1e25, jnp.nan]))
    return params, (normal(12, 6), targets)


FACTORED = {
    "normalization": Normalization(0.3),
    "two layers": Grouped(Clipping(jnp.array([0.2, 2.0])), ("first", "last")),
    "by leaf": Grouped(Normalization(0.3), ("first/kernel", "first/bias", "last")),
    "bias and last": Grouped(
        SmoothedClipping(jnp.array([0.2, 2.0])), ("first/kernel", ("last", "first"))
    ),
}


@pytest.mark.parametrize("name", FACTORED)
def test_norms_from_factors_are_those_of_gradients(name, factored):
    estimator, (params, batch) = FACTORED[name], factored
    mask = jnp.arange(12) == 5

    @jax.jit
    def both(params, batch):
        grads = dpjax.per_sample_grad(network)(params, batch)
        folded = dpjax.robust_grad(network, estimator, microbatch_size=4)
        return folded(params, batch, mask), estimator(grads, mask)

    chex.assert_trees_all_close(*both(params, batch), rtol=1e-5, atol=1e-6)


def test_a_group_for_every_leaf(factored):
    params, _ = factored
    grouped = Grouped.by_leaf(Clipping(1.0), params)
    assert grouped.groups == ("first/bias", "first/kernel", "last/kernel")
    assert grouped.limit == pytest.approx(3**0.5)
    one = Grouped.by_leaf(Clipping(1.0), jnp.zeros(3))
    assert exact_norm(one.influence(jnp.full(3, 1e10))) == pytest.approx(1)


BAD = [
    (lambda: Grouped(Truncation(1.0), ("a",)), "estimator must be norm-wise"),
    (lambda: Grouped(Clipping(1.0), ()), "groups must be a tuple of names"),
    (lambda: Grouped(Clipping(1.0), "a"), "groups must be a tuple of names"),
    (lambda: Grouped(Clipping(1.0), ("a", ())), "groups must be a tuple of names"),
    (lambda: Grouped(Clipping(1.0), ("a", ("b", "a"))), "none of them twice"),
    (lambda: Grouped(Clipping(1.0), (0, 1)), "groups must be a tuple of names"),
    (lambda: Grouped(Clipping(np.ones(3)), ("a", "b")), r"arrays of shape \(2,\)"),
    (lambda: Grouped(Clipping(np.zeros(2)), ("a", "b")), "l2_clip_norm must be"),
]


test_bad_arguments_are_named = refused(lambda make: make(), *BAD)


def test_groups_that_do_not_fit_are_named():
    samples = tree_of(np.ones((4, 5)))
    for groups, message in [
        (("w", "b", "c", "d"), r"groups must be names of leaves.*\['d'\] have none"),
        (("w", "c"), "groups must be names that every leaf begins with.* 'b' does not"),
        (("w", "b", "c", ""), r"\[''\] have none"),
        (("w", "b", "c/"), "as 'c/0' does not"),
    ]:
        for apply in (lambda x: x, jax.jit):
            with pytest.raises(ValueError, match=message):
                apply(Grouped(Clipping(1.0), groups))(samples)
    assert Grouped(Clipping(1.0), ("w", ""))(samples)["b"].shape == ()
