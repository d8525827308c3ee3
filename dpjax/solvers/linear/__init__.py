"""The parts of `dpjax.solvers.dp_linear_model`: a linear model without hyperparameters.

A record (features x, target y, offset o, weight w) passes these files in this order:

1. `_model` checks shapes and options. `_columns` draws the sample of `max_records` and
   cleans each record by itself: numbers are finite, y is in the range of the loss, w in
   [0, 1]. `_kind` names the static description of the model and the share of the budget
   of each release. In a model of curves the kind's basis computes x from the record's
   columns wherever x is read.
2. `_model`, only with `max_features`, adds its clipped feature-slope products to the
   scores by which features are chosen.
3. `_fit` passes it through the releases of one model, in which all noise is Gaussian:
   - `_constant` adds the clipped target to a mean, the first intercept.
   - `statistics/_moments` adds the outer product of x, clipped to a radius, to second
     moments. They give coordinates z = A^T (x - center) with about equal spreads.
   - `_steps` adds the clipped gradient of w loss(<v, z> + o, y) to the mean gradient of
     each step.
   - `recalibration` adds the clipped score <v, z> and slope to one Newton step on the
     scale and level of the scores.
   `noisy_quantile` releases each of the bounds. All noise but the noise of the steps is
   one compiled program, called between a program that makes a mean and a program that
   uses it, because a draw takes long to compile.
   With the Huber loss `_fit` makes two such fits: to targets about a private median and
   in a private scale, and then to the residuals of the first fit.
4. `_fit` maps the weights v back to x, and `_columns` puts them into columns. With
   `intervals`, `_intervals` adds a Newton step after 3, which gives standard errors.

All of it costs one Gaussian mechanism: `docs/privacy/proofs/linear.md`, 8.5.
"""
