"""An audit of samples of a stream: sampling pays for what it is said to pay."""

import jax
import numpy as np
import pytest

from dpjax import mechanisms
from dpjax.accounting import (
    PrivacyGuarantee,
    Sample,
    gaussian_event,
    gaussian_stddev,
)
from dpjax.audit import epsilon_lower_bound
from dpjax.loading import sample


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_an_attack_on_the_sum_of_a_sample(share, key):
    # One record of four is drawn. Of less noise than is said the attack finds it.
    inner, delta = 3.0, 0.04
    stddev = gaussian_stddev(inner, delta, sensitivity=1.0)
    event = gaussian_event(stddev)
    privacy = PrivacyGuarantee.of(inner, delta, dp_event=event)
    privacy = Sample(4, 1).privacy(privacy)

    def release(key, values):
        draw_key, key = jax.random.split(key)
        drawn, _ = sample([np.asarray(values)], 1, key=draw_key)
        return mechanisms.gaussian(key, drawn, stddev=share * stddev)

    found = epsilon_lower_bound(
        *(release, np.zeros(4, np.float32), np.eye(4, dtype=np.float32)[0]),
        key=key,
        delta=privacy.delta,
        num_releases=4000,
        vectorize=False,
    )
    assert (found.epsilon <= privacy.epsilon) == (share == 1.0)
