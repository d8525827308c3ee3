"""Robust gradients of models, beside the peers' private gradients."""

import math
from functools import cache, lru_cache, partial

import jax
import numpy as np

import dpjax
from benchmarks.speed import peers
from benchmarks.speed.case import Case, Method, Target, Work
from benchmarks.speed.estimators import OPERATIONS, coordinatewise
from benchmarks.speed.models import MODELS, Transformer, mlp
from dpjax.estimators import Clipping, Truncation

THRESHOLD = 0.01
PLAIN, OPTAX = "plain gradient", "optax differentially_private_aggregate"
HOOKS, GHOST = "Opacus, hooks", "Opacus, ghost clipping"


@lru_cache(maxsize=1)
def setting(model, batch_size, *size):
    """A model's loss function, parameters and batch, made once; `size` is its width."""
    return MODELS[model](batch_size, *size)


def num_parameters(params):
    """Returns the entries of all leaves together."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


@cache
def plain_operations(*model):
    """Operations of the plain gradient of the batch, by the compiler's count."""
    with jax.default_device(jax.devices("cpu")[0]):  # others do not count them
        grad, arguments = peers.plain(*setting(*model))
        arguments = jax.tree.map(np.asarray, arguments)
        return dict(grad.lower(*arguments).cost_analysis() or {})["flops"]


def gradient_work(operations, model, batch_size, *size, in_turn=16):
    """The gradients themselves, and passes over an accumulator of their size.

    One pass for as many samples as are added in turn, with so many operations for each
    sample and coordinate; none where norms come from factors. For linear regression the
    accumulator is tiny, and the data are read once.
    """
    d = num_parameters(setting(model, batch_size, *size)[1])
    sizes = {"B": batch_size, "d": d, "c": operations, "k": in_turn}
    if model == "linear":
        return Work("4*B*(d + 1)", "(4 + c)*B*d", "4*B*(d + 1)", sizes)
    sizes["f"] = plain_operations(model, batch_size, *size) / batch_size
    return Work("8*B*d/k", "B*f + c*B*d", "8*d", sizes)


def robust(estimator, *model):
    """`robust_grad` of a setting as a compiled program, and its arguments."""
    loss_fn, params, batch = setting(*model)
    return jax.jit(dpjax.robust_grad(loss_fn, estimator)), (params, batch)


def _peer(function, *model, **options):
    return lambda: function(*setting(*model), **options)


def microbatch_name(size):
    """The name of jax_privacy's method at a microbatch size; None is all."""
    size = "the whole batch" if size is None else f"microbatch {size:,}"
    return f"jax_privacy, {size}"


def gradient_methods(
    model, batch_size, microbatch_sizes, *, threshold=THRESHOLD, leave=()
):
    """All methods that have this model, but for those in `leave`."""
    of = model, batch_size
    methods = [Method(PLAIN, _peer(peers.plain, *of), "jax")]
    for name, estimator in coordinatewise(threshold).items():
        work = partial(gradient_work, OPERATIONS[name], model, batch_size)
        if name == "Clipping":  # from norms, which come from factors
            work = partial(gradient_work, 0, model, batch_size, in_turn=batch_size)
        make = partial(robust, estimator, model, batch_size)
        methods.append(Method(name, make, work=work))
    for size in microbatch_sizes:
        make = _peer(peers.jax_privacy, *of, microbatch_size=size)
        methods.append(Method(microbatch_name(size), make, "jax_privacy"))
    methods.append(Method(OPTAX, _peer(peers.optax_aggregate, *of), "optax"))
    if model in peers.TORCH:
        for name, is_ghost in ((HOOKS, False), (GHOST, True)):
            make = _peer(peers.opacus, *of, model=model, is_ghost=is_ghost)
            methods.append(Method(name, make, "opacus"))
    numpy = {"mlp": peers.numpy_mlp, "linear": peers.numpy_linear}.get(model)
    if numpy is not None:
        make = _peer(numpy, *of, threshold=threshold)
        methods.append(Method("NumPy, Truncation by hand", make, "numpy"))
    return [method for method in methods if method.name not in leave]


def faster(method, factor, sizes):
    """A target against jax_privacy's best microbatch."""
    names = [microbatch_name(size) for size in sizes]
    best = "jax_privacy at its best microbatch"
    return Target(method, names, times_faster=factor, against_name=best)


# Compiling takes most of a quick run.
NOT_QUICK = [
    "Mean",
    "Winsorization",
    "SmoothedTruncation, beta 1",
    "SmoothedTruncation, beta 9.21",
    HOOKS,
]
MLP_SIZES = (1, 2, 4, 8, 16, 32, 64, None)
SIZES = (1, 4, 16, 64, None)
# Times the plain gradient.
MLP_BOUNDS = {
    "Truncation": 3,
    "Winsorization": 3,
    "SmoothedTruncation, beta 1": 8,
    "SmoothedTruncation, beta 9.21": 8,
}


