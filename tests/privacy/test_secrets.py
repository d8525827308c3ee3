"""No text of the library shows a key, a record, or a sum without noise."""

import dataclasses
import importlib
import inspect
import pkgutil
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.batching import Poisson
from dpjax.estimators import AdaptiveThreshold, Clipping
from dpjax.mechanisms import BandedToeplitz
from dpjax.transforms import accumulate, frank_wolfe, peel, privatize
from tests.unit.transforms.test_contract import is_key

PARAMS = jnp.zeros(3)
INTERNAL = {"Draw", "Release"}  # of the command, which prints none of its objects


def adaptive():
    return AdaptiveThreshold(Clipping(1.0), lower=0.1, upper=9.0)


def private(key, estimator=None, **options):
    options = {"noise_multiplier": 1.0, "normalize_by": 4, "key": key} | options
    return privatize(estimator or Clipping(1.0), **options)


STATES = {
    "privatize": lambda key: private(key).init(PARAMS),
    "adaptive": lambda key: private(key, adaptive()).init(PARAMS),
    "correlated": lambda key: private(
        key, noise=BandedToeplitz(4, (1.0, 0.5)), normalize_by=None
    ).init(PARAMS),
    "chain": lambda key: dpjax.chain(private(key), optax.sgd(0.1)).init(PARAMS),
    "pieces": lambda key: accumulate(private(key), num_pieces=2).init(PARAMS),
    "peel": lambda key: peel(
        sparsity=1, rho=1.0, sensitivity=1.0, limit=1.0, key=key
    ).init(PARAMS),
    "frank_wolfe": lambda key: frank_wolfe(
        dpjax.constraints.L1Ball(1.0), epsilon=1.0, sensitivity=1.0, limit=1.0, key=key
    ).init(PARAMS),
    "batches": lambda key: Poisson(4.0).init(key, 99, 2, epsilon=1.0, delta=1e-3),
    "training": lambda key: dpjax.PrivateTraining(
        jnp.vdot, num_samples=99, epsilon=1.0, delta=1e-3, monitor=0.1
    ).init(PARAMS, key),
}
GROUPED = {"key": jax.random.key(0), "epsilon": 1.0, "delta": 1e-5, "num_groups": 2}


@pytest.mark.parametrize("name", STATES)
def test_a_state_shows_its_types_alone(name):
    state = STATES[name](jax.random.key(0))
    for text in (repr(state), f"{state}"):
        assert not re.search(r"\bArray\(", text)
        assert "key<fry>" in text


def test_a_sum_without_noise_is_not_shown():
    optimizer = accumulate(private(jax.random.key(0)), num_pieces=2)
    state = optimizer.update(jnp.ones((2, 3)), optimizer.init(PARAMS))[1]
    assert not re.search(r"\bArray\(", repr(state) + repr(state.total))


def test_every_class_with_a_key_hides_it():
    texts = {}  # of classes with a key
    for module in pkgutil.walk_packages(dpjax.__path__, "dpjax."):
        if module.name.endswith("__main__"):
            continue
        for each in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(each) and each.__module__ == module.name:
                shown = getattr(each, "_fields", ())
                if dataclasses.is_dataclass(each):
                    shown = [x.name for x in dataclasses.fields(each) if x.repr]
                texts |= {each.__name__: each.__repr__} if "key" in shown else {}
    hidden = type(STATES["batches"](jax.random.key(0))).__repr__
    assert len(texts) >= 6
    assert {n for n, text in texts.items() if text is not hidden} <= INTERNAL


def test_errors_do_not_print_what_may_be_secret():
    key = jax.random.key(987_654)
    raw, pair = jax.random.key_data(key), jax.random.split(key)
    for draw, secrets in (
        (private, (pair, raw, np.array(raw), 987_654)),
        (Clipping, (pair[0], pair, raw)),
    ):
        for secret in secrets:
            with pytest.raises(ValueError, match="must be") as refused:
                draw(secret)
            assert not re.search(r"\d{5}", str(refused.value))


@pytest.mark.parametrize("noise", [None, BandedToeplitz(4, (1.0, 0.5))])
def test_a_donated_training_state_deletes_nothing_else(noise):
    # Its state holds the parameters, too: no buffer may be donated twice.
    optimizer = optax.contrib.schedule_free_sgd(0.1)
    options = {"num_samples": 99, "epsilon": 1.0, "delta": 1e-3, "noise": noise}
    run = dpjax.PrivateTraining(jnp.vdot, optimizer, estimator=Clipping(1.0), **options)
    params, host, key = jnp.ones(3), np.ones(3, np.float32), jax.random.key(0)
    with jax.debug_key_reuse(False):
        for start in (params, host):
            state = run.init(start, key)
            leaves = [x for x in jax.tree.leaves(state) if not is_key(x)]
            assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)
            jax.jit(lambda state: state, donate_argnums=0)(state)
    assert params.sum() == host.sum() == 3
    assert jax.random.uniform(key) >= 0


@pytest.mark.parametrize("kind", [np.array, list, lambda x: np.array(x, object)])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: dpjax.solvers.dp_group_means(np.ones(2), x, **GROUPED),
        lambda x: dpjax.solvers.dp_quantile(x, key=GROUPED["key"], epsilon=1.0),
        lambda x: dpjax.robust_grad(lambda w, x: w * x, Clipping(1.0))(1.0, x),
        lambda x: dpjax.gradients.by_user(x, x, num_users=2, records_per_user=1),
        lambda x: dpjax.mechanisms.gaussian(GROUPED["key"], x, stddev=1.0),
        lambda x: Clipping(1.0)(x),
    ],
)
def test_no_error_shows_a_text_of_the_data(call, kind):
    with pytest.raises(ValueError, match=r"must be .*, got (object|str)") as error:
        call(kind(["SECRET7", "b"]))
    assert "SECRET7" not in str(error.value)
    assert error.value.__cause__ is error.value.__context__ is None
