"""Sums of bounded influences of samples, for every estimator.

A sample belongs to one record or one user: it is the gradient of a loss, or a row of
numbers. It passes through three forms:

1. `stream.SampleStream`: n samples that are not computed yet. A stream holds rows
   (n, ...), such as a batch, a pytree that all samples share, such as parameters, and a
   function that computes the samples of some rows. Arrays of samples are a stream, too.
2. `samples.FactoredSamples`: the samples of a microbatch of k rows. A leaf is an array
   (`samples.Arrays`), or outer products of two vectors (`samples.OuterProducts`) or a
   sum of them (`MatrixProducts` of `gradients`), or a few rows of a table
   (`tables.TableRows`). Many small arrays of one shape are stacked (`samples.Stacked`).
3. `fold.Digits`: the sum of a block of samples, as a few integers for each coordinate,
   which add without rounding.

`samples` measures and adds rows. `stream` decides how many are read at once, by the
size of the memory. `fold.fold_mean` computes the mean of a stream, `fold.group_means`
the means of groups of rows. `order_statistics` orders samples, for trimmed means.
"""
