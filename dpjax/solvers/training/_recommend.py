"""Settings of a private training run, from public numbers alone."""

from typing import NamedTuple

from dpjax._rounding import rounded_up
from dpjax.solvers.training import _training_recipe as recipe
from dpjax.solvers.training._private_training import PrivateTraining


class Recommendation(NamedTuple):
    """The default settings of `PrivateTraining`; `print` shows a table.

    Attributes:
        batch_size: expected size of the Poisson batches.
        num_steps: T.
        noise_multiplier: standard deviation of the noise over the l2 sensitivity.
        relative_noise: nu, the norm of the noise in one step over the clip norm. Above
            1 a step is mostly noise: fewer parameters, or more records, will help.
        quantile: of the norms of gradients, which the clip norm follows from 0.03 on.
        learning_rate: the peak, for gradients divided by the clip norm. The rate rises
            over the first tenth of the steps and then falls to zero.
    """

    batch_size: int
    num_steps: int
    noise_multiplier: float
    relative_noise: float
    quantile: float
    learning_rate: float

    def __str__(self) -> str:
        width = max(map(len, self._fields))
        shown = (rounded_up(float(value), 4) for value in self)
        named = zip(self._fields, shown, strict=True)
        return "\n".join(f"{name:{width}}  {value}" for name, value in named)


def recommend(
    num_samples: int, num_params: int, *, epsilon: float, delta: float
) -> Recommendation:
    """Returns the settings of a network's training, for public sizes and a budget.

    They are the defaults of `PrivateTraining`, for a loop of your own. No data are
    read, and nothing is spent.

    For a table try `solvers.dp_linear_model` and `solvers.dp_additive_model` before a
    network: on Adult at epsilon 3 their log losses are .319 and .306, and that of a
    small network with these settings is .317. If features come from a frozen public
    network, train only the last layer, because fewer parameters have less noise. For a
    regression use `dp_linear_model` for it.

    Args:
        num_samples: n, public: records, or users.
        num_params: how many parameters are trained.
        epsilon: privacy of the whole run under replace-one, positive.
        delta: privacy of the whole run, in (0, 1).

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> print(recommend(30_000, 2_000, epsilon=3.0, delta=1e-6))
        batch_size        1875
        num_steps         200
        noise_multiplier  1.364
        relative_noise    0.06538
        quantile          0.9347
        learning_rate     7.862

    Reference:
        The rules were found by the trials of benchmarks/DEEP.md, "adaptive clipping,
        quantile by the noise".
    """
    run = PrivateTraining(
        lambda params, example: 0.0,
        num_samples=num_samples,
        epsilon=epsilon,
        delta=delta,
    )
    noise = run.relative_noise(num_params)
    return Recommendation(
        round(run.batching.divisor(num_samples, run.num_steps)),
        run.num_steps,
        run.noise_multiplier,
        noise,
        float(recipe.quantile(noise)),
        float(recipe.peak_rate(noise)),
    )
