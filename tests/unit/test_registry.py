"""The registry names every part of dpjax."""

import pytest

import dpjax
from tests import registry

# The parts of each layer, and what its package holds beside them.
LAYERS = {
    # `privatize` alone takes the last two: "privatize, adaptive", "privatize, scaled".
    "estimators": (
        registry.ESTIMATORS,
        "Estimator Sensitivity AdaptiveThreshold Scaled",
    ),
    "mechanisms": (registry.MECHANISMS, "BandedToeplitz BufferedToeplitz secret_key"),
    "transforms": (registry.TRANSFORMS, "average_params"),
    # Several parties call the last two together: tests/unit/solvers/test_multiparty.py.
    "solvers": (
        registry.SOLVERS,
        "Checkpoint Execution Solution PrivateTraining recommend "
        "dp_multiparty_gradient_descent dp_multiparty_objective_perturbation",
    ),
    "constraints": (registry.CONSTRAINTS, "grid_net"),
    "losses": (registry.LOSSES, "MarginLoss"),
    "batching": (registry.BATCHINGS, ""),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_every_part_of_a_layer_is_registered(layer):
    parts, beside = LAYERS[layer]
    assert registry.names(parts) == {*getattr(dpjax, layer).__all__} - {*beside.split()}
