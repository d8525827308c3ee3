"""The tasks of the page of deep networks: real ones, and made ones to search on.

Inputs are scaled by public constants, long ones squeezed by sign(x) log(1 + |x|).
"""

import gzip
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.data import load
from benchmarks.deep.scattering import scattered
from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE, datasets
from dpjax._types import NeighboringRelation
from dpjax.tables import default_delta

Params = dict[str, jax.Array]
HIDDEN = 24  # units of a perceptron
WIDTH, NUM_TOKENS = 12, 6  # of the transformer over columns
CONTEXT, CHARACTERS, EMBEDDING = 5, " abcdefghijklmnopqrstuvwxyz.", 6
NUM_FROZEN = 100  # random features of digits
NUM_TEXTS, NUM_TEST_TEXTS = 16_000, 4_000


@dataclass(frozen=True, eq=False)
class Task:
    """A network to train, and what it is judged by.

    Predictions of `init(key)` are zero. `features(params, input)` is what the last
    layer takes, of weights params["w_head"] and params["b_head"]. `train` and `test`
    are (inputs, targets). "squared" loss is half the square, the other one "cross-
    entropy".
    """

    name: str
    title: str
    model: str
    loss: str
    init: Callable[[jax.Array], Params] = field(repr=False)
    features: Callable[[Params, jax.Array], jax.Array] = field(repr=False)
    train: tuple[np.ndarray, np.ndarray] = field(repr=False)
    test: tuple[np.ndarray, np.ndarray] = field(repr=False)
    published_delta: float | None = field(default=None, kw_only=True)
    relation: NeighboringRelation = field(default=REPLACE_ONE, kw_only=True)

    @property
    def num_samples(self) -> int:
        """The number of training records."""
        return len(self.train[1])

    @cached_property
    def num_params(self) -> int:
        """The number of parameters."""
        shapes = jax.eval_shape(self.init, jax.random.key(0))
        return sum(leaf.size for leaf in jax.tree.leaves(shapes))

    @property
    def delta(self) -> float:
        """n^-1.1, or that of published numbers."""
        return self.published_delta or default_delta(self.num_samples)

    def loss_fn(self, params: Params, example: Any) -> jax.Array:
        """The loss of one example."""
        inputs, target = example
        prediction = self.predict(params, inputs)
        if self.loss == "squared":
            return 0.5 * (prediction[0] - target) ** 2
        return optax.softmax_cross_entropy_with_integer_labels(prediction, target)

    def predict(self, params: Params, inputs: jax.Array) -> jax.Array:
        """The outputs for one input."""
        return self.features(params, inputs) @ params["w_head"] + params["b_head"]

    def head_data(self, params: Params) -> tuple[jax.Array, jax.Array]:
        """Training records of the last layer: features and ones, and targets."""
        inputs, targets = jax.tree.map(jnp.asarray, self.train)
        features = jax.vmap(partial(self.features, params))(inputs)
        return jnp.pad(features, ((0, 0), (0, 1)), constant_values=1), targets

    def test_loss(self, params: Params) -> jax.Array:
        """The mean loss of the test set; traced."""
        return jnp.mean(jax.vmap(partial(self.loss_fn, params))(self.test))

    def accuracy(self, params: Params) -> jax.Array:
        """The share of the test set whose class has the largest output; traced."""
        outputs = jax.vmap(partial(self.predict, params))(self.test[0])
        return jnp.mean(jnp.argmax(outputs, axis=1) == self.test[1])

    @cached_property
    def constant_loss(self) -> float:
        """The test loss of the constant that is best on the training set."""
        targets, tests = self.train[1], self.test[1]
        if self.loss == "squared":
            return float(0.5 * np.mean((tests - np.mean(targets)) ** 2, dtype=float))
        shares = (np.bincount(targets, minlength=tests.max() + 1) + 0.5) / len(targets)
        return float(-np.mean(np.log(shares)[tests]))


def perceptron(num_inputs: int, num_outputs: int):
    """Returns init and features of a network with one hidden layer."""

    def init(key):
        return {
            "w1": _drawn(key, num_inputs, HIDDEN),
            "b1": jnp.zeros(HIDDEN),
            **_head(HIDDEN, num_outputs),
        }

    return init, lambda params, x: jnp.tanh(x @ params["w1"] + params["b1"])