def _targets(model, clipping, sizes, *, leave=(), factor=1):
    """What every model is asked: its price, its memory, to be ahead of the peers."""
    asked = [Target("Clipping", [PLAIN], at_most=clipping)]
    for quantity, bound in ("temporary_bytes", 1.3), ("compile_seconds", 2.2):
        asked.append(Target("Clipping", [PLAIN], at_most=bound, quantity=quantity))
    asked.append(faster("Clipping", factor, sizes))
    others = [OPTAX]
    if model in peers.TORCH:
        others += [HOOKS, GHOST]
    for name in others:
        if name not in leave:
            least = factor if name == OPTAX else 1
            asked.append(Target("Clipping", [name], times_faster=least))
    return asked


MLP = Case(
    name="gradient-mlp",
    title="The robust gradient of an MLP 784-256-10, batch 256",
    build=lambda quick: (
        gradient_methods("mlp", 64, (1, 2), leave=NOT_QUICK[-2:])
        if quick
        else gradient_methods("mlp", 256, MLP_SIZES)
    ),
    yardstick=PLAIN,
    targets=[
        *_targets("mlp", 1.5, MLP_SIZES, factor=10),
        Target("Clipping", [GHOST], times_faster=1.5),
        *(Target(name, [PLAIN], at_most=bound) for name, bound in MLP_BOUNDS.items()),
        faster("Truncation", 1, MLP_SIZES),
        Target("Truncation", [OPTAX], times_faster=1),
    ],
)


def _model_case(model, title, batch_sizes, clipping, leave=NOT_QUICK):
    full, small = batch_sizes
    sizes = tuple(size for size in SIZES if size is None or size < full)
    return Case(
        name=f"gradient-{model.replace('_', '-')}",
        title=f"{title}, batch {full}",
        build=lambda quick: (
            gradient_methods(model, small, (1,), leave=leave)
            if quick
            else gradient_methods(model, full, sizes)
        ),
        yardstick=PLAIN,
        targets=_targets(model, clipping, sizes),
    )


CONVOLUTIONAL_MODELS = [
    _model_case(
        *("small_convolutional", "A small convolutional network", (256, 64), 2),
        leave=[*NOT_QUICK, OPTAX, GHOST],
    ),
    _model_case("convolutional", "A convolutional network", (256, 64), 2),
]
OTHER_MODELS = [
    _model_case("transformer", "A transformer", (64, 32), 1.5),
    _model_case("text_classifier", "A text classifier", (256, 64), 2),
    _model_case(
        *("low_rank", "A layer with a trained product of low rank", (256, 64), 1.5)
    ),
    _model_case("low_rank_tokens", "Products of low rank on all tokens", (32, 8), 1.5),
    _model_case("lstm", "An LSTM on 64 vectors", (64, 16), 1.4),
    _model_case("gru", "A GRU on 64 vectors", (64, 16), 1.4),
    _model_case("decoder", "A decoder of 10 million parameters", (8, 2), 1.5),
]


def _points(x, words, makes):
    """The methods at one point of an axis."""
    for name, (package, make) in makes.items():
        yield Method(f"{name}, {words}", make, package, series=name, x=x)


def _sizes(model, quick):
    """The plain gradient, two estimators and a peer, from small to large batches."""
    estimators = coordinatewise(THRESHOLD)
    for size in (16,) if quick else (16, 64, 256, 1024, 4096):
        makes = {PLAIN: ("jax", _peer(peers.plain, model, size))}
        for name in ("Clipping", "Truncation"):
            makes[name] = ("dpjax", partial(robust, estimators[name], model, size))
        if not quick:
            ghost = _peer(peers.opacus, model, size, model=model, is_ghost=True)
            makes[GHOST] = ("opacus", ghost)
        yield from _points(size, f"batch {size:,}", makes)


def _at(method, size):
    return f"{method}, batch {size:,}"


LENGTHS = (64, 256, 1024)


def _lengths(num_tokens, quick):
    """The plain gradient, clipping and the peers in JAX, on short and long sequences.

    A batch has as many tokens in all at each length.
    """
    for length in LENGTHS[:1] if quick else LENGTHS:
        size = num_tokens // length // (8 if quick else 1)
        of = "transformer", size, Transformer(length)
        makes = {
            PLAIN: ("jax", _peer(peers.plain, *of)),
            "Clipping": ("dpjax", partial(robust, Clipping(1.0), *of)),
            OPTAX: ("optax", _peer(peers.optax_aggregate, *of)),
        }
        for size in (1, 4):
            make = _peer(peers.jax_privacy, *of, microbatch_size=size)
            makes[microbatch_name(size)] = ("jax_privacy", make)
        yield from _points(length, f"{length:,} tokens", makes)


