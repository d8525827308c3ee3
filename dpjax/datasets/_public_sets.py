"""The names of the public data sets, without an import of JAX."""

PUBLIC_SETS = ("adult", "rand_hie")
