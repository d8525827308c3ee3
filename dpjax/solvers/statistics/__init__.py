"""Private means, quantiles, histograms, and statistics of groups."""
