"""A run that is killed and taken up again releases the same, once."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import losses
from dpjax.batching import Poisson
from dpjax.estimators import SmoothedTruncation, TrimmedMean, Winsorization
from dpjax.solvers import Checkpoint, Execution
from tests import registry
from tests.unit.refusals import refused
from tests.unit.solvers.test_gradient_descent import descend

N, D, T = 60, 3, 5


def make_data(seed=0):
    features = np.random.default_rng(seed).standard_t(3, (N, D))
    features = jnp.asarray(features, jnp.float32)
    return features, features[:, 0]


def descent(loss_fn=losses.squared, seed=1, impl=None, **options):
    settings = {"params": jnp.zeros(D, "float32"), "data": make_data(), "num_steps": T}
    settings |= {"key": jax.random.key(seed, impl=impl), "delta": 1e-3}
    return descend(loss_fn, **settings | {"learning_rate": 0.3} | executed(options))


def executed(options):
    """Returns options of a solver, those of how it runs as one of them."""
    names = {field.name for field in dataclasses.fields(Execution)}
    how = {name: options.pop(name) for name in names & options.keys()}
    return options | {"execution": Execution(**how)}


def registered(name, **options):
    """Runs a solver as it is registered, but for options, on three features."""
    key = jax.random.key(1)
    return registry.released(name, make_data(), key, 0, **executed(options))


RUNS = {
    "dp_gradient_descent": descent,
    "smoothed truncation": partial(descent, estimator=SmoothedTruncation(1.0)),
    "averaging, Poisson": partial(descent, averaging=True, batching=Poisson(20)),
    "trimmed mean": partial(descent, estimator=TrimmedMean(0.1, -9.0, 9.0)),
    "features chosen": partial(registered, "dp_linear_model", max_features=2),
}
NAMES = "dp_frank_wolfe dp_lasso dp_linear_model dp_iterative_hard_thresholding"
NAMES += " dp_sparse_linear_regression robust_gradient_descent"
RUNS |= {name: partial(registered, name) for name in NAMES.split()}


class KilledError(Exception):
    """Stands for the end of the process."""


def kill_at(step):
    def callback(now, params):
        if now == step:
            raise KilledError

    return callback


def assert_same(solution, expected):
    assert solution.privacy == expected.privacy
    assert jax.tree.structure(solution.stats) == jax.tree.structure(expected.stats)
    chex.assert_trees_all_equal(solution.params, expected.params)
    chex.assert_trees_all_equal(dict(solution.stats), dict(expected.stats))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_goes_on_to_the_same_release(name, tmp_path):
    run = RUNS[name]
    expected = run(checkpoint=Checkpoint(tmp_path / "to the end", 2))
    again = Checkpoint(tmp_path / "killed", 2)
    with pytest.raises(KilledError):
        run(checkpoint=again, callback=kill_at(3))
    assert_same(run(checkpoint=again), expected)
    np.testing.assert_allclose(expected.params, run().params, rtol=1e-5, atol=1e-6)


def test_a_run_killed_at_any_step_goes_on_where_it_was_saved(tmp_path):
    every = 2

    def run(name, steps, killed=T + 1):
        def callback(step, params):
            steps[int(step)] = params
            kill_at(killed)(step, params)

        return descent(checkpoint=Checkpoint(tmp_path / name, every), callback=callback)

    all_steps = {}
    expected = run("to the end", all_steps)
    assert list(all_steps) == list(range(1, T + 1))
    for killed in range(1, T + 1):
        steps, before = {}, {}
        with pytest.raises(KilledError):
            run(str(killed), before, killed)
        assert_same(run(str(killed), steps), expected)
        # It went on where it was saved. A step is shown before it is saved: the one
        # that the kill came in is shown again, and none is left out.
        saved = (killed - 1) - (killed - 1) % every
        assert list(steps) == list(range(saved + 1, T + 1))
        for i, params in (before | steps).items():  # the same noise, drawn once
            np.testing.assert_array_equal(params, all_steps[i])
    # With a checkpoint the same steps are shown as without.
    shown, checkpoint = [], Checkpoint(tmp_path / "shown", every)
    options = {"callback": lambda i, _: shown.append(int(i)), "callback_every": 2}
    descent(checkpoint=checkpoint, **options)
    jax.effects_barrier()
    assert sorted(shown) == [2, 4, 5]


def weighted(weights):
    return lambda params, example: losses.squared(params * weights, example)


WEIGHTS = np.ones(D, np.float32)
OTHERS = {
    "data": {"data": (make_data()[0].at[7, 1].add(1e-6), make_data()[1])},
    "key": {"seed": 2},
    "noise_multiplier": {"epsilon": 2.0},
    "learning_rate": {"learning_rate": 0.2},
    "estimator": {"estimator": Winsorization(2.0)},
    "program, loss": {"loss_fn": losses.absolute},
    "program, constant of the loss": {"loss_fn": weighted(2 * WEIGHTS)},
    "program, batching": {"batching": Poisson(20)},
    "program, steps": {"num_steps": T + 1},
}


# Once it has saved and before: other data would have the same noise, and show it.
@pytest.mark.parametrize("every", [2, T])
def test_refuses_the_state_of_another_run(tmp_path, every):
    mine = partial(descent, loss_fn=weighted(WEIGHTS))
    run = partial(mine, checkpoint=Checkpoint(tmp_path / "mine", every))
    with pytest.raises(KilledError):
        run(callback=kill_at(3))
    for name, options in OTHERS.items():
        rule = f"checkpoint must be new or of this run .*another {name.split(',')[0]}"
        with pytest.raises(ValueError, match=rule):
            run(**options)
    expected = mine(checkpoint=Checkpoint(tmp_path / "to the end", 2))
    # The state was left as it was, and another interval draws the same noise.
    assert_same(mine(checkpoint=Checkpoint(tmp_path / "mine", 1)), expected)


def test_one_state_is_left_that_only_its_owner_may_read(tmp_path):
    folder = tmp_path / "states"
    folder.mkdir(mode=0o755)
    descent(checkpoint=Checkpoint(folder, 1))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in folder.iterdir()] == [str(T)]


test_refuses_what_is_no_checkpoint = refused(
    lambda checkpoint: descent(checkpoint=checkpoint),
    ("folder", r"checkpoint must be a Checkpoint\(folder, every\), got 'folder'"),
    (Checkpoint(3), "checkpoint must be a Checkpoint"),
    (Checkpoint("folder", 0), "every must be"),
    (Checkpoint(__file__), "checkpoint must be a folder that can be written to, or"),
)


def test_refuses_a_path_that_is_no_folder_of_states(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "of 3" / "3").mkdir(parents=True)
    (tmp_path / "of 3" / "3" / "thesis.tex").write_text("years of work")
    before = sorted(tmp_path.rglob("*"))
    for folder in ("file/x", "link", "link/x", "loop"):
        with pytest.raises(ValueError, match="checkpoint must be a folder that can"):
            descent(checkpoint=Checkpoint(tmp_path / folder))
    with pytest.raises(ValueError, match="checkpoint must be a new folder, or one wi"):
        descent(checkpoint=Checkpoint(tmp_path / "of 3", 1))
    assert sorted(tmp_path.rglob("*")) == before


def test_refuses_to_be_traced(tmp_path):
    checkpoint = Checkpoint(tmp_path / "states")
    run = jax.jit(lambda data: descent(data=data, checkpoint=checkpoint).params)
    with pytest.raises(ValueError, match="checkpoint must be None under jit"):
        run(make_data())
    assert not (tmp_path / "states").exists()
