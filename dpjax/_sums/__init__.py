"""The way from samples to a sum of bounded influences, for every estimator.

A sample is what one record, or one user, gives: the gradient of its loss, or a row of
numbers. It has three forms, one after the other:

1. `stream.SampleStream`: n samples that are not made yet. It holds rows (n, ...), such
   as a batch, what all samples share, such as parameters, and a function that makes the
   samples of some rows. Arrays of samples are a stream, too.
2. `stream.FactoredSamples`: the samples of a microbatch of rows. Each leaf is an array
   (k, ...), or known as a product (`leaves.OuterProducts`, of (k, p) and (k, q), and
   `leaves.MatrixProducts`, with an axis of positions), or as a few rows of a table
   (`leaves.TableRows`, of (k, t) places and (k, t, q) values).
3. `digits.Digits`: the sum of a block of them, as a few integers for each coordinate of
   a sample, which add without rounding.

Where a sample has many small arrays of one shape they are one (`stream.Stacked`).

`fold.fold_mean` takes a stream to its mean, and `groups.group_means` to means of groups
of rows. `layout` decides how many rows are read at once, `norms` measures samples, and
`order_statistics` sorts them by coordinate where a mean is of the middle ones.
"""
