"""Robust gradients of models, beside the peers' private gradients."""

import math
from functools import cache, lru_cache, partial

import jax

import dpjax
from benchmarks import peers
from benchmarks.case import Case, Method, Target, Work
from benchmarks.estimators import OPERATIONS, coordinatewise
from benchmarks.models import MODELS, mlp
from dpjax.estimators import Truncation

THRESHOLD = 0.01
PLAIN, OPTAX = "plain gradient", "optax differentially_private_aggregate"


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
    grad, arguments = peers.plain(*setting(*model))
    return dict(grad.lower(*arguments).cost_analysis() or {})["flops"]


def gradient_work(operations, model, batch_size, *size):
    """The gradients themselves, and a pass over an accumulator for each sample.

    For linear regression the accumulator is tiny, and the data are read once.
    """
    d = num_parameters(setting(model, batch_size, *size)[1])
    sizes = {"B": batch_size, "d": d, "c": operations}
    if model == "linear":
        return Work("4*B*(d + 1)", "(4 + c)*B*d", "4*B*(d + 1)", sizes)
    sizes["f"] = plain_operations(model, batch_size, *size) / batch_size
    return Work("8*B*d", "B*f + c*B*d", "8*d", sizes)


def robust(estimator, *model):
    """`robust_grad` of a setting as a compiled program, and its arguments."""
    loss_fn, params, batch = setting(*model)
    return jax.jit(dpjax.robust_grad(loss_fn, estimator)), (params, batch)


def microbatch_name(size):
    """The name of jax_privacy's method at a microbatch size; None is all."""
    size = "the whole batch" if size is None else f"microbatch {size:,}"
    return f"jax_privacy, {size}"


def gradient_methods(
    model, batch_size, microbatch_sizes, *, threshold=THRESHOLD, leave=()
):
    """All methods that have this model, but for those in `leave`."""

    def call(function, **options):
        return lambda: function(*setting(model, batch_size), **options)

    def torch(is_ghost):
        return lambda: peers.opacus(
            *setting(model, batch_size)[1:], model=model, is_ghost=is_ghost
        )

    methods = [Method(PLAIN, call(peers.plain), "jax")]
    for name, estimator in coordinatewise(threshold).items():
        methods.append(
            Method(
                name,
                partial(robust, estimator, model, batch_size),
                work=partial(gradient_work, OPERATIONS[name], model, batch_size),
            )
        )
    for size in microbatch_sizes:
        make = call(peers.jax_privacy, microbatch_size=size)
        methods.append(Method(microbatch_name(size), make, "jax_privacy"))
    methods.append(Method(OPTAX, call(peers.optax_aggregate), "optax"))
    if model in peers.TORCH:
        methods += [
            Method("Opacus, hooks", torch(False), "opacus"),
            Method("Opacus, ghost clipping", torch(True), "opacus"),
        ]
    numpy = {"mlp": peers.numpy_mlp, "linear": peers.numpy_linear}.get(model)
    if numpy is not None:

        def by_hand():
            _, params, batch = setting(model, batch_size)
            return numpy(params, batch, threshold=threshold)

        methods.append(Method("NumPy, Truncation by hand", by_hand, "numpy"))
    return [method for method in methods if method.name not in leave]


def faster(method, factor, sizes, binds, least=1):
    """A target against jax_privacy's best microbatch of a size on."""
    names = [microbatch_name(size) for size in sizes if size is None or size >= least]
    best = f"jax_privacy at its best microbatch{f' of {least} or more' * (least > 1)}"
    return Target(method, names, times_faster=factor, against_name=best, binds=binds)


ONE_BY_ONE = (
    "With a microbatch of one, jax_privacy scans over single samples as dpjax's fold "
    "does: what is left to gain is the norm and the second pass that clipping takes."
)
MEMORY = (
    "Every sample's gradient passes once through an accumulator of the model's size, "
    "read and written; the peer pays for that too, and for its norm."
)
MAKING = (
    "The time goes into making each sample's gradient, which is the peer's work as "
    "much as ours: one sample at a time, products are small and keep few cores busy."
)
# Compiling takes most of a quick run.
NOT_QUICK = [
    "Mean",
    "Winsorization",
    "Clipping",
    "SmoothedTruncation, beta 1",
    "SmoothedTruncation, beta 9.21",
    "Opacus, hooks",
]
MLP_SIZES = (1, 2, 4, 8, 16, 32, 64, None)
SIZES = (1, 4, 16, 64, None)

