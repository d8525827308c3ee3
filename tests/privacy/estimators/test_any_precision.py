"""Samples of every precision and size, in programs drawn at random, with x64.

Trees of mixed types, as arrays or factored; records of any norm from 1e-300 to 1e300;
divisors and limits at hand or traced; one device or eight.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from dpjax import ADD_OR_REMOVE_ONE, estimators, gradients, robust_grad
from tests import registry

P, Q, ROWS = 6, 5, 9
DTYPES = ["float64", "float32", "bfloat16", "float16"]
SHAPES = {  # of a parameter
    **dict.fromkeys(("dense", "positions", "shared", "curved"), (P, Q)),
    "table": (ROWS, Q),
    **{"tied": (ROWS, P), "written": (ROWS,), "bias": (Q,), "number": ()},
}
MODES = ["fill", "clip"]
SIZES = [*(0, 1, -1, -8, 8, 18, 19, 20, 38, 39), *(-20, -38, -45, -150, -300)]
SIZES += [45, 100, 150, 154, 155, 300]


def term(kind, param, mode, x, y, tokens):
    """What a parameter adds to the loss; x (2, P), y (Q,), tokens (3,)."""
    match kind:
        case "dense":
            return (x[0] @ param) @ y
        case "positions":
            return jnp.sum((x @ param) * y[None])
        case "shared":
            return (x[0] @ param) @ y - (x[1] @ param) @ y[::-1]
        case "curved":
            return jnp.tanh(x[0] @ param) @ y
        case "table":
            return jnp.sum(jnp.take(param, tokens, axis=0, mode=mode) @ y)
        case "tied":
            read = param.at[tokens].get(mode=mode)
            return jnp.sum(read @ x[0]) + (param @ x[1])[0]
        case "written":
            mode = "drop" if mode == "fill" else mode
            return param.at[tokens].mul(y[:3], mode=mode) @ jnp.ones(ROWS, y.dtype)
        case "bias":
            return y @ param
    return x[0, 0] * param


def bounded(params, size):
    """Every estimator with a finite sensitivity, and variants of those of norms."""
    clipping, normalization = estimators.Clipping(size), estimators.Normalization(size)
    by_leaf = partial(estimators.Grouped, groups=(*params,))
    adaptive = partial(estimators.AdaptiveThreshold, lower=1e-12, upper=1e30)
    ratios, scales = estimators.Winsorization(size), dict.fromkeys(params, 1e3)
    return {
        **registry.bounded_estimators(size),
        "by leaf": by_leaf(clipping),
        "by leaf, smoothed": by_leaf(estimators.SmoothedClipping(size)),
        "by leaf, normalized": by_leaf(normalization),
        "counting": adaptive(clipping).counting,
        "counting by leaf": adaptive(by_leaf(normalization)).counting,
        "scaled": estimators.Scaled(ratios, 0.3).measured,
        "scaled clipping": estimators.Scaled(clipping, scales).measured,
    }


def records(rng, count):
    """Records (x, y) of any norm, some of whose entries are no numbers."""
    for size in rng.permutation(np.resize(SIZES, count)):
        share = rng.choice([0.0, 0.5, 1.0, 3.0, -2.0])
        x, y = rng.standard_normal((2, P)), rng.standard_normal(Q)
        x = x * 10.0 ** np.clip(share * size, -305, 305)
        y = y * 10.0 ** np.clip((1 - share) * size, -305, 305)
        if rng.random() < 0.2:
            x.flat[rng.integers(2 * P)] = rng.choice([np.nan, np.inf, -1.7e308, 5e-324])
        if rng.random() < 0.2:
            y[rng.integers(Q)] = rng.choice([np.nan, -np.inf, 0.0, 1.7e308])
        if rng.random() < 0.2:
            x[1] = x[0]  # terms that cancel
        yield x, y


class Program:
    def __init__(self, seed, num_devices):
        self.rng = rng = np.random.default_rng(seed)
        kinds = rng.choice([*SHAPES], rng.integers(1, 5))
        self.kinds = {f"{i}": str(kind) for i, kind in enumerate(kinds)}
        self.made_in = {name: rng.choice(DTYPES) for name in self.kinds}
        self.mode = str(rng.choice(MODES))
        self.params = {
            name: jnp.full(SHAPES[kind], 0.5, rng.choice(DTYPES))
            for name, kind in self.kinds.items()
        }
        self.size = rng.choice([1.0, 1.0, 0.3, 1e-12, 1e-3, 1e8, 1e25])
        choices = bounded(self.params, float(self.size))
        self.name = [*choices][seed % len(choices)]  # all of them, in turn
        self.estimator = choices[self.name]
        self.num_rows = int(rng.choice([8, 24, 264, 4_608, 9_008]))
        self.is_streamed = rng.random() < 0.7
        self.microbatch_size = rng.choice([None, 1, 3, 100])
        self.mask = rng.random(self.num_rows) < rng.choice([0.0, 0.3])
        self.mask[0] = False
        # A type of the divisor and the limit, where they are traced.
        self.divided_in = rng.choice([None, *DTYPES])
        self.limited_in = rng.choice([None, "float64", "float32"])
        self.divisor = self.num_rows * rng.choice([1.0, 0.37, 2.5, 1 / 64])
        if self.divided_in is not None:
            self.divisor = jnp.asarray(self.divisor, self.divided_in)
        elif self.num_rows > 4_608:  # then a smaller one is refused
            self.divisor = max(self.divisor, self.num_rows / 1.124)
        if self.estimator.groups_by_index:
            self.divisor, self.divided_in = None, None
        self.num_devices = num_devices

    def __str__(self):
        shown = vars(self) | {"params": {k: v.dtype for k, v in self.params.items()}}
        return str({k: v for k, v in shown.items() if k not in ("rng", "mask")})

    def loss(self, params, example):
        total = jnp.zeros(())
        for name, kind in self.kinds.items():
            dtype = self.made_in[name]
            x, y = (example[i].astype(dtype) for i in "xy")
            param, tokens = params[name].astype(dtype), example["tokens"]
            total += term(kind, param, self.mode, x, y, tokens).astype(total.dtype)
        return total

    def run(self, estimator, divisor, params, batch, mask):
        options = {"axis_name": "records"} if self.num_devices > 1 else {}
        options["normalize_by"] = divisor
        by = self.num_rows if divisor is None else divisor
        if self.is_streamed:
            size = self.microbatch_size
            grad_fn = robust_grad(self.loss, estimator, microbatch_size=size, **options)
            mean = grad_fn(params, batch, mask)
        else:
            samples = gradients.per_sample_grad(self.loss)(params, batch)
            mean = estimator(samples, mask, **options)
        d = sum(x.size for x in jax.tree.leaves(params))
        stated = estimator.sensitivity(by, d)
        return mean, (stated, estimator.sensitivity(by, d, ADD_OR_REMOVE_ONE))

    def compiled(self):
        estimator, divisor, given = self.estimator, self.divisor, {}
        if self.divided_in is not None:
            given["divisor"] = divisor
        if self.limited_in is not None:
            given["estimator"] = estimator = jax.tree.map(
                lambda x: jnp.asarray(x, self.limited_in), estimator
            )
        known = {"estimator": estimator, "divisor": divisor}
        run = jax.jit(lambda given, *rest: self.run(*(known | given).values(), *rest))
        return lambda *rest: run(given, self.params, *self.dealt(rest))

    def dealt(self, tree):
        if self.num_devices == 1:
            return tree
        devices = jax.devices()[: self.num_devices]
        mesh = jax.make_mesh((self.num_devices,), ("records",), devices=devices)
        return jax.device_put(tree, NamedSharding(mesh, PartitionSpec("records")))


def check_moves_of_program(seed, num_devices=1):
    with jax.enable_x64(True):
        program = Program(seed, num_devices)
        rng, n = program.rng, program.num_rows
        x, y = map(np.stack, zip(*records(rng, n), strict=True))
        tokens = rng.integers(-ROWS, 2 * ROWS, (n, 3))
        tokens = tokens.astype(rng.choice(["int8", "int64"]))
        others = [*records(rng, 24)]
        if rng.random() < 0.4:  # all but one agree: what moves a mean the most
            x[:], y[:], tokens[:] = x[-1], y[-1], tokens[-1]
            x[::2] *= rng.choice([1.0, -1.0])
            others += [(x[1], y[1]), (-x[1], y[1])]
        run, means = program.compiled(), []
        for record in [None, *others]:
            mask = program.mask.copy()
            if record is None:
                mask[0] = True
            else:
                x[0], y[0] = record
            mean, stated = run({"x": x, "y": y, "tokens": tokens}, mask)
            means.append([np.ravel(np.float64(leaf)) for leaf in jax.tree.leaves(mean)])
        means = np.stack([np.concatenate(leaves) for leaves in means])
        assert np.isfinite(means).all(), program
        moves = np.abs(means[:, None] - means[None])
        moves = moves.sum(-1), np.sqrt((moves**2).sum(-1)), moves.max(-1)
        moves = np.stack(moves, axis=-1)
        replaced, masked = np.asarray(stated, np.float64)
        ratio = (moves[1:, 1:] / replaced).max((0, 1)), (moves[0] / masked).max(0)
        print("REACHED", program.name, np.max(ratio))
        assert np.max(ratio) <= 1, (ratio, str(program))


@pytest.mark.quick(20)
@pytest.mark.parametrize("seed", range(400))
def test_no_record_moves_a_mean_beyond_its_sensitivity(seed):
    check_moves_of_program(seed)
