"""The registry names every part of dpjax."""

import jax
import jax.numpy as jnp
import pytest

from dpjax import (
    batching,
    constraints,
    estimators,
    losses,
    mechanisms,
    solvers,
    transforms,
)
from tests import registry

# What a layer's package holds beside its parts: bases, records, functions on parts.
BESIDE = {
    estimators: {
        *("Estimator", "Sensitivity"),
        # `privatize` alone takes them: "privatize, adaptive" and "privatize, scaled".
        *("AdaptiveThreshold", "Scaled"),
    },
    mechanisms: {
        *("BandedToeplitz", "BinaryTree", "BufferedToeplitz", "Strategy", "secret_key")
    },
    transforms: {"average_params"},
    solvers: {
        *("Checkpoint", "Curves", "Execution", "Solution"),
        *(
            "PrivateTraining",
            "recommend",
        ),  # tests/unit/solvers/test_private_training.py
        # Of several parties, who call it together: tests/solvers/test_multiparty*.py.
        *("dp_multiparty_gradient_descent", "dp_multiparty_objective_perturbation"),
    },
    constraints: {"grid_net", "halton_net"},
    losses: {"LinearLoss", "MarginLoss"},
    batching: {"Batching"},
}
LAYERS = {
    estimators: registry.ESTIMATORS,
    mechanisms: registry.MECHANISMS,
    transforms: registry.TRANSFORMS,
    solvers: registry.SOLVERS,
    constraints: registry.CONSTRAINTS,
    losses: registry.LOSSES,
    batching: registry.BATCHINGS,
}


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_every_part_of_a_layer_is_registered(layer):
    parts = LAYERS[layer]
    assert registry.names(parts) == set(layer.__all__) - BESIDE[layer]


@pytest.mark.parametrize("name", registry.MECHANISMS)
def test_every_mechanism_releases_anew_for_every_key(name):
    value = jnp.array([3.0, -2.0, 8.0, 0.5])
    release = registry.MECHANISMS[name]
    one, other = (release(jax.random.key(seed), value) for seed in (1, 2))
    assert jnp.shape(one) in (value.shape, ())
    if jnp.shape(one):  # no choice
        assert (one != other).any()
