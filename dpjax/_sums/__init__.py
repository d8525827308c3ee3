"""The way from samples to a sum of bounded influences, for every estimator.

A sample is what one record, or one user, gives: the gradient of its loss, or a row of
numbers. It has three forms, one after the other:

1. `stream.SampleStream`: n samples that are not made yet. It holds rows (n, ...), such
   as a batch, what all samples share, such as parameters, and a function that makes the
   samples of some rows. Arrays of samples are a stream, too.
2. `samples.FactoredSamples`: the samples of a microbatch of k rows. Each leaf is

   * `samples.Arrays`, (k, ...), or
   * `samples.OuterProducts`, of (k, p) and (k, q), or
   * `MatrixProducts` of `gradients.factored`, of (k, G, T, p) and (k, G, T, q), summed
     over positions T, or
   * `tables.TableRows`: rows (k, t, q) at places (k, t) of a table.

   Where a sample has many small arrays of one shape they are one (`samples.Stacked`).
3. `fold.Digits`: the sum of a block of them, as a few integers for each coordinate of a
   sample, which add without rounding.

Read `samples`, `stream`, `fold`, in this order. `samples` measures and adds rows,
`stream` decides how many are read at once, by what `memory` holds, and `fold.fold_mean`
takes a stream to its mean, `fold.group_means` to means of groups of rows;
`order_statistics` orders samples by coordinate, for a mean of the middle ones.
"""