MLP = Case(
    name="gradient-mlp",
    title="The robust gradient of an MLP 784-256-10, batch 256",
    text=(
        "One gradient of a batch (of 64 in a quick run), without noise: the same "
        "parameters, batch and per-sample loss for all. `Mean` is dpjax's fold without "
        "an influence. jax_privacy runs at each microbatch size. Opacus runs with "
        "hooks, which store per-sample gradients, and by ghost clipping, which finds "
        "their norms without them; that serves the l2 clip only, no influence by "
        "coordinate."
    ),
    build=lambda quick: (
        gradient_methods("mlp", 64, (1, 2), leave=NOT_QUICK[-2:])
        if quick
        else gradient_methods("mlp", 256, MLP_SIZES)
    ),
    yardstick="Truncation",
    targets=[
        *(
            Target(name, ["Mean"], at_most=bound, binds=binds)
            for name, bound, binds in (
                ("Truncation", 1.5, "Three operations a coordinate more than adding."),
                (
                    "Winsorization",
                    1.5,
                    "Two comparisons a coordinate more than adding.",
                ),
                (
                    "Clipping",
                    3,
                    "A sample's norm must be known before any of it can be added: its "
                    "gradient is written, read for the largest entry and the norm, and "
                    "read again.",
                ),
                (
                    "SmoothedTruncation, beta 1",
                    4,
                    "A series of degree 10 a coordinate, a division and a root.",
                ),
                (
                    "SmoothedTruncation, beta 9.21",
                    4,
                    "A series of degree 16 a coordinate, a division and a root.",
                ),
            )
        ),
        faster("Truncation", 10, MLP_SIZES, MEMORY, least=2),
        faster("Truncation", 10, MLP_SIZES, ONE_BY_ONE),
        Target("Truncation", [OPTAX], times_faster=10, binds=MEMORY),
        faster("SmoothedTruncation, beta 1", 5, MLP_SIZES, MEMORY, least=2),
        faster("SmoothedTruncation, beta 1", 5, MLP_SIZES, ONE_BY_ONE),
        Target("SmoothedTruncation, beta 1", [OPTAX], times_faster=5, binds=MEMORY),
    ],
)


def _model_case(model, title, batch_sizes, text, leave=NOT_QUICK):
    full, small = batch_sizes
    sizes = tuple(size for size in SIZES if size is None or size < full)
    return Case(
        name=f"gradient-{model.replace('_', '-')}",
        title=f"{title}, batch {full}",
        text=f"{text} (Batch {small} in a quick run.)",
        build=lambda quick: (
            gradient_methods(model, small, (1,), leave=leave)
            if quick
            else gradient_methods(model, full, sizes)
        ),
        yardstick="Truncation",
        targets=[
            faster("Truncation", 2, sizes, MAKING),
            Target("Truncation", [OPTAX], times_faster=2, binds=MAKING),
        ],
    )


SMALL_CONVOLUTIONAL = _model_case(
    "small_convolutional",
    "A small convolutional network",
    (256, 64),
    "The field's usual example for images of 28 by 28: 16 channels of 8 by 8 and 32 "
    "of 4 by 4, both with stride 2 and a maximum behind, dense 32, dense 10.",
    leave=[*NOT_QUICK, OPTAX, "Opacus, ghost clipping"],
)
CONVOLUTIONAL = _model_case(
    "convolutional",
    "A convolutional network",
    (256, 64),
    "32 and 64 channels of 5 by 5, each with pooling, dense 128, dense 10.",
)
TRANSFORMER = _model_case(
    "transformer",
    "A transformer",
    (64, 32),
    "Two layers of width 128 on 64 tokens, with the embedding tied to the output; a "
    "model that Opacus's hooks do not take.",
)

LINEAR_SIZES = (256, 1024, 4096, 16384)
WIDE = "A pass over the data, which each of these methods has to make."
LINEAR = Case(
    name="gradient-linear",
    title="The robust gradient of linear regression, n = 98,304, d = 50",
    text=(
        "One gradient of all records; features and noise are Student's t with 3 "
        "degrees of freedom."
    ),
    build=lambda quick: gradient_methods(
        "linear",
        98_304,
        (1024,) if quick else LINEAR_SIZES,
        threshold=1.0,
        leave=NOT_QUICK if quick else (),
    ),
    yardstick="Truncation",
    targets=[
        faster("Truncation", 1, LINEAR_SIZES, WIDE),
        Target("Truncation", [OPTAX], times_faster=1, binds=WIDE),
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
    text=(
        "`robust_grad` with `Truncation` on an MLP 784-512-10: what a call needs "
        "beyond its parameters and its data, the gradient that it returns included."
    ),
    build=_batch_memory,
    yardstick="batch 256",
    quick_peak=True,
    targets=[
        Target(
            "batch 4,096",
            ["batch 256"],
            at_most=1.3,
            quantity=quantity,
            binds="Up to 256 rows are one block, added up in one accumulator; more "
            "rows are several, whose exact sum takes another one. From there on it "
            "does not grow.",
        )
        for quantity in ("peak_bytes", "temporary_bytes")
    ],
)


def _gpu_methods(model, batch_size, quick):
    if not quick:
        sizes = (None, batch_size // 4, batch_size // 16)
        return gradient_methods(model, batch_size, sizes)
    if batch_size > 256:  # one batch a model will do
        return []
    return gradient_methods(model, 8, (None,), leave=[*NOT_QUICK, OPTAX])


def _gpu_case(model, batch_size):
    return Case(
        name=f"gradient-{model.replace('_', '-')}-{batch_size}",
        title=f"The robust gradient of the model {model!r}, batch {batch_size:,}",
        text="One gradient of a batch, without noise, as in the suite for processors.",
        build=partial(_gpu_methods, model, batch_size),
        yardstick="Truncation",
        has_peak=False,
    )


GPU_MODELS = [
    _gpu_case(model, batch_size)
    for model in ("mlp", "small_convolutional", "convolutional", "transformer")
    for batch_size in (256, 4096)
]
