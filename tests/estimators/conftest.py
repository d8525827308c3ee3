"""The fold's two plans, as a fixture: the CPU's and the one for parallel machines."""

import jax
import pytest


@pytest.fixture(params=["sequential", "parallel"])
def plan(request, monkeypatch):
    """Makes new traces take one plan; a test must jit functions of its own."""
    platform = "cpu" if request.param == "sequential" else "default"
    monkeypatch.setattr(
        jax.lax, "platform_dependent", lambda **plans: plans[platform]()
    )
    return request.param
