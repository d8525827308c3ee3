"""The cases of each suite, in the order that they run and stand on the page."""

from benchmarks.speed import (
    batches,
    cost,
    estimators,
    frank_wolfe,
    gradients,
    noise,
    solvers,
)

SUITES = {
    "cpu": [
        gradients.MLP,
        *gradients.CONVOLUTIONAL_MODELS,
        *gradients.OTHER_MODELS,
        gradients.SEQUENCES,
        *gradients.BATCH_SIZES,
        gradients.LINEAR,
        gradients.BATCH_MEMORY,
        estimators.ESTIMATORS,
        solvers.DESCENT,
        *solvers.SELECTIONS,
        frank_wolfe.FRANK_WOLFE,
        frank_wolfe.WIDE,
        solvers.SWEEP,
        solvers.REPETITIONS,
        batches.BATCHES,
        noise.NOISE,
        *cost.COSTS,
    ],
    "gpu": [*estimators.REDUCTIONS, *gradients.GPU_MODELS],
}
CASES = {case.name: case for cases in SUITES.values() for case in cases}
