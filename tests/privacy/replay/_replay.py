"""Non-interference by replay: what a run shows beside what its mechanisms release.

`Replay.record` keeps what every mechanism returns in a run on one data set. `replay`
runs on a neighbour and hands out those very values. All that a reader can see must then
be equal to the bit. And the releases themselves must not move further than what was
charged for them: `cost` is their sum in zCDP, with the draws of batches held fixed.

The hooks stand where noise meets a value: a new solver that draws from
`dpjax.mechanisms` is covered by itself. Five places add noise of their own to a value,
or release labels. Of several parties, `watched` is handed its noisy contributions.

Outside of the guarantee, hence not compared: what `dpjax check` prints, messages for
the curator on stderr, and the refusal of a checkpoint whose table was changed.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import dp_accounting as dpa
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback

from dpjax._sums.fold import Unrounded
from dpjax._types import REPLACE_ONE
from dpjax.mechanisms import _additive, _peeling, _samplers, _selection
from dpjax.sklearn import _labels
from dpjax.solvers.papers import _gradient_descent, _objective_perturbation
from dpjax.tables.models import _scores
from dpjax.transforms import _privatize

SLACK = 1 + 1e-4  # of float32 numbers, in what moves


class Release:
    """What a mechanism got and returned: kind, value, output, and scales of noise."""

    def __init__(self, kind: str, value: Any, output: Any, scales: tuple):
        self.kind, self.output = kind, output
        self.value = value if kind == "labels" else _numbers(value)
        self.scales = _numbers(scales)

    def is_like(self, other: "Release") -> bool:
        kinds = [
            [(np.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(one.output)]
            for one in (self, other)
            if one.kind != "labels"
        ]
        return self.kind == other.kind and kinds[:1] == kinds[1:]

    def cost(self, other: "Release") -> float:
        """Returns the zCDP by which two values can be told apart."""
        return _COSTS[self.kind](self, other)


class Replay:
    """Records a run, and replays it on other data."""

    def __init__(self):
        self.recorded: list[Release] = []
        self.made: list[Release] | None = None  # None: nobody listens
        self.is_replay = False
        self.faults: list[str] = []
        self.is_muted = False  # while a function is traced whose release is hooked
        self.is_deaf = False  # while one runs whose programs others share
        self.watched: Any = None  # the entropy of the party whose record is replaced

    def record(self, run: Callable[[], Any]) -> Any:
        """Returns all that a run shows, and keeps what its mechanisms return."""
        self.is_replay = False
        shown = self._shown(run)
        self.recorded = self.made or []
        self.made = None
        return shown

    def replay(self, run: Callable[[], Any], shown: Any, price: float | None) -> None:
        """Compares a neighbour's run, which gets recorded values, with what was shown.

        Its releases may move by `price` in zCDP at most, if that is known.
        """
        self.is_replay, self.faults = True, []
        other = self._shown(run)
        made, self.made = self.made or [], None
        assert other == shown, f"it shows {_difference(shown, other)}"
        assert not self.faults, self.faults[0]
        assert len(made) == len(self.recorded), "it makes another number of releases"
        pairs = list(zip(self.recorded, made, strict=True))
        cost = math.fsum(one.cost(other) for one, other in pairs) + _correlated(pairs)
        assert price is None or cost <= price * SLACK, f"it moves {cost} of {price}"

    def compare(self, run: Callable, data: Any, others: Any, price: Any = None) -> Any:
        """Returns what a run on the data shows, and replays it on the others.

        Releases may move by the price, or by what the run's guarantee is charged.
        """
        solutions: list = []
        shown = self.record(lambda: solutions.append(run(data)) or solutions[0])
        if price is None and solutions:
            price = charged(solutions[0].privacy)
        for other in others:
            self.replay(partial(run, other), shown, price)
        return shown

    def _shown(self, run: Callable[[], Any]) -> Any:
        self.made = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                shown = seen(run())
            except (Exception, SystemExit) as error:
                shown = "raised", type(error).__name__, str(error)
            jax.effects_barrier()
        return shown, [(type(x.message).__name__, str(x.message)) for x in caught]

    def handed(self, kind: str, value: Any, output: Any, *scales: Any) -> Any:
        """Returns what is released: the output, or in a replay what was recorded."""
        if self.is_muted:
            return output
        arguments = value, output, scales
        if not any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(arguments)):
            return self._hand(kind, *arguments)

        @custom_vmap
        def call(arguments):
            like = jax.tree.map(jax.typeof, arguments[1])
            hand = partial(self._hand, kind)
            return io_callback(hand, like, *arguments, ordered=True)

        @call.def_vmap
        def _(size, in_batched, arguments):
            def batched(x, is_batched):
                return x if is_batched else jnp.broadcast_to(x, (size, *x.shape))

            released = call(jax.tree.map(batched, arguments, in_batched[0]))
            return released, jax.tree.map(lambda _: True, released)

        return call(jax.tree.map(jnp.asarray, arguments))

    def _hand(self, kind: str, value: Any, output: Any, scales: tuple) -> Any:
        if self.made is None or self.is_deaf:
            return output
        now = Release(kind, value, output, scales)
        self.made.append(now)
        if self.is_replay:
            place = len(self.made) - 1
            before = self.recorded[place] if place < len(self.recorded) else None
            if before is None or not before.is_like(now):
                self.faults.append(f"release {place}, {kind}, is of another kind")
                return output
            now.output = before.output
        return now.output


def installed(patch: Any) -> Replay:
    """Returns a `Replay` with its hooks in place; `patch` is a pytest.MonkeyPatch."""
    replay = Replay()

    def hook(module, name, around):
        patch.setattr(module, name, partial(around, getattr(module, name)))

    def rounded(value):
        return value.high if isinstance(value, Unrounded) else value

    def additive(noisy, sampler, key, value, scale):
        kinds = {_samplers.normal: "gaussian", _samplers.laplace: "laplace"}
        kind = kinds.get(sampler, "spherical")
        output = noisy(sampler, key, value, scale)
        return replay.handed(kind, rounded(value), output, scale)

    def smooth(noisy, sampler, key, value, scale, sigma):
        output = noisy(sampler, key, value, scale, sigma)
        return replay.handed("smooth", value, output, scale)

    def peeled(kind, peel, sparsity, key, vector, choice_scale, release_stddev):
        output = peel(sparsity, key, vector, choice_scale, release_stddev)
        value = _peeling._finite(vector)
        return replay.handed(kind, value, output, choice_scale, release_stddev)

    def chosen(scan, sampler, key, score_fn, num_chunks, epsilon, width):
        kind = "exponential" if sampler is _samplers.gumbel else "permute_and_flip"
        output = scan(sampler, key, score_fn, num_chunks, epsilon, width)
        scores = jax.lax.map(score_fn, jnp.arange(num_chunks, dtype="int32"))
        return replay.handed(kind, scores.ravel(), output, epsilon, width)

    def muted(release, *args):
        replay.is_muted = True
        output = release(*args)
        replay.is_muted = False
        return output

    def counted(call, self, sums, sensitivity):
        noisy, stddev = muted(call, self, sums, sensitivity)
        return replay.handed("gaussian", sums, noisy, stddev), stddev

    def perturbed(release, *args):
        # The release is the minimiser: its price is that of the objective's noise.
        output = muted(release, *args)
        return replay.handed("objective", output, output)

    def labelled(passing, key, counts, stddev, threshold):
        # Labels in one of two data sets alone pass with a probability in delta.
        replay.is_deaf = True
        output = frozenset(passing(key, counts, stddev, threshold))
        replay.is_deaf = False
        released = replay._hand("labels", dict(counts), output, (stddev,))
        return [label for label in counts if label in released]

    def correlated(add, strategy, state, value, *, stddev):
        output, following = add(strategy, state, value, stddev=stddev)
        scales = stddev, strategy.matrix().astype("float32")
        return replay.handed("correlated", rounded(value), output, *scales), following

    def contributed(add, self, values, random_bytes):
        output = add(self, values, random_bytes)
        if random_bytes is not replay.watched:
            return output
        value, stddev = self.grid.to_integers(values), self.stddev / self.grid.step
        return replay._hand("gaussian", value, output, (stddev,))

    hook(_additive, "_noisy", additive)
    hook(_privatize, "add_correlated_noise", correlated)
    hook(_additive, "_noisy_smooth", smooth)
    hook(_peeling, "_peel_once", partial(peeled, "peeling"))
    hook(_peeling, "_peel_in_rounds", partial(peeled, "peeling in rounds"))
    hook(_selection, "_scan", chosen)
    hook(_objective_perturbation, "_release", perturbed)
    hook(_labels, "passing", labelled)
    for owner, name, around in (
        (_scores.Release, "__call__", counted),
        (_gradient_descent._Noise, "add", contributed),
    ):
        method = getattr(owner, name)
        patch.setattr(owner, name, lambda *x, m=method, f=around: f(m, *x))
    return replay


def charged(privacy: Any) -> float | None:
    """Returns the zCDP of a guarantee before amplification; None where none is told."""
    return _rho(privacy.dp_event, privacy.relation)


def _rho(event: dpa.DpEvent, relation: Any) -> float | None:
    parts: list[tuple[float, Any]] = []
    match event:
        case dpa.ZCDpEvent():
            return event.rho
        case dpa.GaussianDpEvent() | dpa.LaplaceDpEvent():
            return 0.5 / event.noise_multiplier**2
        case dpa.RandomizedResponseDpEvent():
            lies = event.noise_parameter / 2
            return 0.5 * np.log((1 - lies) / lies) ** 2
        case dpa.PoissonSampledDpEvent():
            # In its convention replacing a record moves a sum by twice the norm.
            parts = [(4.0 if relation is REPLACE_ONE else 1.0, event.event)]
        case dpa.SampledWithoutReplacementDpEvent():
            parts = [(1.0, event.event)]
        case dpa.SelfComposedDpEvent():
            parts = [(event.count, event.event)]
        case dpa.ComposedDpEvent():
            parts = [(1.0, one) for one in event.events]
    costs = [(times, _rho(part, relation)) for times, part in parts]
    known = [times * cost for times, cost in costs if cost is not None]
    return sum(known) if parts and len(known) == len(costs) else None


def seen(x: Any) -> Any:
    """Returns what a reader can see of a value: types, order, shapes and bytes."""
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if isinstance(x, jax.Array | np.ndarray | np.generic):
        array, weak = np.asarray(x), getattr(x, "weak_type", None)
        if array.dtype == object:
            return "array", array.shape, [seen(one) for one in array.ravel()]
        return type(x).__name__, str(array.dtype), array.shape, weak, array.tobytes()
    if isinstance(x, dict):
        return [(seen(name), seen(value)) for name, value in x.items()]
    if isinstance(x, list | tuple):
        return [type(x).__name__, *map(seen, x)]
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        fields = [(one.name, getattr(x, one.name)) for one in dataclasses.fields(x)]
        return type(x).__name__, seen(dict(fields))
    return type(x).__name__, repr(x)


def _difference(one: Any, other: Any) -> str:
    """Returns the innermost values that differ, and no more."""
    if isinstance(one, list | tuple) and isinstance(other, type(one)):
        pairs = zip(one, other, strict=False)
        for x, y in [pair for pair in pairs if pair[0] != pair[1]][:1]:
            return _difference(x, y)
    return f"{str(one)[:300]} or {str(other)[:300]}"


def _numbers(tree: Any) -> Any:
    return [np.asarray(x, np.float64) for x in jax.tree.leaves(tree)]


def _moves(one: Release, other: Release) -> list[np.ndarray]:
    # Equal infinities do not move.
    pairs = zip(one.value, other.value, strict=True)
    with np.errstate(invalid="ignore"):
        return [np.where(x == y, 0.0, x - y) for x, y in pairs]


def _gaussian(one: Release, other: Release) -> float:
    (stddev,) = one.scales
    cost = 0.0
    for x in _moves(one, other):
        if x.any():  # of each entry, or the largest of runs side by side
            scale = stddev if np.shape(stddev) == x.shape else np.max(stddev)
            cost += float(np.sum((x / np.asarray(scale, np.float64)) ** 2)) / 2
    return cost


def _correlated(pairs: list[tuple[Release, Release]]) -> float:
    """Returns the cost of all steps of a run: times C, they have independent noise."""
    pairs = [pair for pair in pairs if pair[0].kind == "correlated"]
    if not pairs:
        return 0.0
    stddev, matrix = pairs[0][0].scales
    moves = np.stack([np.concatenate([*map(np.ravel, _moves(*x))]) for x in pairs])
    before_noise = matrix[: len(pairs), : len(pairs)] @ moves
    return float(np.sum(before_noise**2)) / (2 * float(np.max(stddev)) ** 2)


def _laplace(one: Release, other: Release) -> float:
    (scale,) = one.scales
    size = sum(float(np.sum(np.abs(x))) for x in _moves(one, other))
    return 0.0 if size == 0 else (size / float(np.max(scale))) ** 2 / 2


def _choice(factor: float, one: Release, other: Release) -> float:
    epsilon, width = one.scales
    (moves,) = _moves(one, other)
    spans = np.max(moves, axis=-1) - np.min(moves, axis=-1)
    return float(np.sum((epsilon * spans / width) ** 2)) / factor


def _peel(factor: float, is_laplace: bool, one: Release, other: Release) -> float:
    choice_scale, scale = (float(np.max(x)) for x in one.scales)
    (vector,), (changed,) = one.value, other.value
    is_chosen = np.asarray(one.output) != 0
    sizes = np.abs(vector) - np.abs(changed)
    choice = is_chosen.sum() * (np.ptp(sizes) / choice_scale) ** 2 / factor
    moves = (vector - changed)[is_chosen]
    scale /= np.sqrt(2) if is_laplace else 1.0  # its standard deviation is stated
    return float(choice + np.sum((moves / scale) ** 2) / 2)


def _counts(one: Release, other: Release) -> float:
    shared = one.value.keys() & other.value.keys()
    squares = sum((one.value[x] - other.value[x]) ** 2 for x in shared)
    return squares / (2 * float(one.scales[0]) ** 2)


def _unknown(one: Release, other: Release) -> float:
    """Proved and audited elsewhere: it is no sum of moves."""
    return 0.0


_COSTS: dict[str, Callable[[Release, Release], float]] = {
    "gaussian": _gaussian,
    "laplace": _laplace,
    "spherical": _gaussian,  # (l2 move / scale)^2 / 2, as of any pure release
    "exponential": partial(_choice, 8.0),
    "permute_and_flip": partial(_choice, 2.0),
    "peeling": partial(_peel, 8.0, False),
    "peeling in rounds": partial(_peel, 2.0, True),
    "labels": _counts,
    "correlated": _unknown,  # summed by `_correlated`
    "smooth": _unknown,
    "objective": _unknown,
}
