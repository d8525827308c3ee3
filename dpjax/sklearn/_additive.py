"""Additive models for classes and for numbers, with a curve for every column."""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpjax import _validate, losses
from dpjax._rounding import digits
from dpjax._types import Key
from dpjax.losses import LinearLoss
from dpjax.losses._residual_losses import named
from dpjax.sklearn import _tables
from dpjax.sklearn._classifier import Classifier
from dpjax.sklearn._linear import LinearEstimator, parameters
from dpjax.sklearn._regressors import Unit, WithExposure
from dpjax.solvers import Curves, dp_additive_model
from dpjax.solvers.training._curves import Direction
from dpjax.tables import _pages
from dpjax.tables._pages import Shape
from dpjax.tables._summary import Summary, interval_of

_LOSSES = {
    "squared": losses.squared,
    "huber": named("huber"),
    "poisson": losses.log_link(1.0),
    "gamma": losses.log_link(2.0),
}


@parameters
class _Additive(LinearEstimator):
    """Fits scores that are sums of curves; subclasses map scores to targets."""

    categorical_features: Any = _tables.FROM_DTYPE
    intervals: bool = False
    monotone: Mapping[Any, Direction] | None = None
    _errors = _correlations = None  # None without `intervals`

    def _check(self, X: Any) -> tuple[np.ndarray, float, float, Key]:
        """Checks a fit's options; returns features (n, d), epsilon, delta and a key."""
        # Sets, for `_fit_scores`, public `_categories` by column, and flags (d,): which
        # columns have numbers (`_is_number`), and which may have a curve (`_bends`).
        self._categories = _tables.categories_of(self.categorical_features, X)
        kinds = {name: str(kind).lower() for name, kind in _tables.types_of(X)}
        checked = super()._check(X)
        names = _tables.names_in(self)
        self._is_number = np.array([name not in self._categories for name in names])
        # A column of booleans has a straight line, because a curve needs more values.
        is_truth = [kinds.get(name, "").startswith("bool") for name in names]
        self._bends = ~np.array(is_truth)
        self._check_monotone()
        return checked

    def _check_monotone(self) -> None:
        given, names = self.monotone or {}, _tables.names_in(self)
        columns = [name for name in names if name not in self._categories]
        rule = f"None with intervals, else a mapping from columns of numbers, {columns}"
        is_fine = isinstance(given, Mapping) and given.keys() <= {*columns}
        is_fine = is_fine and not (given and self.intervals)
        _validate.require(is_fine, "monotone", given, rule)
        for name, direction in given.items():
            _validate.choice(Direction, **{f"monotone[{name!r}]": direction})
        self._directions = {columns.index(name): word for name, word in given.items()}

    def _fit_scores(self, loss, features, targets, weights, offsets=None, **release):
        """Releases a curve for each numeric column and a weight for each category."""
        # `fit` calls it with features (n, d) in the user's units, categories as
        # indices, other arrays (n,) as `loss` takes them, key and noise multiplier. It
        # sets `_curves`, for `predict`, and with `intervals` their errors.
        is_number = self._is_number
        # Numbers are standardized; categories are one-hot and need no scale.
        low, high = (ends[is_number] for ends in _tables.ranges_of(self))
        bends = self._bends[is_number]
        is_truth = ~bends & np.isnan(low)  # the type of these columns has 0 and 1 only
        low[is_truth], high[is_truth] = 0.0, 1.0
        numbers = features[:, is_number]
        standard, options = self._prepared(numbers, weights, (low, high), **release)
        self._set_standard(standard.for_knots(~np.isnan(low)))
        solution = dp_additive_model(
            loss,
            (self._design(features), targets.astype(np.float32)),
            smooth=np.flatnonzero(bends).tolist(),
            intercept=-1,
            offsets=offsets,
            intervals=self.intervals,
            **options,
        )
        _tables.set_mean_weight(self, solution.stats, len(features))
        curves = solution.params.monotone(self._directions)
        self._curves, self._errors, self._correlations = jax.tree.map(
            np.asarray, (curves, solution.standard_errors, solution.correlations)
        )

    def _design(self, features: np.ndarray) -> np.ndarray:
        """Returns the design matrix (n, p): scaled numbers, one-hot codes and ones."""
        # Fit and `predict` need it. In `features` (n, d) categories are indices.
        numbers = self._standard.of(features[:, self._is_number])
        codes = features[:, ~self._is_number].T
        dummies = [
            code[:, None] == np.arange(len(values))
            for code, values in zip(codes, self._categories.values(), strict=True)
        ]
        ones = np.ones((len(features), 1))
        return np.concatenate([numbers, *dummies, ones], axis=1).astype(np.float32)

    def _linear(self, X: Any) -> np.ndarray:
        """Returns scores, with cells clipped to their ranges."""
        check_is_fitted(self)
        features = _tables.features_of(
            self, X, is_new=False, categories=self._categories
        )
        return np.asarray(self._curves.predict(self._design(features)), np.float64)

    def _terms(self) -> Iterator[tuple[Any, Shape, Any]]:
        """Yields each column's name, its `Shape`, and standard errors (m,) or None.

        They are in the unit of the target or score. A `Shape` is zero at the center of
        a column of numbers.
        """
        check_is_fitted(self)
        standard, curves, errors = self._standard, self._curves, self._errors
        place, dummy = 0, int(self._is_number.sum())
        for name, bends in zip(_tables.names_in(self), self._bends, strict=True):
            if name in self._categories:
                grid = self._categories[name]
                own = slice(dummy, dummy + len(grid))
                shape, dummy = Shape(grid, curves.slopes[own]), own.stop
                spread = None if errors is None else errors.slopes[own]
            else:
                center, scale = standard.centers[place], standard.scales[place]
                shape = Shape.of_number(
                    partial(curves.curve, place),
                    curves.knots if bends else (),
                    center=center,
                    scale=scale,
                    limit=(standard.high[place] - center) / scale,
                )
                spread = None
                if errors is not None:
                    scaled = (shape.grid - center) / scale
                    spread = curves.errors(errors, self._correlations, place, scaled)
                place += 1
            values, spread = (
                None if x is None else self._in_units(np.asarray(x, np.float64))
                for x in (shape.values, spread)
            )
            yield name, shape._replace(values=values), spread

    @property
    def shapes_(self) -> dict[Any, Shape]:
        """Returns the contribution of each column to the score, by name or index."""
        return {name: shape for name, shape, _ in self._terms()}

    def bands(self, alpha=0.05):
        """Returns confidence bands for `shapes_`, after a fit with `intervals`.

        The level 1 - alpha holds at each number of the grid, not for all numbers
        together. A band is for the difference from the curve at the column's center, or
        from a category that is not in the grid, so it has no width there. It costs no
        privacy. `dp_additive_model` says what it covers.

        Args:
            alpha: the probability that a band misses the curve at a number, in (0, 1).

        Returns:
            A mapping from columns to `(grid, lower, upper)`, each of shape (m,). Bounds
            are infinite where no finite band is valid.

        Raises:
            ValueError: As for `DPLinearRegression.conf_int`.
        """
        terms = [*self._terms()]
        _validate.probability(alpha=alpha)
        if self._errors is None:
            raise ValueError("intervals must be True before fit, got False.")
        return {
            name: (shape.grid, *interval_of(shape.values, errors, 1 - alpha))
            for name, shape, errors in terms
        }

    def summary(self, alpha=0.05):
        """Returns a table of `bands`, which prints and shows in notebooks.

        With a log or a logit link it also has the factor of the mean or the odds. It
        states the guarantee; `alpha`, costs and errors are as for `bands`.
        """
        self.bands(alpha)  # raises if it has none
        names, terms, (factor, notes) = [], [*self._terms()], self._factor
        for name, (grid, _), _ in terms:
            shown = map(digits, grid) if grid.dtype.kind == "f" else grid
            names += [f"{name} = {x}" for x in shown]
        values = np.concatenate([shape.values for _, shape, _ in terms])
        errors = np.concatenate([errors for *_, errors in terms])
        note = "A coefficient compares with the column's center, or with no category."
        title, text, notes = type(self).__name__, str(self.privacy_), [*notes, note]
        return Summary(title, names, values, errors, text, factor, 1 - alpha, notes)

    def plot_shapes(self) -> Any:
        """Draws each of `shapes_` in a panel, with its band; needs matplotlib.

        Returns:
            A `matplotlib.figure.Figure`, which has `savefig`.
        """
        bands = {} if self._errors is None else self.bands()
        return _pages.plot(self.shapes_, *self._axis, bands=bands)

    @property
    def _axis(self) -> tuple[list[str], str]:
        """Returns the labels of classes, if there are any, and of the score axis."""
        return [], "prediction"

    def _in_units(self, values: np.ndarray) -> np.ndarray:
        """Returns values of the score in the unit of `shapes_`."""
        return values


