"""Strict JAX settings for the whole suite, and the fixtures that tests share."""

import jax
import pytest

collect_ignore = ["processes/worker.py"]  # a program, not a module

jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """Drops compiled programs module by module.

    Each takes some ten memory mappings. Linux gives a process 65,530 of them, which the
    whole suite in two processes would pass: the compiler then ends in a segmentation
    fault.
    """
    yield
    jax.clear_caches()


@pytest.fixture
def key():
    return jax.random.key(20261120)


@pytest.fixture(params=["sequential", "parallel"])
def plan(request, monkeypatch):
    """Makes new traces take one of the fold's plans: the CPU's, or that of others.

    A test must jit functions of its own.
    """
    platform = "cpu" if request.param == "sequential" else "default"
    monkeypatch.setattr(
        jax.lax, "platform_dependent", lambda *args, **plans: plans[platform](*args)
    )
    return request.param
