"""What every mechanism with a key owes: its key, jit, vmap, dtypes, platforms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import registry

MECHANISMS = dict(registry.MECHANISMS)
del MECHANISMS["discrete_gaussian"]  # on the host, from bytes
NOISE = [name for name in MECHANISMS if name not in ("exponential", "permute_and_flip")]
VALUE = jnp.linspace(-2.0, 2.0, 100)
each = pytest.mark.parametrize("name", MECHANISMS)


@pytest.mark.quick(2)
@each
def test_jit_and_vmap_are_the_call_as_it_is(name):
    mechanism, jitted = MECHANISMS[name], jax.jit(MECHANISMS[name])
    seeds = jnp.arange(3)
    eager = [mechanism(jax.random.key(seed), VALUE) for seed in seeds]
    traced = [jitted(jax.random.key(seed), VALUE) for seed in seeds]
    mapped = jax.jit(jax.vmap(mechanism, (0, None)))(
        jax.vmap(jax.random.key)(seeds), VALUE
    )
    for found in (jnp.stack(traced), mapped):
        np.testing.assert_allclose(found, jnp.stack(eager), rtol=1e-5, atol=1e-6)


@pytest.mark.quick(1)
@each
def test_half_precision_is_cast_down_after_the_noise(name, key):
    dtype = jnp.bfloat16
    half = MECHANISMS[name](jax.random.clone(key), VALUE.astype(dtype))
    wide = MECHANISMS[name](key, VALUE.astype(dtype).astype(jnp.float32))
    assert half.dtype == (dtype if name in NOISE else jnp.int32)
    np.testing.assert_array_equal(half, wide.astype(half.dtype))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", NOISE)
def test_float64_noise_has_its_last_digits(name, key):
    with jax.enable_x64(True):
        released = MECHANISMS[name](key, jnp.zeros(1000, jnp.float64))
        assert released.dtype == jnp.float64
        released = released[released != 0]  # a few, where they are chosen
        assert (released.astype(jnp.float32).astype(jnp.float64) != released).all()


@pytest.mark.quick(1)
@each
def test_exports_for_every_platform(name, key):
    platforms = ("cpu", "cuda", "tpu")
    exported = jax.export.export(jax.jit(MECHANISMS[name]), platforms=platforms)
    assert exported(key, VALUE).platforms == platforms
