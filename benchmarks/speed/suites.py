"""The cases of each suite, in the order that they run and stand on the page."""

from benchmarks.speed import estimators, gradients

SUITES = {
    "cpu": [gradients.MLP, *gradients.MODEL_CASES],
    "gpu": [*estimators.REDUCTIONS, *gradients.GPU_MODELS],
}
CASES = {case.name: case for cases in SUITES.values() for case in cases}
