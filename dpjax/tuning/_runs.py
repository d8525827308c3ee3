"""The runs of a search, and the checks of a run by tracing."""

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from dpjax import _validate
from dpjax._types import Key, PyTree, Scalar
from dpjax.accounting import PrivacyGuarantee
from dpjax.accounting._tuning import TrialCount
from dpjax.solvers import Solution
from dpjax.tuning._scores import Score
from dpjax.tuning._search import Progress, digest

TrainFn = Callable[[Any, Key], Solution]


@dataclasses.dataclass
class Runs:
    """Runs of candidates, and checks of them without making a run."""

    train_fn: TrainFn
    candidates: Any
    score: Score
    treedefs: dict[int, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _validate.require(
            callable(self.train_fn), "train_fn", self.train_fn, "a function"
        )
        if self.is_stacked:
            self.size = _validate.leading_size(self.candidates, "candidates")
            self.candidates = jax.tree.map(jnp.asarray, self.candidates)
        else:
            self.size = len(self.candidates)
            _validate.require(
                self.size > 0, "candidates", self.candidates, "at least one"
            )

    @property
    def is_stacked(self) -> bool:
        """Tells whether candidates are rows of arrays."""
        return not isinstance(self.candidates, list | tuple) or (
            hasattr(self.candidates, "_fields")  # a NamedTuple of arrays
        )

    def run_of(self, index: Any, key: Key) -> tuple[Solution, Scalar]:
        """Makes a run of a candidate; returns its solution and score."""
        train_key, score_key = jax.random.split(key)
        if self.is_stacked:
            candidate = jax.tree.map(lambda leaf: leaf[index], self.candidates)
        else:
            candidate = self.candidates[index]
        solution = self.train_fn(candidate, train_key)
        is_fine = isinstance(solution, Solution)
        _validate.require(is_fine, "what train_fn returns", solution, "Solution")
        return solution, jnp.asarray(self.score.fn(solution.params, score_key))

    def draw(self, key: Key, turn: Any) -> tuple[jax.Array, Key]:
        """Returns the candidate of a turn, and the key of its run."""
        return _draw(key, turn, self.size)

    def traced(self) -> Iterator[tuple[Callable, tuple]]:
        """Yields the function of a run and its inputs, for each kind of candidate."""
        if self.is_stacked:
            yield self.run_of, (jnp.int32(0),)
        else:
            for i in range(self.size):
                yield lambda key, i=i: self.run_of(i, key), ()

    def guarantees(self, key: Key) -> list[PrivacyGuarantee]:
        """Returns the guarantees of the candidates, by tracing."""
        results = []
        for i, (run, inputs) in enumerate(self.traced()):
            try:
                solution, value = jax.eval_shape(run, *inputs, key)
            except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as why:
                raise ValueError(
                    "train_fn must be traceable, with a list for candidates that are "
                    "Python values, or privacy given, the guarantee of every run."
                ) from why
            _validate.require(value.shape == (), "score", value, "a scalar")
            results.append(solution.privacy)
            self.treedefs[i] = jax.tree.structure((solution.params, solution.stats))
        return results

    def identity(self, key: Key, law: TrialCount, num_parallel: int) -> dict[str, str]:
        """Returns digests of everything that determines a search, by name."""

        def programs() -> Iterator[bytes]:
            for run, inputs in self.traced():
                program = jax.make_jaxpr(run)(*inputs, key)
                yield str(program).encode()
                yield from _constants(program)

        numbers = repr((law, num_parallel, self.size, jax.__version__))
        return {
            "law, number of candidates or version of jax": numbers,
            "key": digest([np.asarray(jax.random.key_data(key)).tobytes()]),
            "function or data": digest(programs()),
        }

    def restored(self, progress: Progress) -> tuple[PyTree, dict]:
        """Returns the params and stats of the best run."""
        treedef = self.treedefs[0 if self.is_stacked else progress.candidate]
        return jax.tree.unflatten(treedef, map(jnp.asarray, progress.leaves))

    def made(self, key: Key, turns: range) -> Iterator[tuple[int, Solution, float]]:
        """Makes the runs of some turns; yields candidates, solutions and scores."""
        if len(turns) == 1:
            yield self._made(key, turns[0])
            return
        if not self.is_stacked:
            with ThreadPoolExecutor(len(turns)) as pool:
                yield from pool.map(partial(self._made, key), turns)
            return
        indices, keys = jax.vmap(partial(self.draw, key))(jnp.asarray(turns))
        solutions, scores = jax.vmap(self.run_of)(indices, keys)
        scores = np.asarray(scores, float).tolist()
        for i, index in enumerate(np.asarray(indices).tolist()):
            solution = jax.tree.map(lambda leaf, i=i: leaf[i], solutions)
            yield index, solution, scores[i]

    def _made(self, key: Key, turn: int) -> tuple[int, Solution, float]:
        index, run_key = self.draw(key, turn)
        index = int(index)
        solution, score = self.run_of(index, run_key)
        return index, solution, float(score)


@partial(jax.jit, static_argnums=2)
def _draw(key: Key, turn: Any, size: int) -> tuple[jax.Array, Key]:
    index_key, run_key = jax.random.split(jax.random.fold_in(key, turn))
    return jax.random.randint(index_key, (), 0, size), run_key


def _constants(program: Any) -> Iterator[bytes]:
    """Yields the constants of a program and of its inner programs, including data."""
    if isinstance(program, ClosedJaxpr):
        yield from map(_bits, program.consts)
        program = program.jaxpr
    for step in program.eqns:
        for value in step.invars:
            if isinstance(value, Literal):
                yield _bits(value.val)
        for inner in jax.tree.leaves(step.params, is_leaf=_is_program):
            if _is_program(inner):
                yield from _constants(inner)


def _is_program(value: Any) -> bool:
    return isinstance(value, ClosedJaxpr | Jaxpr)


def _bits(leaf: Any) -> bytes:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    return repr((array.dtype, array.shape)).encode() + array.tobytes()
