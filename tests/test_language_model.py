"""The transformer after jax_privacy's example: it sees no future, and learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import language_model


@pytest.fixture(autouse=True)
def users_settings():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="module", autouse=True)
def one_layer():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language_model, "NUM_LAYERS", 1)  # half the time to compile
        yield


@pytest.fixture(scope="module")
def setting(one_layer):
    data, alphabet = language_model.windows()
    return language_model.init(jax.random.key(0), len(alphabet)), data[:3], alphabet


def test_no_character_sees_those_after_it(setting):
    params, data, _ = setting
    codes = data[0, :-1]
    changed = codes.at[40].set((codes[40] + 1) % 5)
    first, second = (language_model.logits(params, x) for x in (codes, changed))
    np.testing.assert_allclose(first[:40], second[:40], rtol=1e-5, atol=1e-5)
    assert jnp.abs(first[40:] - second[40:]).max(axis=1).min() > 1e-4


@pytest.mark.slow
def test_the_example_trains(monkeypatch, capsys):
    monkeypatch.setattr(language_model, "BATCH_SIZE", 4)
    data, alphabet = language_model.windows()
    monkeypatch.setattr(language_model, "windows", lambda: (data[:96], alphabet))
    language_model.train(num_steps=3)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("32 windows, epsilon 3, noise ")
    assert float(lines[-2].split()[-1]) < 1.1 * float(lines[1].split()[-1])
    assert len(eval(lines[-1])) == language_model.LENGTH
