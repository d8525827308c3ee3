"""The cases of each suite, in the order that they run and stand on the page."""

from dataclasses import replace
from functools import lru_cache, partial

import jax

import dpjax
from benchmarks.speed import peers
from benchmarks.speed.case import Case, Method, Target
from benchmarks.speed.layers import LAYERS
from benchmarks.speed.models import MODELS
from dpjax._sums.stream import SampleStream
from dpjax.estimators import (
    Clipping,
    Mean,
    SmoothedTruncation,
    Truncation,
    Winsorization,
)

THRESHOLD = 0.01
PLAIN, OPTAX = "plain gradient", "optax differentially_private_aggregate"
HOOKS, GHOST = "Opacus, hooks", "Opacus, ghost clipping"


def coordinatewise(threshold):
    """Returns the estimators that every table compares, at one threshold."""
    return {
        "Mean": Mean(),
        "Truncation": Truncation(threshold),
        "Winsorization": Winsorization(threshold),
        "Clipping": Clipping(1.0),
        "SmoothedTruncation, beta 1": SmoothedTruncation(threshold),
        "SmoothedTruncation, beta 9.21": SmoothedTruncation(threshold, 9.21),
    }


# -- Means of samples in memory --------------------------------------------------------


@lru_cache(maxsize=1)
def _samples(n, d):
    return jax.random.normal(jax.random.key(0), (n, d))  # made where it is needed


def _mean_of(estimator, n, d, microbatch_size=None):
    """Returns the mean by an estimator, or the plain sum, and its arguments."""

    def mean(estimator, x):
        stream = replace(SampleStream.of(x), microbatch_size=microbatch_size)
        return estimator.with_aux(stream, normalize_by=n)[0]

    if estimator is None:
        return jax.jit(lambda x: x.sum(axis=0)), (_samples(n, d),)
    return jax.jit(mean), (estimator, _samples(n, d))


def _reduction(n, d):
    read = 4 * n * d
    kinds = [("jnp.sum", "jax", None, None)]
    for name, estimator in coordinatewise(0.5).items():
        for size in (None, 2**12, 2**14, 2**16, n):
            label = name if size is None else f"{name}, microbatch {size:,}"
            kinds.append((label, "dpjax", estimator, size))
    return [
        Method(label, partial(_mean_of, estimator, n, d, size), package, read)
        for label, package, estimator, size in kinds
    ]


_SHARES = [Target(x, quantity="copy_share", at_least=0.6) for x in coordinatewise(0.5)]
REDUCTIONS = [
    Case(
        f"reduction-{n}x{d}",
        f"The mean of {n:,} samples of {d:,} coordinates in memory",
        *(partial(_reduction, n, d), _SHARES, "jnp.sum"),
        has_peak=False,
    )
    for n, d in ((2**20, 1024), (2**14, 2**16), (2**24, 64))
]

# -- Gradients of models ---------------------------------------------------------------


@lru_cache(maxsize=1)
def setting(model, batch_size):
    """Makes a model's loss function, parameters and batch, once."""
    return (MODELS[model] if model in MODELS else LAYERS[model][1])(batch_size)


def robust(estimator, *model):
    """Returns `robust_grad` of a setting as a compiled program, and its arguments."""
    loss_fn, params, batch = setting(*model)
    return jax.jit(dpjax.robust_grad(loss_fn, estimator)), (params, batch)


def _microbatch_name(size):
    size = "the whole batch" if size is None else f"microbatch {size:,}"
    return f"jax_privacy, {size}"


def gradient_methods(model, batch_size, microbatch_sizes, *, leave=()):
    """Returns all methods that have this model, but for those in `leave`."""

    def peer(name, function, package, **options):
        def make():
            return function(*setting(model, batch_size), **options)

        return Method(name, make, package)

    methods = [peer(PLAIN, peers.plain, "jax")]
    for name, estimator in coordinatewise(THRESHOLD).items():
        methods.append(Method(name, partial(robust, estimator, model, batch_size)))
    for size in microbatch_sizes:
        how = _microbatch_name(size), peers.jax_privacy, "jax_privacy"
        methods.append(peer(*how, microbatch_size=size))
    methods.append(peer(OPTAX, peers.optax_aggregate, "optax"))
    if model in peers.TORCH:
        for name, is_ghost in ((HOOKS, False), (GHOST, True)):
            options = {"model": model, "is_ghost": is_ghost}
            methods.append(peer(name, peers.opacus, "opacus", **options))
    return [method for method in methods if method.name not in leave]


