"""Robust gradients of models, beside the peers' private gradients."""

from functools import lru_cache, partial

import jax

import dpjax
from benchmarks.speed import peers
from benchmarks.speed.case import Case, Method, Target
from benchmarks.speed.estimators import coordinatewise
from benchmarks.speed.models import MODELS

THRESHOLD = 0.01
PLAIN, OPTAX = "plain gradient", "optax differentially_private_aggregate"
HOOKS, GHOST = "Opacus, hooks", "Opacus, ghost clipping"


@lru_cache(maxsize=1)
def setting(model, batch_size):
    """A model's loss function, parameters and batch, made once."""
    return MODELS[model](batch_size)


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


def gradient_methods(model, batch_size, microbatch_sizes, *, leave=()):
    """All methods that have this model, but for those in `leave`."""
    of = model, batch_size
    methods = [Method(PLAIN, _peer(peers.plain, *of), "jax")]
    for name, estimator in coordinatewise(THRESHOLD).items():
        methods.append(Method(name, partial(robust, estimator, model, batch_size)))
    for size in microbatch_sizes:
        make = _peer(peers.jax_privacy, *of, microbatch_size=size)
        methods.append(Method(microbatch_name(size), make, "jax_privacy"))
    methods.append(Method(OPTAX, _peer(peers.optax_aggregate, *of), "optax"))
    if model in peers.TORCH:
        for name, is_ghost in ((HOOKS, False), (GHOST, True)):
            make = _peer(peers.opacus, *of, model=model, is_ghost=is_ghost)
            methods.append(Method(name, make, "opacus"))
    if model == "mlp":
        make = _peer(peers.numpy_mlp, *of, threshold=THRESHOLD)
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


MODEL_CASES = [
    _model_case(
        *("small_convolutional", "A small convolutional network", (256, 64), 2),
        leave=[*NOT_QUICK, OPTAX, GHOST],
    ),
    _model_case("convolutional", "A convolutional network", (256, 64), 2),
    _model_case("transformer", "A transformer", (64, 32), 1.5),
    _model_case("text_classifier", "A text classifier", (256, 64), 2),
    _model_case(
        *("low_rank", "A layer with a trained product of low rank", (256, 64), 1.5)
    ),
    _model_case("low_rank_tokens", "Products of low rank on all tokens", (32, 8), 1.5),
    _model_case("decoder", "A decoder of 10 million parameters", (8, 2), 1.5),
]


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
]
