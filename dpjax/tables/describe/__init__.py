"""A private description of a table: counts, means, quantiles and histograms."""
