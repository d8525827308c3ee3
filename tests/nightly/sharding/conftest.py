"""Tests of several devices, which a process has from its start or not at all."""

import jax
import pytest

FLAG = "--xla_force_host_platform_device_count=8"


@pytest.fixture(scope="session", autouse=True)
def eight_devices():
    if jax.device_count() < 8:
        pytest.skip(f"needs 8 devices: XLA_FLAGS={FLAG}")
