"""The registry names every part of dpjax."""

import pytest

import dpjax
from tests import registry

# What a layer's package holds beside its parts: bases, records, functions on parts.
BESIDE = {
    dpjax.estimators: {
        *("Estimator", "Sensitivity"),
        # `privatize` alone takes them: "privatize, adaptive" and "privatize, scaled".
        *("AdaptiveThreshold", "Scaled"),
    },
    dpjax.mechanisms: {
        *("BandedToeplitz", "BinaryTree", "BufferedToeplitz", "Strategy", "secret_key")
    },
    dpjax.transforms: {"average_params"},
    dpjax.solvers: {
        *("Checkpoint", "Curves", "Execution", "Solution"),
        *("PrivateTraining", "recommend"),  # of test_private_training.py
        # Of several parties, who call it together: tests/solvers/test_multiparty*.py.
        *("dp_multiparty_gradient_descent", "dp_multiparty_objective_perturbation"),
    },
    dpjax.constraints: {"grid_net", "halton_net"},
    dpjax.losses: {"LinearLoss", "MarginLoss"},
    dpjax.batching: {"Batching"},
}
LAYERS = {
    dpjax.estimators: registry.ESTIMATORS,
    dpjax.mechanisms: registry.MECHANISMS,
    dpjax.transforms: registry.TRANSFORMS,
    dpjax.solvers: registry.SOLVERS,
    dpjax.constraints: registry.CONSTRAINTS,
    dpjax.losses: registry.LOSSES,
    dpjax.batching: registry.BATCHINGS,
}


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_every_part_of_a_layer_is_registered(layer):
    parts = LAYERS[layer]
    assert registry.names(parts) == set(layer.__all__) - BESIDE[layer]