@parameters
class DPAdditiveClassifier(_Additive, Classifier):
    """A private additive classifier: log odds are a sum of curves, one for each column.

    Args:
        categorical_features: "from_dtype" takes the columns of a frame with a type that
            declares public categories: `CategoricalDtype([...])` of pandas, `Enum` of
            polars (`astype("category")` reads categories from the data, which is not
            private). A mapping from columns to lists of categories declares them here.
            None: all columns are numbers.
        intervals: whether curves have bands, see `bands`. This needs `classes` of two
            labels. Bands cost a share of the budget, and curves then have at most five
            knots.
        monotone: a mapping from columns of numbers to "increasing" or "decreasing", for
            curves without bands (`Curves.monotone`). This costs no privacy. It needs
            `classes` of two labels; "increasing" is for the log odds of `classes_[1]`.

    Attributes:
        shapes_: a mapping from columns to `(grid, values)`. The values are what the
            column adds to the log odds of `classes_[1]`, shape (m,), or to the score of
            each class, shape (m, K). The grid holds numbers, between which the curve is
            linear, or all categories. Without a declared range within four scales of
            the center it ends two scales from there.
        feature_ranges_: as for `DPLinearRegression`, for columns of numbers only.

    Other parameters and attributes are as for `DPLogisticRegression`.

    Privacy:
        As for `DPLogisticRegression`. Names, types and declared categories of columns
        are public. A cell without a declared category counts as none of them.

    Example:
        >>> import numpy as np
        >>> from dpjax.sklearn import DPAdditiveClassifier
        >>> rng = np.random.default_rng(0)
        >>> X = np.c_[rng.normal(45, 15, 20_000), rng.lognormal(10, 1, 20_000)]
        >>> y = np.abs(X[:, 0] - 45) / 5 - 2 + rng.logistic(size=20_000) > 0
        >>> model = DPAdditiveClassifier(random_state=0, classes=[False, True])
        >>> print(f"{model.fit(X, y).score(X, y):.2f}")  # doctest: +SKIP
        0.75
        >>> figure = model.plot_shapes()  # doctest: +SKIP

    Reference:
        As for `dpjax.solvers.dp_additive_model`.
    """

    def _set_zero(self, num_features: int) -> None:
        super()._set_zero(int(self._is_number.sum()))
        num_dummies = sum(map(len, self._categories.values()))
        num_columns = len(self._standard.scales) + num_dummies + 1
        self._curves = Curves(
            jnp.zeros(num_columns), jnp.zeros((0, 0)), (), (), num_columns - 1
        )
        del self.coef_, self.intercept_

    def _linear(self, X: Any) -> np.ndarray:
        scores = super()._linear(X)
        return scores.reshape(len(scores), -1)

    @property
    def _axis(self) -> tuple[list[str], str]:
        is_binary = len(self.classes_) <= 2
        label = f"log odds of {self.classes_[-1]}" if is_binary else "score"
        return list(map(str, self.classes_)), label


