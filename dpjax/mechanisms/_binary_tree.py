"""The strategy of correlated noise that sums steps along a binary tree."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax.mechanisms._strategy import ROUNDED_UP, Strategy


@dataclasses.dataclass(frozen=True)
class BinaryTree(Strategy):
    """The binary tree of partial sums: row t of C sums the steps of node t.

    Node t, counted from 1, covers the last 2^l steps, where 2^l is the largest power of
    two that divides t. A prefix sum is a sum of at most log2(T) + 1 nodes, each with
    independent noise. The state of the noise is floor(log2 T) + 1 trees like the
    parameters.

    Attributes:
        num_steps: T.

    Raises:
        ValueError: If num_steps is not a positive integer.

    Example:
        >>> strategy = BinaryTree(4)
        >>> print(strategy.matrix())
        [[1. 0. 0. 0.]
         [1. 1. 0. 0.]
         [0. 0. 1. 0.]
         [1. 1. 1. 1.]]
        >>> round(strategy.sensitivity() ** 2, 3)
        3.0

    Reference:
        Dwork, Naor, Pitassi, Rothblum (2010); Chan, Shi, Song (2011); Kairouz, McMahan,
        Song, Thakkar, Thakurta, Xu (2021), "Practical and private (deep) learning
        without sampling or shuffling".
    """

    def __post_init__(self):
        _validate.count(num_steps=self.num_steps)

    @property
    def num_bands(self) -> int:
        """See `Strategy.num_bands`: the steps of the largest node."""
        return 2 ** (self.num_buffers - 1)

    @property
    def num_buffers(self) -> int:
        """See `Strategy.num_buffers`: the levels of nodes."""
        return self.num_steps.bit_length()

    def matrix(self) -> np.ndarray:
        node = np.arange(1, self.num_steps + 1)[:, None]
        step = np.arange(1, self.num_steps + 1)[None]
        return ((step <= node) & (step > node - (node & -node))).astype(np.float64)

    def sensitivity(
        self, *, max_participations: int = 1, min_separation: int = 1
    ) -> float:
        """See `Strategy.sensitivity`: a bound, exact for one participation.

        Its square is the sum over nodes of the squared number of a record's steps that
        the node covers. Nodes of level l are disjoint, and each covers at most m_l =
        min(k, ceil(2^l / b)) of these steps: so level l adds at most m_l for each
        covered step. It remains to find the largest sum of k numbers, b apart.
        """
        num = self._num_participations(max_participations, min_separation)
        step = np.arange(self.num_steps)
        weights = np.zeros(self.num_steps)
        for level in range(self.num_buffers):
            # A node of level l is an odd multiple of 2^l, so bit l of each of its
            # steps, counted from 0, is zero.
            last = (step >> level << level) + 2**level
            is_held = (step >> level & 1 == 0) & (last <= self.num_steps)
            weights[is_held] += min(num, -(-(2**level) // min_separation))
        # best[t]: the largest sum from step t on (Choquette-Choo et al. 2023, Alg. 3).
        best = np.zeros(self.num_steps + min_separation)
        for _ in range(num):
            best[: self.num_steps] = weights + best[min_separation:]
            best = np.maximum.accumulate(best[::-1])[::-1]
        return math.sqrt(best[0]) * (1 + ROUNDED_UP)

    def next_noise(self, noise, buffers, step):
        """See `Strategy.next_noise`: node t replaces the smaller nodes it covers.

        These are one node of each level below the level of t, counted from 1.
        """
        node = step + 1
        is_below = [
            (node >> level << level) == node for level in range(1, len(buffers))
        ]
        is_passed = [*is_below, jnp.zeros((), bool)]

        def solve(z: jax.Array, *nodes: jax.Array) -> jax.Array:
            for is_lower, old in zip(is_passed, nodes, strict=True):
                z = z - jnp.where(is_lower, old, 0)
            return z

        solved = jax.tree.map(solve, noise, *buffers)
        # Level l holds node t where 2^l divides t and 2^(l + 1) does not.
        is_own, divides = [], jnp.ones((), bool)
        for is_lower in is_passed:
            is_own.append(divides & ~is_lower)
            divides = is_lower
        return solved, tuple(
            jax.tree.map(lambda old, z, own=own: jnp.where(own, z, old), buffer, noise)
            for own, buffer in zip(is_own, buffers, strict=True)
        )