def _faster(method, factor, sizes):
    names = [_microbatch_name(size) for size in sizes]
    best = "jax_privacy at its best microbatch"
    return Target(method, names, times_faster=factor, against_name=best)


def _targets(model, clipping, sizes, factor=1):
    """What every model is asked: its price, its memory, to be ahead of the peers."""
    asked = [Target("Clipping", [PLAIN], at_most=clipping)]
    for quantity, bound in ("temporary_bytes", 1.3), ("compile_seconds", 2.2):
        asked.append(Target("Clipping", [PLAIN], at_most=bound, quantity=quantity))
    asked += [_faster("Clipping", factor, sizes)]
    asked += [Target("Clipping", [OPTAX], times_faster=factor)]
    names = (HOOKS, GHOST) if model in peers.TORCH else ()
    return asked + [Target("Clipping", [name], times_faster=1) for name in names]


SMOOTHED = ["SmoothedTruncation, beta 1", "SmoothedTruncation, beta 9.21"]
MLP_SIZES = (1, 2, 4, 8, 16, 32, 64, None)


def _model_case(model, title, batch_size, clipping):
    is_mlp = model == "mlp"
    sizes = MLP_SIZES if is_mlp else (1, 4, 16, 64, None)
    sizes = tuple(size for size in sizes if size is None or size < batch_size)
    targets = _targets(model, clipping, sizes, factor=10 if is_mlp else 1)
    if is_mlp:
        targets += [Target("Clipping", [GHOST], times_faster=1.5)]
        bounds = {"Truncation": 3, "Winsorization": 3} | dict.fromkeys(SMOOTHED, 8)
        targets += [Target(x, [PLAIN], at_most=most) for x, most in bounds.items()]
        targets += [_faster("Truncation", 1, sizes)]
        targets += [Target("Truncation", [OPTAX], times_faster=1)]
    name, title = f"gradient-{model.replace('_', '-')}", f"{title}, batch {batch_size}"
    build = partial(gradient_methods, model, batch_size, sizes)
    return Case(name, title, build, targets, PLAIN)


def _layer_case(layer):
    title, _, batch_size = LAYERS[layer]
    sizes = (1, 4, 16, None)
    leave = ["Mean", "Truncation", "Winsorization", *SMOOTHED, OPTAX]
    build = partial(gradient_methods, layer, batch_size, sizes, leave=leave)
    targets, title = [_faster("Clipping", 1, sizes)], f"{title}, batch {batch_size}"
    return Case(f"layer-{layer}", title, build, targets, PLAIN, has_peak=False)


def _gpu_case(model, batch_size):
    # Others take half a minute each to compile there.
    leave = ["Mean", "Winsorization", *SMOOTHED, OPTAX]
    build = partial(gradient_methods, model, batch_size, (None,), leave=leave)
    return Case(
        f"gradient-{model.replace('_', '-')}-{batch_size}",
        f"The robust gradient of the model {model!r}, batch {batch_size:,}",
        build,
        [Target("Clipping", [PLAIN], at_most=2), _faster("Clipping", 1, (None,))],
        PLAIN,
        has_peak=False,
    )


SUITES = {
    "cpu": [
        _model_case("mlp", "The robust gradient of an MLP 784-256-10", 256, 1.5),
        _model_case("convolutional", "A convolutional network", 256, 2),
        _model_case("transformer", "A transformer", 64, 1.5),
        _model_case("text_classifier", "A text classifier", 256, 2),
        _model_case("low_rank_tokens", "Products of low rank on all tokens", 32, 1.5),
        _model_case("decoder", "A decoder of 10 million parameters", 8, 1.5),
        *map(_layer_case, LAYERS),
    ],
    "gpu": [
        *REDUCTIONS,
        *(_gpu_case("mlp", 256), _gpu_case("mlp", 4096), _gpu_case("transformer", 256)),
        *(_gpu_case("text_classifier", size) for size in (256, 4096)),
    ],
}
CASES = {case.name: case for cases in SUITES.values() for case in cases}
