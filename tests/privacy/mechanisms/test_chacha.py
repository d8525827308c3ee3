"""Keys of 256 bits: the cipher's own blocks, and all that keys of JAX are for."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax import PrivateTraining, solvers
from dpjax.mechanisms import exponential, gaussian, peeling, secret_key
from dpjax.mechanisms._chacha import _random_bits, _split, chacha20_blocks, key_of_words
from tests.unit.cli import conftest
from tests.unit.cli.command import done, invoke, refused

here, folder = conftest.here, conftest.folder
KEY = np.arange(8, dtype=np.uint32) * np.uint32(0x9E3779B9) + np.uint32(7)


def key_stream(words, nonce, size):
    """What another implementation says; the counter begins at zero."""
    ciphers = pytest.importorskip("cryptography.hazmat.primitives.ciphers")
    start = np.array([0, *nonce], "<u4").tobytes()
    chacha20 = ciphers.algorithms.ChaCha20(words.tobytes(), start)
    return ciphers.Cipher(chacha20, mode=None).encryptor().update(bytes(size))


@pytest.mark.parametrize("nonce", [(0, 0, 0), (0, 7, 0), (2**32 - 1, 3, 1)])
def test_blocks_are_the_ciphers(nonce):
    counter = jnp.arange(5, dtype="uint32")
    blocks = chacha20_blocks(jnp.asarray(KEY), counter, tuple(map(np.uint32, nonce)))
    assert np.asarray(blocks).T.astype("<u4").tobytes() == key_stream(KEY, nonce, 320)


@pytest.mark.parametrize("width", [8, 16, 32])
def test_random_bits_are_the_key_stream(width):
    bits = _random_bits(jnp.asarray(KEY), width, (3, 7))
    assert np.asarray(bits).tobytes() == key_stream(KEY, (0, 0, 0), 21 * width // 8)


def test_purposes_have_streams_of_their_own():
    children = np.asarray(_split(jnp.asarray(KEY), (2,))).tobytes()
    assert children == key_stream(KEY, (1, 0, 0), 64)
    folded = [jax.random.fold_in(key_of_words(KEY), i) for i in (0, 1)]
    keys = [key_of_words(KEY), *jax.random.split(key_of_words(KEY), 3), *folded]
    words = {np.asarray(jax.random.key_data(one)).tobytes() for one in keys}
    words.add(np.asarray(jax.random.bits(key_of_words(KEY), (8,))).tobytes())
    assert len(words) == 7
    some, more = (jax.random.split(key_of_words(KEY), count) for count in (2, 5))
    assert (some == more[:2]).all()
    impl = jax.random.key_impl(key_of_words(KEY))
    seeded = [jax.random.key_data(jax.random.key(i, impl=impl)) for i in (0, 0, 1)]
    assert (seeded[0] == seeded[1]).all()
    assert (seeded[0] != seeded[2]).any()
    fresh = [jax.random.key_data(secret_key()) for _ in range(2)]
    assert (fresh[0] != fresh[1]).any()


def test_noise_has_its_law_within_jit_scan_and_vmap():
    keys = jax.random.split(key_of_words(KEY), 42)

    def one(key):
        return gaussian(key, jnp.zeros(500), stddev=2.0)

    @jax.jit
    def draw(keys):
        _, scanned = jax.lax.scan(lambda _, key: (None, one(key)), None, keys)
        return scanned, jax.vmap(one)(jax.random.clone(keys))

    scanned, mapped = draw(keys[2:])
    np.testing.assert_array_equal(scanned, mapped)
    assert scipy.stats.kstest(np.ravel(mapped) / 2, "norm").pvalue > 1e-3
    scores = jnp.array([0.0, 50.0, 0.0])
    assert int(exponential(keys[0], scores, epsilon=9.0, sensitivity_range=1.0)) == 1
    scales = {"selection_scale": 1e-3, "release_stddev": 1e-3}
    peeled = peeling(keys[1], scores, sparsity=1, **scales)
    assert float(peeled[1]) == pytest.approx(50.0, abs=0.1)


def test_runs_with_chacha_keys_go_on_from_a_checkpoint(tmp_path):
    rng = np.random.default_rng(0)
    data = rng.normal(size=(400, 3)), rng.normal(size=400)

    def fit(**how):
        options = {"key": key_of_words(KEY), "execution": solvers.Execution(**how)}
        options |= {"epsilon": 1.0, "delta": 1e-5}
        return solvers.dp_linear_model("squared", data, **options).params

    expected = fit()
    checkpoint = solvers.Checkpoint(tmp_path / "states", every=5)
    for _ in range(2):  # the second goes on from the last state
        np.testing.assert_allclose(fit(checkpoint=checkpoint), expected, rtol=1e-5)


def test_estimators_and_commands_take_chacha_keys(folder):
    x = np.random.default_rng(0).normal(size=(500, 1))
    pytest.importorskip("sklearn")
    from dpjax.sklearn import DPLinearRegression

    models = [DPLinearRegression(random_state="chacha20").fit(x, x[:, 0]) for _ in "12"]
    assert models[0].intercept_ != models[1].intercept_
    words = "train data.csv --schema schema.toml --loss squared --epsilon 1"
    words = [*words.split(), "--output", "out", "--generator", "chacha20"]
    done(invoke(*words, "--checkpoint", "states"))
    assert "of 256 bits, for ChaCha20" in (folder / "out/report.json").read_text()
    refused(invoke(*words, "--seed", 1), "--generator must be left out with --seed")


def test_keys_are_restored_by_name(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    run = PrivateTraining(jnp.vdot, num_samples=99, epsilon=1.0, delta=1e-3)
    state, data = run.init(jnp.zeros(3), secret_key()), jnp.ones((99, 3))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        template = run.init(jnp.zeros(3), secret_key())
        restored = checkpointer.restore(tmp_path / "state", template)
    steps = [run.step(each, data)[0].params for each in (restored, state)]
    assert (steps[0] == steps[1]).all()
    saved = pickle.loads(pickle.dumps(key_of_words(KEY)))
    assert (jax.random.key_data(saved) == KEY).all()
    assert jax.random.key_impl(saved) == "chacha20"
