"""A fit of a sum of curves, and the private choice whether columns bend."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _keys, _validate
from dpjax._types import Key
from dpjax.solvers.additive._gain import released_gain, shares_of
from dpjax.solvers.additive._hats import Hats, at_finest, curves_of
from dpjax.solvers.additive._knots import FINE, LINE, NARROW, Rule, may_be_finest
from dpjax.solvers.additive._rare import SHARE, rare_columns
from dpjax.solvers.linear._columns import fit_columns
from dpjax.solvers.linear._kind import Examples, ModelKind
from dpjax.solvers.training._curves import Curves
from dpjax.solvers.training._loop import Execution


class Terms(NamedTuple):
    """The terms of a sum, static.

    Attributes:
        kind: of the `problem` of the columns.
        num_columns: how many there are, with the intercept's.
        bent: those that may bend.
        intercept: the index of the intercept's column, not in examples; or None.
        knots: of the curves; () for lines alone.
        intervals: whether errors are released. Curves then have no line beside them.
    """

    kind: ModelKind
    num_columns: int
    bent: tuple[int, ...]
    intercept: int | None
    knots: tuple[float, ...]
    intervals: bool

    @property
    def tail(self) -> float:
        """The unit of lines beyond the last knots."""
        if self.intervals and self.knots:
            return 0.0
        return Rule.of(self.kind.loss).tail if self.knots == FINE else LINE

    @property
    def own(self) -> tuple[int, ...]:
        """The places among the columns of examples of those that may bend."""
        if self.intercept is None:
            return self.bent
        return tuple(place - (place > self.intercept) for place in self.bent)

    @property
    def num_functions(self) -> int:
        """Counts the bends that the choice looks at, for all outputs."""
        return 2 * len(self.bent) * self.kind.loss.num_outputs

    def fit(
        self,
        examples: Examples,
        key: Key,
        noise_multiplier: float,
        execution: Execution,
        finest: jax.Array | None = None,
    ) -> tuple[jax.Array, dict[str, Any], jax.Array | None, jax.Array | None]:
        """Returns what `fit_columns` does, of lines and hat functions.

        Args:
            examples: of the `problem`.
            key: a typed key.
            noise_multiplier: of all that is released, as one Gaussian mechanism.
            execution: as of `dp_linear_model`.
            finest: those of `bent` that also have narrow functions.
        """
        num_finest = 0 if finest is None else len(finest)
        if finest is not None and num_finest:
            # Once more, behind the others, for narrow functions to be made of.
            columns = examples.features
            again = columns[:, jnp.asarray(self.own)[finest]]
            examples = examples._replace(features=jnp.append(columns, again, axis=1))
        kind, intercept = self.kind, self.intercept
        if self.knots:
            hats = Hats(self.own, self.knots, self.tail, num_finest)
            kind = kind._replace(basis=hats)
        if intercept is not None and self.tail == 0:
            intercept -= sum(place < intercept for place in self.bent)
        return fit_columns(
            kind,
            examples,
            self.num_columns + num_finest,
            intercept,
            key=_keys.split(key)[0],  # as of `dp_linear_model`
            noise_multiplier=noise_multiplier,
            intervals=self.intervals,
            execution=execution,
        )

    def curves(self, weights: jax.Array, has_bends: bool = True) -> Curves:
        """Returns the curves of the weights of a fit; without bends, of lines alone."""
        unit = self.tail if has_bends and self.knots else None
        return curves_of(
            weights, self.num_columns, self.bent, unit, self.knots, self.intercept
        )


def all_terms(
    terms: Terms, examples: Examples, key: Key, noise_multiplier: float, execution: Any
) -> tuple[Curves, dict[str, Any], Curves | None, jax.Array | None]:
    """Returns curves with all knots, stats, errors and correlations."""
    fitted, stats, errors, correlations = terms.fit(
        examples, key, noise_multiplier, execution
    )
    params = terms.curves(fitted)
    if errors is None or correlations is None:
        return params, stats, None, None
    # A slope and a height are each one weight in a unit, or no weight: zero.
    at_zero = len(terms.bent) * [knot == 0 for knot in terms.knots]
    zeros = terms.num_columns + np.flatnonzero(at_zero)
    known = *(terms.bent if terms.knots else ()), *zeros.tolist()
    return params, stats, terms.curves(errors), _with_known(correlations, known)


def chosen_terms(
    terms: Terms,
    examples: Examples,
    key: Key,
    noise_multiplier: float,
    execution: Execution,
) -> tuple[Curves, dict[str, Any]]:
    """Returns lines, or curves, or those with narrow functions, and the stats.

    A released gain chooses. Where labels and budget allow narrow functions, released
    counts choose their columns.

    Privacy:
        One Gaussian mechanism of the noise multiplier under replace-one: a linear
        model, the choices, and the model that they choose, each with its share.
    """
    kind, num_samples = terms.kind, len(examples.targets)
    first_key, gain_key, key = _keys.split(key, 3)
    without = Execution(microbatch_size=execution.microbatch_size)
    threshold = Rule.of(kind.loss).threshold.of(num_samples, noise_multiplier)
    shares = shares_of(
        kind, threshold, num_samples, terms.num_functions, noise_multiplier
    )
    line, line_stats, *_ = terms._replace(knots=()).fit(
        examples, first_key, noise_multiplier / math.sqrt(shares["first_fit"]), without
    )
    scale = line_stats.get("residual_scale")
    bending, predictions = _residual_problem(terms, examples, line, scale)
    gain = released_gain(
        kind,
        bending,
        predictions,
        key=gain_key,
        noise_multiplier=noise_multiplier,
        shares=shares,
    )
    # Which model: of lines, of curves, or of curves with narrow functions in columns.
    which = (gain > threshold).astype("int32")
    rare: jax.Array = jnp.zeros(0, "int32")
    num_clear = num_samples / (noise_multiplier * kind.loss.num_outputs)
    num_weights = terms.num_columns + len(terms.bent) * (len(terms.knots) - 1)
    is_finest = kind.has_labels and may_be_finest(terms.knots, num_clear, num_weights)
    if is_finest:
        key, rare_key = _keys.split(key)
        shares["rare_columns"] = SHARE
        multiplier = noise_multiplier / math.sqrt(SHARE)
        rare, num_rare = rare_columns(kind.axis_name, bending, rare_key, multiplier)
        which = which * (1 + num_rare)
    rest = 1 - math.fsum(shares.values())

    def final(key: Key, index: int) -> tuple[Curves, dict[str, Any]]:
        finest = rare[: max(index - 1, 0)]
        bent = terms if index else terms._replace(knots=())
        multiplier = noise_multiplier / math.sqrt(rest)
        fitted, stats, *_ = bent.fit(examples, key, multiplier, execution, finest)
        of_fit = {name: rest * share for name, share in stats["shares"].items()}
        stats |= {
            "noise_multiplier": noise_multiplier,
            "shares": shares | of_fit,
            "gain": gain,
        }
        num_wide = len(fitted) - len(NARROW) * len(finest)
        params = terms.curves(fitted[:num_wide], index > 0)
        if is_finest:
            params = at_finest(params, finest, fitted[num_wide:])
        return params, stats

    if _validate.is_concrete(which):
        return final(key, int(which))
    rule = "without a callback under jit or vmap, where a release says what is fitted"
    _validate.require(execution.callback is None, "execution", execution, rule)
    # Only one of them is released, so that their noise may be the same.
    last = 1 + len(rare)
    fits = [final(jax.random.clone(key), index) for index in range(last)]
    return jax.tree.map(lambda *each: jnp.stack(each)[which], *fits, final(key, last))


def _residual_problem(
    terms: Terms, examples: Examples, line: jax.Array, scale: jax.Array | None
) -> tuple[Examples, jax.Array]:
    """Returns the columns that may bend, and a linear model's predictions.

    With a scale, of residuals, those are in its units.
    """
    predictions = _lines(examples.features, line, terms.intercept)
    if scale is not None:
        predictions, (targets, offsets) = (
            predictions / scale,
            (examples.targets / scale, examples.offsets / scale),
        )
        examples = examples._replace(targets=targets, offsets=offsets)
    bending = examples.features[:, jnp.asarray(terms.own)]
    return examples._replace(features=bending), predictions


@partial(jax.jit, static_argnums=2)
def _lines(features: jax.Array, weights: jax.Array, intercept: int | None) -> jax.Array:
    """Returns the predictions of a linear model, of which features have no ones."""
    level = jnp.zeros((), weights.dtype)
    if intercept is not None:
        level = weights[intercept]
        weights = jnp.delete(weights, intercept, axis=0, assume_unique_indices=True)
    scores = jnp.matmul(features, weights, precision=jax.lax.Precision.HIGHEST)
    return scores + jnp.broadcast_to(level, scores.shape)


@partial(jax.jit, static_argnums=1)
def _with_known(correlations: jax.Array, places: tuple[int, ...]) -> jax.Array:
    """Returns correlations with rows and columns for what has no error."""
    size = len(correlations) + len(places)
    remaining = jnp.asarray([i for i in range(size) if i not in places])
    full = jnp.eye(size, dtype=correlations.dtype)
    return full.at[remaining[:, None], remaining[None, :]].set(correlations)