def transformer(num_inputs: int, num_outputs: int):
    """Returns init and features of a block of attention over groups of columns."""
    size = -(-num_inputs // NUM_TOKENS)

    def init(key):
        keys = jax.random.split(key, 6)
        embed = jax.random.normal(keys[0], (NUM_TOKENS, size, WIDTH))
        return {
            "embed": embed / math.sqrt(size),
            "places": 0.1 * jax.random.normal(keys[1], (NUM_TOKENS, WIDTH)),
            "qkv": _drawn(keys[2], WIDTH, 3 * WIDTH),
            "mix": _drawn(keys[3], WIDTH, WIDTH),
            "up": _drawn(keys[4], WIDTH, 2 * WIDTH),
            "down": _drawn(keys[5], 2 * WIDTH, WIDTH),
            **_head(WIDTH, num_outputs),
        }

    def features(params, x):
        groups = jnp.pad(x, (0, NUM_TOKENS * size - num_inputs)).reshape(-1, size)
        x = jnp.einsum("ts,tsw->tw", groups, params["embed"]) + params["places"]
        q, k, v = jnp.split(_standard(x) @ params["qkv"], 3, axis=1)
        weights = jax.nn.softmax(q @ k.T / math.sqrt(WIDTH), axis=1)
        x = x + weights @ v @ params["mix"]
        x = x + jax.nn.gelu(_standard(x) @ params["up"]) @ params["down"]
        return _standard(x).mean(axis=0)

    return init, features


def characters():
    """Returns init and features of a network from some characters to the next."""
    num = len(CHARACTERS)
    first, features = perceptron(CONTEXT * EMBEDDING, num)

    def init(key):
        table_key, key = jax.random.split(key)
        table = jax.random.normal(table_key, (num, EMBEDDING))
        return {"table": table, **first(key)}

    return init, lambda params, x: features(params, params["table"][x].reshape(-1))


def convolutional(channels: int, windows, strides, num_inputs: int):
    """Returns init and features of two convolutions and a dense layer of num_inputs.

    Each convolution pads by one, and maxima over 2 by 2 places follow it, much as in
    the networks of Tramer and Boneh (2021).
    """
    sizes = {"c1": (*[windows[0]] * 2, channels, 16), "c2": (*[windows[1]] * 2, 16, 32)}

    def init(key):
        *keys, last = jax.random.split(key, 3)
        drawn = {
            name: _drawn(key, math.prod(size[:3]), size[3]).reshape(size)
            for key, (name, size) in zip(keys, sizes.items(), strict=True)
        }
        biases = {"b1": jnp.zeros(16), "b2": jnp.zeros(32), "b3": jnp.zeros(32)}
        return drawn | {"w3": _drawn(last, num_inputs, 32)} | biases | _head(32, 10)

    def features(params, x):
        for i, stride in enumerate(strides, start=1):
            how = [stride] * 2, [(1, 1)] * 2, None, None, ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(x[None], params[f"c{i}"], *how)[0]
            x, places = jnp.tanh(x + params[f"b{i}"]), ((2, 2, 1), (1, 1, 1), "VALID")
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, *places)
        return jnp.tanh(x.reshape(-1) @ params["w3"] + params["b3"])

    return init, features


def _head(num_inputs: int, num_outputs: int) -> Params:
    zeros = jnp.zeros((num_inputs, num_outputs))
    return {"w_head": zeros, "b_head": jnp.zeros(num_outputs)}


def _drawn(key, num_in: int, num_out: int) -> jax.Array:
    return jax.random.normal(key, (num_in, num_out)) / math.sqrt(num_in)


