"""Adapters for jax_privacy's tests: clipping, strategies, confidence bounds."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.conformance.adapter import absent, stands_for
from dpjax.audit._lower_bound import clopper_pearson
from dpjax.estimators import Clipping
from dpjax.gradients import robust_grad
from dpjax.mechanisms import BandedToeplitz

TOEPLITZ = "jax_privacy.matrix_factorization.toeplitz"


@stands_for("jax_privacy.clipping.clip_pytree")
def clip_pytree(
    pytree, clip_norm, rescale_to_unit_norm=False, nan_safe=True, return_zero=False
):
    if isinstance(clip_norm, float) and clip_norm in (0, math.inf):
        absent("a clip norm of zero or infinity")
    samples = jax.tree.map(lambda x: jnp.asarray(x)[None], pytree)
    mask = jnp.reshape(jnp.asarray(return_zero), 1)
    divisor = clip_norm if rescale_to_unit_norm else 1.0
    clipped = Clipping(clip_norm)(samples, mask, normalize_by=divisor)
    return clipped, optax.global_norm(pytree)  # dpjax shows no norms


@stands_for("jax_privacy.clipping.clipped_grad")
def clipped_grad(
    fun, argnums=0, has_aux=False, *, l2_clip_norm, batch_argnums=1, **options
):
    keep = options.pop("keep_batch_dim", True)
    divisor = l2_clip_norm if options.pop("rescale_to_unit_norm", False) else 1.0
    given = {"microbatch_size": options.pop("microbatch_size", None)}
    places = np.atleast_1d(np.asarray(batch_argnums, int)).tolist()
    if options or not places or places != [*range(1, 1 + len(places))]:
        absent(f"`{next(iter(options), 'batch_argnums')}`, not taken by the adapter")

    def loss(params, example):  # of one example: the tests' losses take a batch
        return fun(params, *(jnp.asarray(x)[None] if keep else x for x in example))

    given |= {"has_aux": has_aux, "normalize_by": divisor}
    mean = robust_grad(loss, Clipping(l2_clip_norm), **given)

    def call(params, *batch, is_padding_example=None):
        found = mean(params, batch, is_padding_example)
        return (found[0], SimpleNamespace(aux=found[1])) if has_aux else found

    return call


@stands_for(f"{TOEPLITZ}.minsep_sensitivity_squared")
def minsep_sensitivity_squared(
    strategy_coef, min_sep, max_participations=None, n=None, skip_checks=False
):
    coef = np.asarray(strategy_coef, np.float64)
    n = len(coef) if n is None else n
    most = n if max_participations is None else max_participations
    pattern = {"max_participations": most, "min_separation": min_sep}
    return (coef[0] * BandedToeplitz(n, tuple(coef[:n])).sensitivity(**pattern)) ** 2


@stands_for(
    "jax_privacy.matrix_factorization.sensitivity.minsep_true_max_participations"
)
def minsep_true_max_participations(n, min_sep, max_participations=None):
    # The squared sensitivity of independent noise counts the steps of a record.
    return round(minsep_sensitivity_squared([1.0], min_sep, max_participations, n), 6)


@stands_for(f"{TOEPLITZ}.optimal_max_error_strategy_coefs")
def optimal_max_error_strategy_coefs(n):
    return jnp.asarray(BandedToeplitz.square_root(n, n).toeplitz())


@stands_for("jax_privacy.auditing._clopper_pearson_upper")
def clopper_pearson_upper(k, n, significance):
    return clopper_pearson(np.asarray(k), n, significance)[1]
