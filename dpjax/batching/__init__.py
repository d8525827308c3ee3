"""Batches of constant shape under jit, and the privacy cost of drawing them.

Solvers take a batching as an argument. In your own loop pass its state, which holds the
step and the key, from draw to draw:

    state = batching.init(key, n, T, epsilon=epsilon, delta=delta)
    for _ in range(T):
        batch, is_padding_example, state = batching.draw(state, data)
        grads = grad_fn(params, batch, is_padding_example)

with `normalize_by=batching.divisor(n, T)` in `grad_fn` or `privatize`, and noise from
`accounting.noise_multiplier(epsilon, delta, batching.sampling(n, T))`. Which records
enter a batch depends on indices and on the key alone, never on values. An argument out
of its range raises `ValueError`.
"""

from dpjax.batching._fixed_size import Disjoint, Full, WithoutReplacement
from dpjax.batching._padded import BallsInBins, CyclicPoisson, Poisson

__all__ = [
    "BallsInBins",
    "CyclicPoisson",
    "Disjoint",
    "Full",
    "Poisson",
    "WithoutReplacement",
]