def _standard(x: jax.Array) -> jax.Array:
    """Each row with mean 0 and variance 1: LayerNorm without parameters."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)


def _squeezed(features: np.ndarray) -> np.ndarray:
    return np.sign(features) * np.log1p(np.abs(features))


def _task(name, title, model, loss, parts, both, is_test) -> Task:
    """A task on rows that are told apart; `parts` are init and features."""
    train, test = (tuple(x[rows] for x in both) for rows in (~is_test, is_test))
    return Task(name, title, model, loss, *parts, train, test)


def _tabular(name: str, title: str, loader: str, every: int, model=perceptron) -> Task:
    """A regression on every so many records of a data set, and of its test set."""
    data = load(loader)
    inputs = _squeezed(data.features[::every, :-1])  # the last is of ones
    some = slice(None, None, max(1, len(data.test_targets) // 4_000))
    tests, test_targets = _squeezed(data.test_features[some]), data.test_targets[some]
    return Task(
        *(name, title, model.__name__, "squared", *model(inputs.shape[1], 1)),
        train=(inputs, data.targets[::every]),
        test=(tests[:, :-1], test_targets),
    )


def _digits() -> Task:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = ((images - 5) / 6).astype(np.float32)  # pixels are 0 to 16, most 0
    return _task(
        *("digits", "digits", "perceptron", "cross-entropy", perceptron(64, 10)),
        both=(images, labels.astype(np.int32)),
        is_test=np.arange(len(labels)) % 5 == 4,
    )


def _frozen_digits() -> Task:
    """Digits by features that are not trained: the network is its last layer."""
    digits = _digits()
    weights = np.random.default_rng(7).standard_normal((64, NUM_FROZEN)) / 8

    def features(_, x):
        return jnp.tanh(x @ jnp.asarray(weights, x.dtype))

    model = f"last layer over {NUM_FROZEN} frozen random features"
    how = {"init": lambda key: _head(NUM_FROZEN, 10), "features": features}
    names = {"name": "digits_frozen", "title": "digits, frozen features"}
    return replace(digits, model=model, **names, **how)


@cache
def _garments(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images (n, 28, 28) of a part of Fashion-MNIST, 0 to 1, and labels."""
    folder = os.environ.get("DPJAX_FASHION", "/usr/share/datasets/fashion-mnist")

    def read(kind, header):
        path = Path(folder, f"{part}-{kind}-ubyte.gz")
        if not path.is_file():
            how = "Debian's dataset-fashion-mnist, or set DPJAX_FASHION to its folder"
            raise FileNotFoundError(f"{path} is not on this machine: install {how}")
        return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8)[header:]

    images = read("images-idx3", 16).reshape(-1, 28, 28).astype(np.float32)
    return images / 255, read("labels-idx1", 8).astype(np.int32)


def _of_scattering(images):
    features = scattered(images)
    return features.reshape(len(features), -1)


def _fashion(
    name="fashion",
    title="scattering features",
    inputs=_of_scattering,
    parts=None,
    relation: NeighboringRelation = ADD_OR_REMOVE_ONE,
) -> Task:
    """Returns Fashion-MNIST with inputs that are a function of the images.

    `parts` are init and features of a network; without them it is the last layer alone.
    """
    (images, labels), (tests, test_labels) = _garments("train"), _garments("t10k")
    train, test = inputs(images), inputs(tests)
    last = lambda key: _head(train.shape[1], 10), lambda _, x: x
    model = "two convolutions and a dense layer" if parts else "last layer"
    kind = "replace-one" if relation is REPLACE_ONE else "add-or-remove"
    return Task(
        *(name, f"Fashion-MNIST, {title}, {kind}", model, "cross-entropy"),
        *(parts or last),
        train=(train, labels),
        test=(test, test_labels),
        published_delta=1e-5,
        relation=relation,
    )


def _adult() -> Task:
    data = datasets.load("adult")

    def rows(features, targets):
        return _squeezed(features[:, :-1]), (targets > 0).astype(np.int32)

    return Task(
        *("adult", "Adult", "perceptron", "cross-entropy"),
        *perceptron(data.features.shape[1] - 1, 2),
        train=rows(data.features, data.targets),
        test=rows(data.test_features, data.test_targets),
    )


