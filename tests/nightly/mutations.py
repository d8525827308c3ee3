"""Measures the power of the tests: they must fail for each of many planted faults.

    python tests/nightly/mutations.py --record mutations.jsonl [--only NAME ...]

Every fault changes a few characters in a copy of the repository. There its own tests run
until one fails, then those of `unit` and `privacy`. A line of the record names the first
that failed. A probe, which holds in the library and fails in the copy, shows the fault.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
# Run after a fault's own tests, until one fails.
TIERS = (["tests/unit"], ["tests/privacy"])
PRELUDE = """
import math
from types import SimpleNamespace as N
import jax, jax.numpy as jnp, numpy as np
import dpjax, dpjax.parties._secure_sum
from dpjax import accounting, batching, estimators, gradients, losses, mechanisms
from dpjax import solvers, transforms
key = jax.random.key(0)
ADD, REPLACE = dpjax._types.ADD_OR_REMOVE_ONE, dpjax._types.REPLACE_ONE
def near(x, y, rel=0.02):
    return bool(np.all(np.abs(np.asarray(x) - y) <= rel * np.abs(np.asarray(y))))
def refuses(call):
    try:
        call()
    except ValueError:
        return True
    return False
"""


class Fault(NamedTuple):
    """A change of the library that a test must find: code that occurs once in it."""

    name: str
    old: str
    new: str
    probe: str
    tests: str


# `=` a fault, `~` code in which {{what stands there|what is put in its place}}, `?` an
# expression that is true without the fault and false with it; `@` the tests nearest to
# the faults below.
EDIT = re.compile(r"\{\{(.*?)\|(.*?)\}\}", re.DOTALL)
TABLE = r"""
@ tests/unit/mechanisms/test_additive.py
= Gaussian noise times 0.9
~ return (x + {{|0.9 * }}scale.astype(x.dtype) * z).astype(out.dtype)
? near(mechanisms.gaussian(key, jnp.zeros(100_000), stddev=1.0).std(), 1)
= the scale of noise is rounded down
~     scale = jnp.asarray(scale) {{*|/}} ROUNDED_UP
~     if is_unrounded
? bool(np.all(np.abs(mechanisms.gaussian(key, jnp.zeros(500), stddev=1e20)) >= 1e20 *
? np.abs(np.float64(mechanisms._samplers.like(mechanisms._samplers.normal, key,
? jnp.zeros(500))))))
= the spread of Laplace log-normal noise is halved
~ spread = jnp.exp(sigma {{|/ 2 }}* _samplers.normal(normal_key, *kind))
? near(jnp.abs(mechanisms.laplace_log_normal(key, jnp.zeros(400_000), scale=1.0,
? sigma=1.0)).mean(), math.exp(0.5), 0.05)
= arsinh noise misses a division
~ return jnp.sinh(sigma * _samplers.normal(key, *kind)){{ / sigma|}}
? near(jnp.median(jnp.abs(mechanisms.arsinh_normal(key, jnp.zeros(100_000), scale=1.0,
? sigma=0.5))), 2 * math.sinh(0.5 * 0.6745), 0.04)
@ tests/privacy/mechanisms/test_tails.py
= Laplace draws of another law
~ return -jnp.log({{2|1}} * tail)
? near(jnp.abs(mechanisms.laplace(key, jnp.zeros(100_000), scale=1.0)).mean(), 1)
= Gumbel draws with the wrong sign
~ return {{-|}}jnp.log(_exponential_quantile(tail, is_lower))
? near(mechanisms._samplers.gumbel(key, (100_000,), 'float32').mean(), 0.5772, 0.05)
= noise without its tails
~ v = more.astype(dtype) * {{2.0**-32 + 2.0**-33|0.0 + 0.5}}
? (lambda s: (setattr(s, '_words', lambda *a: (jnp.zeros(1, 'uint32'),) * 2), float(
? jnp.abs(s.normal(key, (1,), 'float32'))[0]) > 9)[1])(mechanisms._samplers)
@ tests/unit/mechanisms/test_selection.py
= a selection at twice its epsilon
~ gap / sensitivity_range * {{epsilon|(2 * epsilon)}})
? near(np.mean(jax.vmap(lambda k: mechanisms.exponential(k, jnp.array([0.0, 1.0]),
? epsilon=1.0, sensitivity_range=2.0))(jax.random.split(key, 20_000))), 1 / (1 +
? math.exp(-0.5)), 0.03)
= a NaN among scores wins
~ scores = jnp.where(jnp.isnan(scores), {{-|}}largest, scores)
? int(mechanisms.exponential(key, jnp.array([0.0, jnp.nan]), epsilon=1.0,
? sensitivity_range=1.0)) == 0
@ tests/unit/mechanisms/test_peeling.py
= the support is chosen without noise
~ noisy = jnp.abs(v) + _rounded_up(selection_scale, v) * {{gumbel|0}}
? len({int(np.flatnonzero(mechanisms.peeling(k, jnp.array([1.0, 0.9]), sparsity=1,
? selection_scale=9.0, release_stddev=1e-9))[0]) for k in jax.random.split(key, 20)}) ==
? 2
@ tests/unit/transforms/test_peel.py
= half the noise of a peeled vector
~ v[chosen] + scale * noise{{| / 2}})
? near(jnp.std(mechanisms.peeling(key, jnp.zeros(20_000), sparsity=20_000,
? selection_scale=1.0, release_stddev=1.0)), 1)
@ tests/privacy/test_key_reuse.py tests/unit/mechanisms/test_peeling.py
= a key draws twice in peeling
~ noise = _samplers.normal({{release_key|choice_key}}, (sparsity,), v.dtype)
? (jax.config.update('jax_debug_key_reuse', True), mechanisms.peeling(key, jnp.ones(4),
? sparsity=2, selection_scale=1.0, release_stddev=1.0))[1].size == 4
@ tests/unit/mechanisms/test_discrete_gaussian.py
= discrete Gaussian noise is too narrow
~ probability = np.exp(-(ratio**2) {{/ 2 |}}if squared else -ratio)
? near(mechanisms._discrete_gaussian.discrete_gaussian(200_000, stddev=10).std(), 10)
@ tests/unit/accounting/test_gaussian.py
= several releases cost as one
~ scale = sensitivity * {{math.sqrt(num_releases)|1}}
~
? near(accounting.gaussian_stddev(1, 1e-5, sensitivity=1, num_releases=4), 2 *
? accounting.gaussian_stddev(1, 1e-5, sensitivity=1), 1e-6)
= releases are counted linearly in the price
~ unit = stddev / (sensitivity * math.sqrt({{num_releases|math.sqrt(num_releases)}}))
? accounting.gaussian_epsilon(8.0, 1e-5, sensitivity=1, num_releases=4) >=
? accounting.gaussian_epsilon(4.0, 1e-5, sensitivity=1) * (1 - 1e-9)
@ tests/unit/accounting/test_gaussian.py
= zCDP is converted without its alpha
~ epsilon = {{(1 + b)|b}} * rho + (log_inverse
? near(accounting.rho_to_epsilon(0.03056, 1e-5), 1.0, 0.002)
= the order of zCDP is forgotten on the way back
~ return gain / {{(1 + b)|b}} * (1 - _SLACK)
? accounting.rho_to_epsilon(accounting.epsilon_to_rho(8, 1e-2), 1e-2) <= 8
@ tests/unit/accounting/test_group.py
= a group's zCDP grows linearly
~ return type(event)(event.rho * group_size{{**2|}})
? accounting._guarantee._event(3, accounting._guarantee.ZCDpEvent(0.5)).rho == 4.5
= a group's delta grows linearly
~ exponent = {{(group_size - 1)|0}} * epsilon
~
? accounting._guarantee._multiple(1.0, 3) > 1 + math.e + math.e**2 - 1e-9
@ tests/unit/accounting/test_filter.py
= a filter forgets delta
~ if total.divergence > limit.divergence{{ or total.delta > limit.delta|}}:
? refuses(lambda: accounting.PrivacyFilter(1.0, 1e-6).spend(
? accounting.PrivacyGuarantee.of(0.01, 1e-3,
? dp_event=accounting._guarantee.UnsupportedDpEvent())))
= disjoint parts cost what the cheapest costs
~ return Spending(*({{max|min}}(numbers) for numbers in zip(*prices, strict=True)))
? (lambda f, g: f.price(g(0.1), g(0.5)).divergence >= f.price(g(0.5)).divergence)(
? accounting.PrivacyFilter(1.0, 1e-6), lambda e: accounting.PrivacyGuarantee.of(e, 0.0,
? dp_event=accounting._guarantee.UnsupportedDpEvent()))
@ tests/unit/accounting/test_sample.py
= the price of a sample before sampling
~ return inner * (1 - 3 * SLACK){{| / prob}}, delta / prob * (1 - 3 * SLACK)
? accounting._sample.subsampled_epsilon(accounting._sample.sample_budget(1.0, 1e-6,
? num_samples=100, sample_size=10)[0], 0.1) <= 1.0
= a sample's delta is not divided by its share
~ epsilons + np.log1p((prob - 1) * np.exp(-epsilons)) - {{|2 * }}math.log(prob),
? accounting._sample.subsampled_epsilon(accounting._sample.sample_budget(3.0, 1e-6,
? num_samples=100, sample_size=10)[0], 0.1) <= 3.0
@ tests/unit/accounting/test_selection.py
= a selection's zCDP without bounded range
~ rho = num_selections * (epsilon * epsilon) / {{8|16}}
~
? accounting._selection.total_selection_epsilon(0.1, 1e-6, num_selections=1000) >= min(
? accounting.rho_to_epsilon(1000 * 0.01 / 8, 1e-6), 100) * 0.99
= a selection's event is half as private
~ return cls(max(epsilon * epsilon / {{8|16}}, 1e-300) if epsilon > 0 else 0.0)
? near(accounting._selection.selection_event(2.0).event.rho, 0.5, 1e-9)
@ tests/unit/accounting/test_subsampling.py
= replaced records count as removed ones in sampled batches
~ return {{2|4}} if has_coins(run) and run.relation is REPLACE_ONE else 1
? accounting._subsampling.gaussian_event(1.0, accounting.Sampling(1,
? sampling_prob=0.5)).event.event.noise_multiplier == 2
= another release is free
~ precision = num_releases(run) / multiplier**2{{ + 1 / other**2|}}
? accounting.noise_multiplier_to_epsilon(3.0, 1e-5, accounting.Sampling(1,
? other_multiplier=3.0)) > 1.1 * accounting.noise_multiplier_to_epsilon(3.0, 1e-5,
? accounting.Sampling(1))
@ tests/unit/accounting/test_tuning.py
= the price of a whole tuning is that of one run
~ return float(epsilon{{ + high - low|}}) * (1 + _SLACK)
? accounting.tuning_epsilon(1.0, 0.0, mean_trials=10) > 1.5
@ tests/unit/accounting/test_objective.py
= objective perturbation forgets the Jacobian
~ remaining = epsilon{{ - math.log1p(curvature_bound / (num_samples * total))|}}
? accounting._objective.objective_noise(1.0, 1e-5, num_samples=10, regularization=0.1,
? curvature_bound=0.25).stddev > 9
= half the noise of objective perturbation
~ unit = max(gaussian_stddev(remaining, delta / 2, sensitivity={{2|1}}), 2 / ratio)
? accounting._objective.objective_noise(1.0, 1e-5, num_samples=1000,
? regularization=1.0, curvature_bound=0.25).stddev >= accounting.gaussian_stddev(1.0,
? 5e-6, sensitivity=2)
@ tests/unit/accounting/test_subsampling.py
= batches overflow more often than is counted
~ tail = _OVERFLOW_SHARE * delta * {{shrink / ((1 + shrink) * num_steps)|num_steps}}
? accounting._sampled_gaussian.poisson_capacity(10_000, 0.01, num_steps=1000,
? epsilon=1.0, delta=1e-6) > 160
@ tests/unit/accounting/test_discrete_gaussian.py
= shares of discrete noise add without their slack
~ root = sensitivity / total{{ + tau * math.sqrt(num_coordinates)  # equation (2)|}}
? accounting._discrete_gaussian.discrete_gaussian_epsilon(1, 1e-5, sensitivity=1.0,
? num_shares=9, num_coordinates=10**12) >
? accounting._discrete_gaussian.discrete_gaussian_epsilon(1, 1e-5, sensitivity=1.0,
? num_shares=9, num_coordinates=1)
@ tests/unit/test_batching.py
= half the sampling probability is accounted
~ return {"num_steps": num_steps, "sampling_prob": prob{{| / 2}}}, pattern
? batching.Poisson(10.0).sampling(100, 5).sampling_prob == 0.1
= a turn of cyclic batches is not counted
~ num_turns = {{math.ceil(num_steps |max(1, num_steps /}}/ self.cycle_length)
? batching.CyclicPoisson(2.0, 4).sampling(100, 5).num_steps == 2
= the same rows in every batch
~ return {{uniform_subset(key, state.num_samples, |jnp.arange(}}self.batch_size)
? (lambda b: (lambda s: not np.array_equal(*(lambda x, y: (x, y))(b.draw(s, jnp.arange(
? 99.0))[0], b.draw(b.draw(s, jnp.arange(99.0))[2], jnp.arange(99.0))[0])))(b.init(key,
? 99, 5)))(batching.WithoutReplacement(7))
= the bins of an epoch are drawn anew in every step
~ bin_key = jax.random.fold_in(state.run_key, {{epoch|state.step}})
? (lambda b: (lambda f: f(b.init(key, 60, 6, epsilon=1.0, delta=1e-6), set()) == 60)(
? lambda s, seen: [((r := b.draw(s, jnp.arange(1.0, 61.0))), seen.update(r[0].tolist()), (s := r[2]))[1] for _ in
? range(6)] and len(seen - {0.0})))(batching.BallsInBins(6, capacity=60))
= an epoch that began is not counted
~ pattern = participates(num_steps, {{math.ceil(num_steps |max(1, num_steps /}}/ self.num_bins))
? batching.BallsInBins(6).sampling(60, 7, strategy=mechanisms.BandedToeplitz(7,
? (1.0,))).max_participations == 2
= a run that is over draws more batches
~ rows = jnp.where(is_over, {{state.num_samples|rows}}, rows)
? (lambda b: bool(b.draw(b.draw(b.init(key, 9, 1, epsilon=1.0, delta=1e-6), jnp.ones(
? 9))[2], jnp.ones(9))[1].all()))(batching.Poisson(3.0))
= a capacity that drops records
~ _validate.require(capacity >= {{smallest|1}}, "capacity", capacity, rule)
? refuses(lambda: batching.Poisson(50.0, capacity=51).init(key, 1000, 10, epsilon=1.0,
? delta=1e-6))
= padding rows count
~ return (), (jax.tree.map(partial(_take, rows), data), rows {{==|>}} num_samples)
? (lambda b: bool(b.draw(b.init(key, 50, 3, epsilon=1.0, delta=1e-6), jnp.ones(50))[
? 1].any()))(batching.Poisson(5.0))
@ tests/privacy/estimators/test_sensitivity.py
= replacing one counts as removing one
~ moved = {REPLACE_ONE: {{diameter|1.0}},
? estimators.Clipping(1.0).sensitivity(100, 3).l2 >= 0.02
= the sensitivity of a median of means is that of all
~ group_size = precise(num_samples){{ // self.num_groups|}}
? estimators.MedianOfMeans(estimators.Winsorization(1.0), 5).sensitivity(100, 1).linf >
? 0.09
@ tests/privacy/estimators/test_composed.py tests/privacy/estimators/test_under_fire.py
= a sensitivity without the slack of a block's sum
~ block = {{2|0}} * error(length) * ROUNDOFF
? estimators.Winsorization(1.0).sensitivity(256, 10, rounded=False).linf > 2 / 256 *
? 1.00005
@ tests/privacy/estimators/test_sensitivity.py tests/privacy/estimators/test_under_fire.py
= a sensitivity without the rounding of the mean
~ l2 += {{2 * ROUNDOFF * 1.125 * _largest_mean(longest, num_samples)|0.0}}
? estimators.Clipping(1.0).sensitivity(10**7, 3).l2 > 2e-7 * 1.5
@ tests/unit/transforms/test_privatize.py
= noise by another multiplier
~ "stddev": {{|0.9 * }}noise_multiplier * sensitivity}
? (lambda p: near(p['stddev'], 2 * p['l2_sensitivity'], 1e-6))(estimators.Clipping(
? 1.0).noise_parameters(2.0, 10, 3))
@ tests/unit/sums/test_fold.py tests/privacy/estimators tests/privacy/audit/test_planted_faults.py
= noise is added after rounding
~ jax.tree.map({{rounded_sum, *materialized((*self, noise))|jnp.add, self.high, noise}})
? float(dpjax._sums.fold.Unrounded(jnp.float32(1), jnp.float32(2.0**-26)).plus(
? jnp.float32(2.0**-24))) > 1
@ tests/unit/estimators/test_contract.py
= the mask is forgotten
~ samples = samples.zero_unless({{~|padding == }}padding)
? near(estimators.Clipping(1.0)(jnp.ones((4, 1)), jnp.array([0, 0, 1, 1], bool)), 0.5)
@ tests/unit/sums/test_fold.py tests/unit/gradients/test_robust.py
= rows of the last microbatch count twice
~ samples = samples.zero_unless({{(row >= start) & (row < stop)|row < stop}})
? near(gradients.robust_grad(lambda w, x: w * x, estimators.Clipping(9.0),
? microbatch_size=2)(1.0, jnp.arange(5.0)), 2.0, 1e-6)
@ tests/unit/estimators/test_clipping.py
= a limit is not squared
~ return lambda norm: 1 / {{jnp.maximum(norm, 1)|jnp.sqrt(jnp.maximum(norm, 1))}}
~
? near(estimators.Clipping(1.0)(jnp.array([[3.0, 4.0]])), np.array([[0.6, 0.8]]), 1e-5)
@ tests/privacy/gradients/test_factored_attacks.py tests/unit/gradients/test_factored.py
= a NaN in a factor spreads
~ {{as_finite(self.left), right=as_finite(self.right)|self.left, right=self.right}})
? bool(jnp.isfinite(gradients.robust_grad(lambda w, x: jnp.sum((w @ x) ** 2),
? estimators.Clipping(1.0))(jnp.ones((64, 64)), jnp.ones((3, 64)).at[0, 0].set(
? jnp.nan))).all())
@ tests/privacy/gradients/test_factored_attacks.py tests/unit/sums/test_samples.py
= squares that underflow make a norm too small
~ (sum_of_squares(x) + {{x.size|0}} * LOST for x in (left, right))
? float(dpjax._sums.samples.squared_norm_of_product(jnp.full(4, 1e-23), jnp.full(4,
? 1e18))) > 0
@ tests/unit/sums/test_fold.py tests/privacy/estimators/test_under_fire.py
= too few digits for many blocks
~ more = {{max(0, -(-(11 + 2 * bits - high) // base))|0}}
? dpjax._sums.fold.digit_layout(2**16, 23)[2] > 2
@ tests/unit/sums/test_fold.py tests/unit/estimators/test_contract.py
= a traced divisor is not raised
~ return {{jnp.maximum(divisor, like(above, divisor))|divisor}}
? float(jax.jit(lambda n: estimators.Clipping(1.0)(jnp.ones((10_000, 1)),
? normalize_by=n))(1.0)[0]) < 1.2
= a divisor much smaller than the batch
~ least = 0.0 if num_rows <= 1.125 * FEW_ROWS else num_rows / {{1.125|100}}
? refuses(lambda: estimators.Clipping(1.0)(jnp.ones((10_000, 1)), normalize_by=200.0))
@ tests/unit/estimators/test_adaptive.py
= counts of short samples cost nothing
~ return self.estimator.limit {{/|*}} math.sqrt(1 - self.share)
? (lambda c: c.limit**2 >= 1 + c.half**2 - 1e-9)(estimators.AdaptiveThreshold(
? estimators.Clipping(1.0), 0.1, 10.0).counting)
@ tests/unit/estimators/test_normwise.py
= a bound by groups counts the largest alone
~ return float({{np.sqrt(np.sum(limits**2))|np.max(limits)}})
? near(estimators.Grouped(estimators.Clipping(1.0), ('a', 'b')).limit, math.sqrt(2),
? 1e-6)
= scaled samples are divided by half of their scales
~             return x / {{like(scale, x)|(like(scale, x) / 2)}}
~
? near(estimators.Scaled(estimators.Winsorization(1.0), jnp.array([4.0])).measured(
? jnp.ones((5, 1))), 0.25, 1e-5)
@ tests/unit/estimators/test_trimmed_mean.py
= a trimmed mean leaves its range
~ return {{jnp.clip(mean, like(self.lower, mean), like(self.upper, mean))|mean}}
? float(estimators.TrimmedMean(0.1, -1.0, 1.0)(jnp.full((20, 1), 9.0))[0]) == 1
= a smooth sensitivity without its least value
~ return {{jnp.maximum(largest, weights[-1] * width)|largest}} * (1 + SLACK)
? float(estimators.TrimmedMean(0.1, -99.0, 99.0).smooth_sensitivity(jnp.zeros((40, 1)),
? 0.1)[0]) > 130
@ tests/unit/transforms/test_privatize.py tests/unit/transforms/test_contract.py
= the same noise in every step
~ next_key, noise_key = {{jax.random.split(state.key)|state.key, state.key}}
~         draw =
? (lambda t: (lambda a: not np.array_equal(a[0], t.update(jnp.zeros((4, 3)), a[1])[0]))(
? t.update(jnp.zeros((4, 3)), t.init(jnp.zeros(3)))))(transforms.privatize(
? estimators.Clipping(1.0), noise_multiplier=1.0, key=key))
@ tests/unit/gradients/test_users.py
= records of a user beyond the last are read
~ is_record = place <{{|=}} stop
~
? int(gradients.by_user(jnp.arange(6.0), jnp.array([0, 0, 1, 1, 1, 0]), num_users=2,
? records_per_user=4).is_record.sum()) == 6
@ tests/unit/gradients/test_factored.py
= rows of a table that lie outside are read
~ return {{jnp.where(places == nearest, places, num_rows)|nearest}}
? (lambda loss, clip, *args: near(gradients.robust_grad(loss, clip)(*args) + 1, clip(
? gradients.per_sample_grad(loss)(*args)) + 1, 1e-5))(lambda w, i: jnp.sum(w.at[i].get(
? mode='fill', fill_value=0)), estimators.Clipping(9.0), jnp.ones((40, 3)), jnp.array([
? 1, 99]))
@ tests/unit/solvers/linear
= second moments with half their noise
~ sensitivity = math.sqrt({{2|0.5}}) * (bound - largest / num_samples)
? float(solvers.statistics._moments.second_moments(None, jnp.ones((100, 2)), 1.0, 1.0)[
? 1][0]) > 0.0135
= means with exposures of a smaller radius
~ _EXPOSED = SetClipping({{math.sqrt(2)|1.0}}, math.sqrt(5 / 2))
? near(solvers.linear._constant._EXPOSED.l2_clip_norm, math.sqrt(2), 1e-9)
= means with exposures of a smaller diameter
~ _EXPOSED = SetClipping(math.sqrt(2), {{math.sqrt(5 / 2)|1.0}})
? near(solvers.linear._constant._EXPOSED.diameter, math.sqrt(5 / 2), 1e-6)
= blocks of a gradient are longer than their share
~ * (math.sqrt(share) * (1 {{- 4 * ROUNDOFF|+ 0.02}}))
? (lambda s: float(jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(s.BlockClipping({
? 'a': 1.0, 'b': 1.0}, (('a', 0.5), ('b', 0.5))).influence({'a': jnp.full(3, 9.0), 'b':
? jnp.full(3, 9.0)}))))) <= 1)(solvers.linear._steps)
= the shares of a linear model add up to more than one
~ return cls(*before, {{1|1.02}} - math.fsum(before + after), *after)
? (lambda k: math.fsum(k.Shares.of(k.ModelKind(losses.logistic, True, False, False,
? None), (100, 3), 1.0)) <= 1 + 1e-9)(solvers.linear._kind)
= a weight beyond the largest
~ jnp.clip(jnp.nan_to_num(examples.weights), {{0.0, max_weight|-jnp.inf, jnp.inf}})
? float(solvers.linear._columns.cleaned(losses.squared, None,
? solvers.linear._kind.Examples(jnp.ones((2, 1)), jnp.ones(2), jnp.zeros(2), jnp.array([
? 1.0, 1e6])), 1.0).weights.max()) == 1
@ tests/unit/solvers/linear/test_recalibration.py
= the recalibration's moments of a smaller diameter
~ _RECORDS = SetClipping(math.sqrt(5), math.sqrt({{11|8}} / 5))
? near(solvers.linear._fit._RECORDS.diameter, math.sqrt(11 / 5), 1e-6)
= slopes of the recalibration are not clipped
~ jnp.clip(_slopes(loss, predictor) / height, {{-1.0, 1.0|-jnp.inf, jnp.inf}})
? (lambda r: float(jnp.abs(r._records(losses.squared, r.Predictor(jnp.ones(2),
? jnp.zeros(()), jnp.full(2, 1e6), jnp.zeros(2), jnp.ones(2)),
? jnp.ones(3))).max()) <= 1)(solvers.linear._fit)
= curvatures of the recalibration are not clipped
~ jnp.clip(weights * curvatures / largest, 0.0, {{1.0|jnp.inf}})
? (lambda r: float(r._records(losses.squared, r.Predictor(jnp.ones(2), jnp.zeros(()),
? jnp.ones(2), jnp.zeros(2), jnp.ones(2)), jnp.float32([1, 1, 0.1])).max()) <= 1)(
? solvers.linear._fit)
@ tests/unit/solvers/linear tests/unit/test_scales.py
= a histogram of sizes with less noise
~ stddev = {{2**0.5 * |}}ROUNDED_UP * jnp.asarray(noise_multiplier, "float32")
? float(solvers.statistics._noisy_quantile._counts(jnp.ones(5), 1.0)[1][0]) > 1.4
@ tests/unit/solvers/linear/test_intervals.py
= a bisection pays for one of its steps
~ stddev = {{math.sqrt(_NUM_HALVINGS)|1.0}} * ROUNDED_UP * noise_multiplier
? (lambda m: (setattr(m, '_bound', lambda key, x, stddev, least: stddev), m.noisy_bound(
? key, jnp.ones(3), noise_multiplier=1.0) >= 3)[1])(solvers.statistics._noisy_quantile)
= an interval without the sampling part
~ spread = (vectors * jnp.maximum(values, 0)[None, :]) @ vectors.T {{/ num_users|* 0}}
? float(np.min(solvers.dp_linear_model('squared', (jax.random.normal(key, (5000, 2)), 3
? * jax.random.normal(jax.random.key(1), (5000,))), key=key, epsilon=1e4, delta=1e-5,
? intervals=True).standard_errors)) > 0.03
= an interval without the noise
~ noisy = {{jnp.diag(scores.stddev**2) + |}}scores.bias.T @ scores.bias
? (lambda d: np.min(np.asarray(solvers.dp_linear_model('squared', d, key=key,
? epsilon=1.0, delta=1e-5, intervals=True).standard_errors)) > 1.2 * np.min(np.asarray(
? solvers.dp_linear_model('squared', d, key=key, epsilon=1e4, delta=1e-5,
? intervals=True).standard_errors)))((jax.random.normal(key, (5000, 2)),
? jax.random.normal(jax.random.key(1), (5000,))))
= the shares of intervals add up to more than one
~ return shares | {"scores": {{1|1.02}} - math.fsum(shares.values())}
? math.fsum(solvers.linear._intervals._shares((9000, 3), 1.0).values()) <= 1 + 1e-9
= intervals of few records
~ if many_above{{ or num_users < least|}}:
? not np.isfinite(solvers.dp_linear_model('squared', (jnp.ones((40, 1)), jnp.ones(
? 40)), key=key, epsilon=9e3, delta=1e-5, intervals=True).standard_errors).any()
@ tests/unit/solvers/linear/test_intervals.py tests/privacy/test_key_reuse.py
= a bisection draws one noise for all steps
~ step_key = jax.random.fold_in(key, {{step|0}})
~         noisy = gaussian(
? (lambda m, seen: (jax.config.update('jax_disable_jit', True), setattr(m, 'gaussian',
? lambda k, x, stddev: (seen.append(tuple(jax.random.key_data(k).tolist())), x)[1]),
? m.noisy_bound(key, jnp.ones(3), noise_multiplier=1.0), len(set(seen)) == len(seen) >
? 1)[-1])(solvers.statistics._noisy_quantile, [])
@ tests/unit/solvers/test_diameter.py
= moments of hat functions have less noise
~ clipping = SetClipping(math.sqrt(2 * k), {{math.sqrt(2)|1}})
~     shape = jnp.zeros((k, 3
? 'SetClipping(math.sqrt(2 * k), math.sqrt(2))' in __import__('inspect').getsource(
? solvers.linear._bends)
= slopes of a gain are longer than they count
~ slopes = slopes * {{(norm / jnp.maximum(row_norms(slopes), norm))[:, None]|1}}
? float(jnp.abs(solvers.additive._choice._centered(None, jnp.full((4, 1), 1e6),
? jnp.float32(1), key, 1.0)).max()) < 1e3
@ tests/unit/solvers/test_untuned_mean.py
= the shares of a mean add up to more than one
~ mean = {{1|1.02}} - math.fsum(share for share in before if share)
? math.fsum(x for x in solvers.statistics._mean.Shares.of((1000, 3), 1.0) if x)
? <= 1 + 1e-9
@ tests/unit/solvers/test_groups.py
= the shares of group means add up to more than one
~ sums = {{1|1.02}} - _COUNTS - _SIZE - _MEDIAN - _LENGTHS - _SQUARES
? 'sums = 1 - _COUNTS' in __import__('inspect').getsource(
? solvers.statistics._group_means)
= counts of a histogram have less noise
~ of_counts = multiplier / math.sqrt({{1|1.2}} - share)
? (lambda s: float(s.stats['stddev']) >= 1.414 * s.stats['noise_multiplier'])(
? solvers.dp_histogram(jnp.ones(50), key=key, epsilon=1.0, delta=1e-5, edges=[0.0, 1.0,
? 2.0]))
= a count's interval without the sampling part
~ sampling = {{num_samples|0}} * share * (1 - share)
~     return counts, jnp.sqrt(
? float(solvers.dp_histogram(jnp.tile(jnp.array([0.5, 1.5]), 500), key=key,
? epsilon=100.0, delta=1e-5, edges=[0.0, 1.0, 2.0]).standard_errors[0]) > 15
@ tests/unit/solvers/test_quantile.py
= one of several quantiles has half the noise
~ chosen = choose(mechanism, own_key, scores, epsilon{{ / 2|}})
? 'own_key, scores, epsilon / 2)' in __import__('inspect').getsource(
? solvers.statistics._quantile)
= a quantile's interval without the sampling part
~ sampling = {{num_samples|0}} * shares * (1 - shares)
~
? float(solvers.dp_quantile(jax.random.normal(key, (4000,)), key=key,
? epsilon=50.0).standard_errors) > 0.012
= ranks change by less than they do
~ RANGE = {{2.0|1.0}}  # of
? near(np.mean(jax.vmap(lambda k: solvers.statistics._quantile.choose('exponential', k,
? jnp.array([0.0, -1.0]), 2.0))(jax.random.split(key, 20_000))), 1 / (1 + math.e), 0.05)
= a missing sample moves a quantile by more
~ values = jnp.where(jnp.isnan(samples), {{missing|jnp.inf}}, samples)
? (lambda c: 0 < int(c[0]) < int(c[-1]))(solvers.statistics._quantile.num_up_to(
? jnp.full(99, jnp.nan), jnp.array([0.0, 1.0, 2.0]), np.uint32(2**31)))
@ tests/unit/solvers/test_frank_wolfe.py
= a Lasso's targets are not clipped
~         {{clip((features, targets), threshold)|(features, targets)}},
~
? (lambda m, seen: (setattr(m, 'choose_vertices', lambda loss, params, data, *_, **__:
? (seen.append(data), (params, {'selection_error': 0.0}))[1]), m.dp_lasso(jnp.full((50,
? 2), 9.0), jnp.full(50, 9.0), key=key, epsilon=1.0, threshold=2.0), float(seen[0][
? 1].max()) == 2)[-1])(solvers.papers._frank_wolfe, [])
= gradients of a Lasso grow with its parameters
~ return losses.squared(params, example) / {{(1 + size)|1}}
? float(jnp.abs(jax.grad(solvers.papers._frank_wolfe._scaled_squared)(jnp.array([3.0]), (
? jnp.ones(1), 1.0))[0])) <= 1.01
@ tests/unit/parties/test_secure_sum.py
= rounding to a grid is not counted
~ return l2_sensitivity / self.step{{ + 2 * math.sqrt(num_coordinates)|}}
? dpjax.parties._secure_sum.Grid(0.5, 9.0).sensitivity(1.0, 4) == 6
= masks do not cancel
~ total = total + stream{{ if self._party < other else total - stream|}}
? (lambda ms: (ms[0].agree(k := [m.public_key for m in ms]), ms[1].agree(k), not (ms[
? 0].mask([0, 1], attempt=1, size=3) + ms[1].mask([0, 1], attempt=1, size=3)).any())[
? -1])([dpjax.parties._secure_sum.PairwiseMasks(i) for i in (0, 1)])
= a mask is used again after a dropout
~             self._attempt {{+|}}= 1
~
? (lambda s, seen: (setattr(s, 'transport', N(num_parties=2, party=0, exchange=lambda m,
? size: [m, None])), setattr(s, 'live', [0, 1]), setattr(s, '_attempt', 0), setattr(s,
? 'max_dropouts', 1), setattr(s, '_masks', N(mask=lambda live, attempt, size: (
? seen.append(attempt), np.zeros(size, np.uint64))[1])), s(lambda: np.zeros(2), 2), seen
? == [1, 2])[-1])(object.__new__(dpjax.parties.SecureSum), [])
= noise that colluders know counts
~ shares = num_parties - {{max_colluding - max_dropouts|max_dropouts}}
? dpjax.parties.SecureSum.count_secret_shares(5, 2, 1) == 2
"""


def read_faults(table: str) -> list[Fault]:
    """Reads a table of faults, in the form of `TABLE`."""
    found, tests = [], ""
    for line in table.strip().splitlines():
        kind, text = line[0], line[2:]
        if kind == "@":
            tests = text
        elif kind == "=":
            found.append({"=": [text], "~": [], "?": [], "@": [tests]})
        else:
            found[-1][kind].append(text)
    faults = []
    for parts in found:
        name, code, probe, tests = map("\n".join, parts.values())
        old, new = (EDIT.sub(place, code) for place in (r"\1", r"\2"))
        faults.append(Fault(name, old, new, probe, tests))
    return faults


FAULTS = read_faults(TABLE)


def place_of(fault: Fault, root: Path) -> Path:
    """Returns the one file of the library that holds the code a fault changes."""
    places = [
        path
        for path in sorted((root / "dpjax").rglob("*.py"))
        for _ in range(path.read_text().count(fault.old))
    ]
    if len(places) != 1:
        raise LookupError(f"{fault.name!r} stands in {len(places)} places, not in one")
    return places[0]


def run(command: list[str], root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "CI": "false"},
        capture_output=True,
        text=True,
    )


def holds(probe: str, root: Path) -> bool:
    return run(["-c", f"{PRELUDE}\nassert ({probe})"], root).returncode == 0


def first_failure(fault: Fault, root: Path) -> str | None:
    for paths in (fault.tests.split(), *TIERS):
        result = run(["-m", "pytest", "-x", "-q", "-n0", "--durations=0", *paths], root)
        if result.returncode == 1:
            failed = [x for x in result.stdout.splitlines() if x.startswith("FAILED")]
            return failed[0].split()[1] if failed else paths[0]
        if result.returncode != 0:
            raise RuntimeError(result.stdout[-2000:] + result.stderr[-2000:])
    return None


def measured(fault: Fault) -> dict[str, object]:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "dpjax"
        ignored = shutil.ignore_patterns(".git", "__pycache__", "_build", ".venv")
        shutil.copytree(ROOT, root, ignore=ignored)
        place = place_of(fault, root)
        place.write_text(place.read_text().replace(fault.old, fault.new))
        is_fault = not holds(fault.probe, root)
        test = first_failure(fault, root)
    seconds = round(time.monotonic() - begin)
    return {"name": fault.name, "fault": is_fault, "test": test, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, required=True, help="a file of lines")
    parser.add_argument("--only", nargs="*", help="names of faults")
    parser.add_argument(
        "--probes", action="store_true", help="run probes without faults"
    )
    options = parser.parse_args()
    chosen = [x for x in FAULTS if options.only is None or x.name in options.only]
    if options.probes:
        failed = [x.name for x in chosen if not holds(x.probe, ROOT)]
        sys.exit(f"these probes fail without their faults: {failed}" if failed else 0)
    lines = options.record.read_text().splitlines() if options.record.exists() else []
    done = {json.loads(line)["name"] for line in lines}
    for fault in chosen:
        if fault.name not in done:
            lines.append(json.dumps(measured(fault)))
            options.record.write_text("\n".join(lines) + "\n")
            print(lines[-1], flush=True)
    results = [json.loads(line) for line in lines]
    alive = [x["name"] for x in results if x["test"] is None]
    print(f"{len(results)} faults, {len(alive)} live: {alive}")


if __name__ == "__main__":
    main()