def _lengths_case(name, num_tokens):
    return Case(
        name=name,
        title=f"Sequences of 64 to 1,024: a transformer, {num_tokens:,} tokens in all",
        build=lambda quick: list(_lengths(num_tokens, quick)),
        yardstick=PLAIN,
        has_peak=False,
        axis="tokens in a sequence",
        targets=[
            Target(
                f"Clipping, {length:,} tokens",
                [f"{microbatch_name(size)}, {length:,} tokens" for size in (1, 4)],
                times_faster=1,
                against_name="jax_privacy at its best microbatch",
            )
            for length in LENGTHS
        ],
    )


def _sizes_case(model, bound=None):
    words = model.replace("_", " ")
    return Case(
        name=f"batch-sizes-{model.replace('_', '-')}",
        title=f"Batches of 16 to 4,096: the {'MLP' if model == 'mlp' else words} model",
        build=lambda quick: list(_sizes(model, quick)),
        yardstick=PLAIN,
        has_peak=False,
        axis="records in a batch",
        targets=[
            Target(_at("Clipping", size), [_at(PLAIN, size)], at_most=bound)
            for size in (1024, 4096)
            if bound
        ],
    )


SEQUENCES = _lengths_case("sequence-lengths", 2**13)
BATCH_SIZES = [
    _sizes_case("mlp", 1.5),
    _sizes_case("small_convolutional", 2),
    _sizes_case("text_classifier"),
    _sizes_case("low_rank"),
]

LINEAR_SIZES = (256, 1024, 4096, 16384)
LINEAR = Case(
    name="gradient-linear",
    title="The robust gradient of linear regression, n = 98,304, d = 50",
    build=lambda quick: gradient_methods(
        "linear",
        98_304,
        (1024,) if quick else LINEAR_SIZES,
        threshold=1.0,
        leave=NOT_QUICK if quick else (),
    ),
    yardstick=PLAIN,
    targets=[
        target
        for method in ("Truncation", "Clipping")
        for target in (
            faster(method, 1, LINEAR_SIZES),
            Target(method, [OPTAX], times_faster=1),
        )
    ],
)


def _batch_memory(quick):
    del quick

    def method(size):
        def make():
            loss_fn, params, batch = mlp(size, width=512)
            grad = dpjax.robust_grad(loss_fn, Truncation(THRESHOLD))
            return jax.jit(grad), (params, batch)

        return Method(f"batch {size:,}", make)

    return [method(256), method(4096)]


BATCH_MEMORY = Case(
    name="memory",
    title="Memory at batch 4,096 beside batch 256",
    build=_batch_memory,
    yardstick="batch 256",
    quick_peak=True,
    targets=[
        Target("batch 4,096", ["batch 256"], at_most=1.3, quantity=quantity)
        for quantity in ("peak_bytes", "temporary_bytes")
    ],
)


def _gpu_methods(model, batch_size, quick):
    *slow_to_compile, _ = NOT_QUICK  # half a minute each on a GPU
    sizes = _gpu_sizes(model)
    if not quick:
        leave = [*slow_to_compile, OPTAX]
        return gradient_methods(model, batch_size, sizes, leave=leave)
    if batch_size > 256 or model == "gpt2":  # one batch a model will do
        return []
    return gradient_methods(model, 8, sizes, leave=[*NOT_QUICK, OPTAX])


def _gpu_sizes(model):
    return (8,) if model == "gpt2" else (None,)  # 64 of its gradients take 32 GB


def _gpu_case(model, batch_size):
    return Case(
        name=f"gradient-{model.replace('_', '-')}-{batch_size}",
        title=f"The robust gradient of the model {model!r}, batch {batch_size:,}",
        build=partial(_gpu_methods, model, batch_size),
        yardstick=PLAIN,
        has_peak=False,
        targets=[
            Target("Clipping", [PLAIN], at_most=2),
            faster("Clipping", 1, _gpu_sizes(model)),
        ],
    )


GPU_MODELS = [
    _gpu_case(model, batch_size)
    for model, batch_sizes in {
        "mlp": (256, 4096),
        "small_convolutional": (256, 4096),
        "convolutional": (256,),
        "transformer": (256,),
        "text_classifier": (256, 4096),
        "low_rank": (4096,),
        "low_rank_tokens": (256,),
        "decoder": (128,),
        "gpt2": (64,),
    }.items()
    for batch_size in batch_sizes
] + [_lengths_case("sequence-lengths-gpu", 2**16)]
