"""What every transform owes, with every optimizer, dtype, platform and wild value."""

import chex
import jax
import orbax.checkpoint as ocp
import pytest

from tests.unit.transforms import test_contract as short
from tests.unit.transforms.test_contract import (
    STATES,
    TRANSFORMS,
    chained,
    jitted,
    make_params,
    make_updates,
    run,
)

each = pytest.mark.parametrize("name", TRANSFORMS)
standard_promotion = short.standard_promotion


@each
def test_jit_equals_eager(name):
    optimizer = chained(name, "sgd")
    eager, _ = run(optimizer, name, 2, optimizer.update)
    compiled, _ = run(chained(name, "sgd"), name, 2, jitted(name, "sgd"))
    chex.assert_trees_all_close(compiled, eager, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [x for x in TRANSFORMS if x not in STATES])
def test_scans_mapped_over_runs_equal_loops(name):
    short.test_scans_mapped_over_runs_equal_loops(name)


@each
def test_state_survives_orbax(name, tmp_path):
    params, state = run(chained(name), name, 3, jitted(name))
    template = chained(name).init(params)
    # Every release of orbax takes words, recent ones typed keys, too.
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", short.without_keys(state))
        checkpointer.wait_until_finished()
        saved = short.without_keys(template)
        restored = checkpointer.restore(tmp_path / "state", saved)
    restored = short.with_keys(restored, template)
    chex.assert_trees_all_equal_shapes_and_dtypes(restored, state)
    short.assert_continues(name, restored, state)


@each
def test_exports_for_every_platform(name):
    platforms, params = ("cpu", "cuda", "tpu"), make_params()
    arguments = make_updates(name, 0), chained(name).init(params), params
    exported = jax.export.export(jitted(name), platforms=platforms)(*arguments)
    assert exported.platforms == platforms
