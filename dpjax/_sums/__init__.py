"""Sums of bounded influences of samples, for every estimator.

A sample belongs to one record or one user: it is the gradient of a loss, or a row of
numbers. It passes through three forms:

1. `stream.SampleStream`: n samples that are not computed yet. A stream holds rows
   (n, ...), such as a batch, a pytree that all samples share, such as parameters, and a
   function that computes the samples of some rows. Arrays of samples are a stream, too.
2. `samples.FactoredSamples`: the samples of a microbatch of k rows. Each leaf is

   * `samples.Arrays`, (k, ...), or
   * `samples.OuterProducts`, of (k, p) and (k, q), or
   * `MatrixProducts` of `gradients._factored`, of (k, G, T, p) and (k, G, T, q), summed
     over positions T, or
   * `tables.TableRows`: rows (k, t, q) at places (k, t) of a table.

   Many small arrays of one shape are stacked (`samples.Stacked`).
3. `fold.Digits`: the sum of a block of samples, as a few integers for each coordinate,
   which add without rounding.

`samples` measures and adds rows. `stream` decides how many are read at once, by the
size of the memory. `fold.fold_mean` computes the mean of a stream, `fold.group_means`
those of groups of rows. `order_statistics` orders samples, for trimmed means.
"""
