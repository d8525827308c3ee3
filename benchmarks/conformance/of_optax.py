"""An adapter for optax's tests of its private aggregation."""

import jax
import jax.numpy as jnp
import optax

from benchmarks.conformance.adapter import stands_for
from dpjax import ADD_OR_REMOVE_ONE
from dpjax.estimators import Clipping
from dpjax.transforms import privatize


@stands_for("optax.contrib._privacy.differentially_private_aggregate")
def differentially_private_aggregate(l2_norm_clip, noise_multiplier, key):
    given = {"noise_multiplier": noise_multiplier, "key": jax.random.key(key)}
    given["relation"] = ADD_OR_REMOVE_ONE

    def private(gradients):  # optax divides by the size of the batch
        size = len(jax.tree.leaves(gradients)[0])
        return privatize(Clipping(float(l2_norm_clip)), normalize_by=size, **given)

    def update(updates, state, params=None):
        return private(updates).update(updates, state, params)

    return optax.GradientTransformation(private(jnp.zeros(1)).init, update)