def _characters() -> Task:
    """Windows, which do not overlap, of the manual in Python's `pydoc_data`."""
    from pydoc_data.topics import topics

    text = " ".join(" ".join(topics[name].split()) for name in sorted(topics)).lower()
    places = {character: index for index, character in enumerate(CHARACTERS)}
    codes = np.array([places.get(one, len(CHARACTERS) - 1) for one in text], np.int32)
    num = NUM_TEXTS + NUM_TEST_TEXTS
    windows = codes[: num * (CONTEXT + 1)].reshape(num, CONTEXT + 1)
    return _task(
        *("characters", "characters", "embedding and perceptron", "cross-entropy"),
        parts=characters(),
        both=(windows[:, :-1], windows[:, -1]),
        is_test=np.arange(num) % 5 == 4,
    )


def _made_regression(name: str, scale: float, num: int, zeros: float) -> Task:
    """A random network's outputs with noise of tail index 2.5, some set to zero."""
    rng = np.random.default_rng(5)
    inputs = rng.standard_t(4, (num + 4_000, 20)).astype(np.float32)
    hidden = np.tanh(inputs @ rng.standard_normal((20, 8)) / np.sqrt(20))
    means = 2 + hidden @ rng.standard_normal(8)
    targets = means + 0.5 * rng.standard_t(2.5, len(means))
    targets = scale * np.where(rng.random(len(means)) < zeros, 0, targets)
    title = f"made regression, targets of scale {scale:g}"
    title += f", {zeros:.0%} of them zero" if zeros else ""
    return _task(
        *(name, title, "perceptron", "squared", perceptron(20, 1)),
        both=(_squeezed(inputs), targets.astype(np.float32)),
        is_test=np.arange(len(means)) >= num,
    )


def _made_classes(name: str, num: int) -> Task:
    """Eight classes, each of two Gaussian clouds."""
    rng = np.random.default_rng(6)
    centres = rng.standard_normal((16, 30))
    clouds = rng.integers(16, size=num + 4_000)
    inputs = centres[clouds] + rng.standard_normal((len(clouds), 30))
    title = f"made classes, {num:,} records"
    return _task(
        *(name, title, "perceptron", "cross-entropy", perceptron(30, 8)),
        both=(inputs.astype(np.float32), (clouds % 8).astype(np.int32)),
        is_test=np.arange(len(clouds)) >= num,
    )


# Title, data set, every how many of its records, and the model.
_TABULAR = {
    "blog_feedback": ("BlogFeedback", "blog_feedback", 4),
    "belgian_motor": ("Belgian motor", "belgian_motor", 8),
    "rand_hie": ("RAND HIE", "rand_hie", 1),
    "rand_hie_transformer": ("RAND HIE, transformer", "rand_hie", 1, transformer),
}
NAMES = *_TABULAR, "digits", "characters"
MADE_NAMES = "made_small", "made_large", "made_zeros", "made_classes", "made_few"
PUBLISHED_NAMES = "adult", "digits_frozen", "fashion", "fashion_replaced"
PUBLISHED_NAMES += "fashion_network", "fashion_pixels"
_MAKERS: dict[str, Callable[[], Task]] = {
    **{name: partial(_tabular, name, *how) for name, how in _TABULAR.items()},
    "digits": _digits,
    "characters": _characters,
    "made_small": partial(_made_regression, "made_small", 0.1, 12_000, 0.0),
    "made_large": partial(_made_regression, "made_large", 10.0, 12_000, 0.0),
    "made_zeros": partial(_made_regression, "made_zeros", 1.0, 12_000, 0.8),
    "made_classes": partial(_made_classes, "made_classes", 12_000),
    "made_few": partial(_made_classes, "made_few", 1_500),
    "adult": _adult,
    "fashion": _fashion,
    "fashion_replaced": partial(_fashion, "fashion_replaced", relation=REPLACE_ONE),
    "fashion_network": partial(
        *(_fashion, "fashion_network", "network on scattering features"),
        lambda images: scattered(images).transpose(0, 2, 3, 1),
        convolutional(81, (3, 3), (2, 1), 128),
    ),
    "fashion_pixels": partial(
        *(_fashion, "fashion_pixels", "network on pixels"),
        lambda images: (images[..., None] - 0.286) / 0.353,  # public mean and spread
        convolutional(1, (8, 4), (2, 2), 512),
    ),
    "digits_frozen": _frozen_digits,
}


@cache
def task(name: str) -> Task:
    """Returns a task, loaded or drawn at its first use."""
    return _MAKERS[name]()
