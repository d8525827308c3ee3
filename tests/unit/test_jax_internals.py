"""Canaries: what the library takes from other packages beside stable interfaces.

Where one fails after an upgrade, the file that it names is the one to look at.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import pld
from jax.experimental.multihost_utils import process_allgather
from jax.extend import core

from dpjax import _validate, mechanisms
from dpjax._tree import materialized
from dpjax.gradients._loss import evaluate, is_plain_jit

assert callable(process_allgather)  # for `parties._transport`


def test_numbers_are_materialized_by_a_call_on_cpu_and_a_barrier_elsewhere():
    # `_tree.materialized`: without the call, numbers would be made twice.
    text = jax.jit(lambda x: materialized([x * x])[0] + 1).lower(jnp.ones(8)).compile()
    assert " call(" in text.as_text()
    text = jax.jit(jax.lax.optimization_barrier).lower(jnp.ones(8)).as_text()
    assert "optimization_barrier" in text


def test_programs_are_read_equation_by_equation():
    # `gradients._loss`, `gradients._factored` and `tuning._select` read `jax.extend`.
    closed = jax.make_jaxpr(lambda x: jax.jit(jnp.sin)(x) * 2.0)(1.0)
    inner, product = closed.jaxpr.eqns
    assert is_plain_jit(inner)
    assert isinstance(inner.params["jaxpr"], core.ClosedJaxpr)
    assert isinstance(product.invars[1], core.Literal)
    assert product.invars[1].val == 2.0
    seen = []

    def rule(place, equation, inputs, run):
        seen.append((place, equation.primitive.name))
        return run(equation)

    (result,) = evaluate(closed, [jnp.float32(1)], rule)
    assert seen == [((0, 0), "sin"), ((1,), "mul")]
    assert result == 2 * jnp.sin(1.0)


def test_loops_are_read_as_jax_writes_them():
    """`gradients._factored` reads these parameters of two operations."""

    def loss(w, x):
        step = lambda x, _: (jax.checkpoint(jnp.dot)(x, w), None)  # noqa: E731
        return jax.lax.scan(step, x, None, 3)

    (scan,) = jax.make_jaxpr(loss)(jnp.ones((2, 2)), jnp.ones(2)).jaxpr.eqns
    assert scan.primitive is core.primitives.scan_p
    assert {"jaxpr", "length", "reverse", "unroll"} <= scan.params.keys()
    (remat,) = scan.params["jaxpr"].jaxpr.eqns
    assert remat.primitive is core.primitives.remat_p
    assert {"jaxpr", "policy", "prevent_cse"} <= remat.params.keys()


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad])
def test_traced_values_are_told_from_concrete_ones(transform):
    # `_validate.is_concrete`: a traced value must never be looked at.
    seen = []
    value = jnp.ones(1) if transform is jax.vmap else jnp.float32(1)
    transform(lambda x: seen.append(_validate.is_concrete(x)) or x * 1.0)(value)
    assert not any(seen)
    assert _validate.is_concrete(jnp.ones(1))


def test_split_keys_are_the_words_of_which_bits_are_the_exclusive_or():
    # `mechanisms._samplers` takes both.
    key = jax.random.key(0)
    words = jax.random.key_data(jax.random.split(jax.random.clone(key), (3, 5)))
    bits = jax.random.bits(key, (3, 5), "uint32")
    assert (words[..., 0] ^ words[..., 1] == bits).all()


def test_dp_accounting_makes_losses_from_deltas_and_from_masses():
    # `accounting._sampled_gaussian` and `accounting._likelihood_ratios` make them.
    deltas, masses = np.r_[1 - np.exp(-1), np.tanh(0.5), 0], np.r_[1, 0, np.e]
    pmf = pld.pld_pmf.DensePLDPmf(1.0, -1, masses / (1 + np.e), 0, True)
    connect_dots = pld.pld_pmf.create_pmf_pessimistic_connect_dots
    for one in pmf, connect_dots(1.0, np.arange(-1, 2), deltas):
        losses = pld.privacy_loss_distribution.PrivacyLossDistribution(one)
        assert losses.get_delta_for_epsilon(0.0) == pytest.approx(np.tanh(0.5))


def test_jax_privacy_counts_guesses_and_optimizes_strategies():
    auditing = pytest.importorskip("jax_privacy.auditing")  # as `audit._one_run` does
    auditor = auditing.CanaryScoreAuditor(np.arange(1.0, 21.0), np.zeros(1))
    threshold = auditing.Explicit(1.0)
    epsilon = auditor.epsilon_one_run(0.05, 1e-300, threshold_strategy=threshold)
    assert (1 + np.exp(-epsilon)) ** -20 == pytest.approx(0.05)  # 20 of 20 are right
    assert mechanisms.BandedToeplitz.optimal(4, 2).num_bands == 2
