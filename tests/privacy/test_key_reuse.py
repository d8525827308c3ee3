"""A key is used once: planted reuse is caught, and no release of dpjax reuses one.

The suite runs under `jax_debug_key_reuse`, which looks at programs as they are traced.
It loses a key whose words are read, and takes `fold_in` for no use. So releases are
also run with keys that tell of every use.
"""

import inspect
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.extend.random import define_prng_impl

from benchmarks.audits.catalogue import cases, names_of
from dpjax import batching, mechanisms, solvers, transforms
from dpjax.estimators import Clipping
from tests import registry

pytestmark = pytest.mark.usefixtures("compiled_quickly")  # keys, not numbers
CASES = cases()
# Their noise is made on the host, from bytes and not from a key.
ON_HOST = {
    "discrete_gaussian",
    "dp_multiparty_gradient_descent",
    "dp_multiparty_objective_perturbation",
}
NOT_PRIVATE = {"robust_gradient_descent"}  # its key is for batches alone
POISSON = batching.Poisson(3.0, capacity=6)
DATA = jnp.ones((6, 2))
PARAMS = jnp.zeros(2)


def trace(release, *args):
    jax.jit(release).trace(*args)


def noisy(key, value):
    return mechanisms.gaussian(key, value, stddev=1.0)


def drawn(key, data):
    state = POISSON.init(key, len(data), 4, epsilon=1.0, delta=1e-5)
    return POISSON.draw(state, data)[0]


def some_leaf_of_a_split(key, data, *, reuses):
    keys = jax.random.split(key, 2)
    return noisy(keys[0], data) + noisy(keys[0 if reuses else 1], data)


def update(key, updates, *, reuses):
    """Of a transform that may forget to give its state a key of its own."""
    next_key, noise_key = (key, key) if reuses else jax.random.split(key)
    return next_key, noisy(noise_key, updates)


def two_updates(key, data, *, reuses):
    state, first = update(key, data, reuses=reuses)
    return first, update(state, data, reuses=reuses)[1]


def scan_of_updates(key, data, *, reuses):
    return jax.lax.scan(partial(update, reuses=reuses), key, data)[1]


def loop_with_the_key_from_outside(key, data, *, reuses):
    def step(_, carry):
        params, key_of_step = carry
        next_key, noise_key = jax.random.split(key_of_step)
        return noisy(key if reuses else noise_key, params), next_key

    start = key if not reuses else jax.random.clone(key)
    return jax.lax.fori_loop(0, 3, step, (data[0], start))[0]


def chosen(key, scores):
    return mechanisms.exponential(key, scores, epsilon=1.0, sensitivity_range=1.0)


def descended(key, batch):
    step = transforms.dp_sgd(0.1, Clipping(1.0), noise_multiplier=1.0, key=key)
    return step.update(batch, step.init(PARAMS), PARAMS)[0]


# Of two keys, which are one where it is reused.
OF_TWO_KEYS = {
    "batch and noise": lambda x, y, data: noisy(y, drawn(x, data).mean(axis=0)),
    "choice and noise": lambda x, y, data: noisy(y, data[0])[chosen(x, data[0])],
    "two leaves": lambda x, y, data: [noisy(x, data[0]), noisy(y, data[1])],
    "noise and children": lambda x, y, data: [
        noisy(x, data),
        *(noisy(key, data) for key in jax.random.split(y)),
    ],
    "branch and noise": lambda x, y, data: noisy(
        y, jax.lax.cond(data[0, 0] > 0, lambda: noisy(x, data), lambda: data)
    ),
    "batches and their descent": lambda x, y, data: descended(y, drawn(x, data)),
}
PLANTED = some_leaf_of_a_split, two_updates, scan_of_updates
PLANTED = {x.__name__: x for x in (*PLANTED, loop_with_the_key_from_outside)} | {
    name: lambda key, data, *, reuses, release=release: release(
        *((key, key) if reuses else jax.random.split(key)), data
    )
    for name, release in OF_TWO_KEYS.items()
}
# The mechanisms; two transforms and three solvers use them in loops.
WITNESSED = {*names_of("mechanisms")} - ON_HOST
WITNESSED |= {"dp_sgd", "peel_laplace", "dp_frank_wolfe", "dp_gradient_descent_poisson"}
WITNESSED |= {"dp_linear_model_intervals"}  # bisections fold in their steps


@pytest.mark.parametrize("name", PLANTED)
def test_planted_reuse_is_caught(name, key):
    assert jax.config.jax_debug_key_reuse
    release = PLANTED[name]
    with pytest.raises(jax.errors.KeyReuseError):
        trace(partial(release, reuses=True), key, DATA)
    trace(partial(release, reuses=False), key, DATA)