@parameters
class DPAdditiveRegressor(_Additive, WithExposure):
    """A private additive regressor: the mean is a sum of curves, one for each column.

    Args:
        loss: "squared"; "huber", for targets with heavy tails; "poisson", for counts;
            or "gamma", for positive amounts. With "poisson" and "gamma" the sum of the
            curves is the logarithm of the mean.
        target_range: with "poisson" and "gamma", as for `DPPoissonRegressor`.
        max_exposure: as for `DPPoissonRegressor`, with "poisson" and "gamma" only.
        intervals: whether curves have bands, as for `DPAdditiveClassifier`.
        monotone: as for `DPAdditiveClassifier`, with any loss.

    Attributes:
        shapes_: as for `DPAdditiveClassifier`, but values, shape (m,), are what the
            column adds to the prediction, in the unit of the target, or to the
            logarithm of the mean.

    Columns, their categories and ranges, and the source are as for
    `DPAdditiveClassifier`, other parameters and attributes as for `DPLinearRegression`.

    Privacy:
        As for `DPLinearRegression`, and with "poisson" and "gamma" as for
        `DPPoissonRegressor`; for columns as for `DPAdditiveClassifier`.

    Example:
        >>> import numpy as np
        >>> from dpjax.sklearn import DPAdditiveRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = np.c_[rng.normal(45, 15, 20_000), rng.lognormal(10, 1, 20_000)]
        >>> y = 300 * np.abs(X[:, 0] - 45) + 1_000 * rng.standard_t(3, 20_000)
        >>> model = DPAdditiveRegressor(random_state=0).fit(X, y)  # doctest: +SKIP
        >>> print(model.predict([[15, 2e4], [45, 2e4]]).round(-4))  # doctest: +SKIP
        [10000.     0.]
    """

    loss: Literal["squared", "huber", "poisson", "gamma"] = "squared"

    def _loss(self) -> LinearLoss:
        is_name = isinstance(self.loss, str) and self.loss in _LOSSES
        _validate.require(is_name, "loss", self.loss, " or ".join(_LOSSES))
        return _LOSSES[self.loss]

    def _set_unit(self, unit: Unit) -> None:
        self._unit = unit

    def _in_units(self, values: np.ndarray) -> np.ndarray:
        return values if self._loss().has_log_link else values * self._unit.scale

    def predict(self, X, exposure=None):
        """Returns predictions in the unit of the target, shape (n,).

        `exposure` is as for `DPPoissonRegressor.predict`.
        """
        scores = self._linear(X)
        if self._loss().has_log_link:
            return self._means(scores + math.log(self._unit.scale), exposure)
        if exposure is not None:
            raise ValueError("exposure must be None: the model was fitted without it.")
        return scores * self._unit.scale + self._unit.center

    @property
    def _factor(self) -> tuple[str | None, list[str]]:
        return "factor" if self._loss().has_log_link else None, []

    @property
    def _axis(self) -> tuple[list[str], str]:
        return [], "log mean" if self._loss().has_log_link else "prediction"
