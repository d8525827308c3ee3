"""The parts of `dpjax.solvers.dp_linear_model`: a linear model without hyperparameters.

A record (features x, target y, offset o, weight w) passes these files in this order:

1. `_model` checks shapes and options, and `_columns` draws the sample of `max_records`
   and cleans the record by itself: numbers are finite, y is in the range of the loss, w
   in [0, 1]. `_kind` names what is static, and what share of the budget each of the
   following releases has. In a model of curves x are functions of the record's columns,
   the kind's basis, which are made wherever x is read.
2. `_model`, only with `max_features`: its feature-slope products, clipped, add to the
   scores by which features are chosen.
3. `_fit` passes it through the releases of one model, in which all noise is Gaussian:
   - `_constant`: the target, clipped, adds to a mean. That is the first intercept.
   - The outer product of x, clipped to a radius, adds to second moments
     (`statistics/_moments`). They give coordinates z = A^T (x - center) with about
     equal spreads.
   - `_steps`: in z the gradient of w loss(<v, z> + o, y), clipped, adds to the mean
     gradient of each step.
   - `recalibration`: its score <v, z> and slope, clipped, add to one Newton step on the
     scale and level of the scores.
   `noisy_quantile` releases each of the bounds to which something is clipped here. All
   these noises but that of the steps are one compiled program, called between a program
   that makes a mean and one that uses it: a draw compiles for long.
   With the Huber loss `_fit` makes two such fits: to targets about a private median and
   in a private scale, and then to the residuals of the first fit.
4. `_fit` maps the weights v back to x, and `_columns` puts them into columns. With
   `intervals`, `_intervals` stands around 3: its Newton step gives standard errors.

Why all of it costs one Gaussian mechanism: `docs/privacy/proofs/linear.md`, 8.5.
"""