def test_planted_reuse_between_calls_is_caught(key):
    drawn(key, DATA)
    for release in (noisy, drawn):
        with pytest.raises(jax.errors.KeyReuseError):
            release(key, DATA)


def test_every_release_that_takes_a_key_has_a_case():
    public = {
        name
        for package in (mechanisms, transforms, solvers)
        for name in package.__all__
        if inspect.isfunction(part := getattr(package, name))
        and "key" in inspect.signature(part).parameters
    }
    assert len(public) > 20
    for name in public - NOT_PRIVATE:
        assert any(case.startswith(name) for case in CASES), name


@pytest.mark.parametrize("name", [name for name in CASES if name not in ON_HOST])
def test_no_release_reuses_its_key(name, key):
    case = CASES[name]

    # The check sees this release use its key: to release twice is caught.
    def twice(key, data):
        return case.release(key, data), case.release(key, data)

    # What is computed on the host is checked as it runs.
    check = trace if case.vectorize else lambda release, *args: release(*args)
    check(case.release, jax.random.clone(key), case.data)
    with pytest.raises(jax.errors.KeyReuseError):
        check(twice, key, case.data)


@pytest.mark.parametrize("one", registry.BATCHINGS.values(), ids=str)
def test_no_batch_reuses_its_key(one, key):
    def draw(key, data, *, reuses):
        state = one.init(key, len(data), 3, epsilon=1.0, delta=1e-5)
        first, _, following = one.draw(state, data)
        second, _, _ = one.draw(state if reuses else following, data)
        return first, second

    trace(lambda key, data: draw(key, data, reuses=False), key, DATA)
    with pytest.raises(jax.errors.KeyReuseError):
        trace(lambda key, data: draw(key, data, reuses=True), key, DATA)
    with pytest.raises(jax.errors.KeyReuseError):  # init uses up the run's key
        trace(lambda key, data: (drawn(key, data), noisy(key, data)), key, DATA)


def test_a_descent_without_noise_does_not_reuse_its_key(key):
    options = {"estimator": Clipping(1.0), "learning_rate": 0.1, "num_steps": 2}
    options["batching"] = batching.WithoutReplacement(3)

    def descend(key, data):
        problem = (lambda w, x: w @ x), PARAMS, data
        return solvers.robust_gradient_descent(*problem, key=key, **options).params

    trace(descend, key, DATA)
    with pytest.raises(jax.errors.KeyReuseError):
        trace(lambda key, data: (descend(key, data), drawn(key, data)), key, DATA)


class Witness:
    """Keys that tell of every use, whatever way it took to get there."""

    def __init__(self):
        self.uses = Counter()
        tell = jax.debug.callback

        def wrapped(words):
            return jax.random.wrap_key_data(words, impl="threefry2x32")

        def split(words, shape):
            tell(self.note, words)
            return jax.random.key_data(jax.random.split(wrapped(words), shape))

        def random_bits(words, bit_width, shape):
            tell(self.note, words)
            return jax.random.bits(wrapped(words), shape, f"uint{bit_width}")

        def fold_in(words, data):
            tell(self.note, words, data)
            return jax.random.key_data(jax.random.fold_in(wrapped(words), data))

        self.impl = define_prng_impl(
            key_shape=(2,),
            seed=lambda seed: jax.random.key_data(jax.random.key(seed)),
            split=split,
            random_bits=random_bits,
            fold_in=fold_in,
            name="witness",
            tag="wit",
        )

    def note(self, words, data=None):
        self.uses[(*words.tolist(), None if data is None else int(data))] += 1

    def uses_of(self, release, data):
        """Returns how often a release uses each of its keys."""
        self.uses.clear()
        jax.block_until_ready(jax.jit(release)(jax.random.key(7, impl=self.impl), data))
        jax.effects_barrier()
        return dict(self.uses)


def test_a_witness_sees_what_the_check_does_not():
    witness = Witness()

    def by_words(key, data):
        words, impl = jax.random.key_data(key), jax.random.key_impl(key)
        again = jax.random.wrap_key_data(words, impl=impl)
        return noisy(key, data), noisy(again, data)

    def by_number(key, data):
        return [noisy(jax.random.fold_in(key, i), data) for i in (3, 3)]

    for release in (by_words, by_number):
        trace(release, jax.random.key(0), DATA)  # not caught
        assert max(witness.uses_of(release, DATA).values()) > 1
    assert set(witness.uses_of(noisy, DATA).values()) == {1}


@pytest.mark.parametrize("name", sorted(WITNESSED))
def test_no_release_uses_words_twice(name):
    case = CASES[name]
    assert set(Witness().uses_of(case.release, case.data).values()) == {1}
