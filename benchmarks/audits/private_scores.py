"""The claims of private scores, on a record whose label or target turns round.

Both models are right of the record in one data set, and as wrong as can be in the
other. The attack adds up losses and accuracies by how far each moves in its noise.
"""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.audits.case import Build, Case
from dpjax import accounting, losses, models
from dpjax._types import Key, PyTree
from dpjax.accounting._subsampling import gaussian_event
from dpjax.audit._releases import Statistic

_EPSILON, _DELTA = 4.0, 1e-5
_SAMPLING = accounting.Sampling(num_steps=2)
_NUM_RECORDS = 200
_NUM_RELEASES = 10_000  # on the host, where one takes 20 ms


def _loss_and_errors(half: int) -> Statistic:
    """Of nats up to 5, and of so many counts twice."""
    return lambda found: jnp.sum(found[0]) / 5 - jnp.sum(found[2]) / (2 * half)


def _private_scores_numbers() -> Case:
    """An error grows from none; half of the others are none, and half beyond bounds."""

    def statistic(found: list[jax.Array]) -> jax.Array:
        _, far, loss, absolute, *_ = found
        # In the bounds of both, which are three of these errors.
        return jnp.sum(loss / (jnp.square(3 * far) / 2) + absolute / (3 * far))

    targets = _every_other(0.0, 1e6)
    scores = np.zeros(_NUM_RECORDS)
    return _case(losses.squared, scores, targets, 1e6, statistic, scale=1.0)


def _every_other(first: float, second: float) -> jax.Array:
    return jnp.where(jnp.arange(_NUM_RECORDS) % 2 == 0, first, second)


def _case(loss, scores, targets, turned, statistic, scale=None) -> Case:
    multiplier = accounting.noise_multiplier(_EPSILON, _DELTA, _SAMPLING)
    options = {"beside": scores, "loss": loss, "loss_name": "of the case"}
    options |= {"scale": scale, "noise_multiplier": multiplier}

    def release(key: Key, targets: PyTree) -> list[np.ndarray]:
        found = models.private_scores(scores, np.asarray(targets), key=key, **options)
        pairs = ((one.model.value, one.constant.value) for one in found.measures)
        return [np.array(pair) for pair in pairs]

    event = gaussian_event(multiplier, _SAMPLING)
    return Case(
        *(release, targets, targets.at[0].set(turned)),
        accounting.PrivacyGuarantee.of(_EPSILON, _DELTA, dp_event=event),
        statistic,
        _NUM_RELEASES,
        is_gaussian=True,
        vectorize=False,
    )


CASES: dict[str, Build] = {
    # The label of a record turns; half of the others are not what is predicted.
    "private_scores": lambda: _case(
        *(losses.logistic, np.full(_NUM_RECORDS, 20.0), _every_other(1.0, -1.0), -1.0),
        _loss_and_errors(20),
    ),
    # The class of a record turns; half of the others are not what is predicted.
    "private_scores_classes": lambda: _case(
        *(losses.softmax(3), np.tile([0.0, 10.0, 20.0], (_NUM_RECORDS, 1))),
        *(_every_other(2.0, 0.0), 0.0, _loss_and_errors(4)),
    ),
    "private_scores_numbers": _private_scores_numbers,
}
