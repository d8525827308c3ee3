"""dpjax: differentially private optimization for heavy-tailed data, in JAX."""
