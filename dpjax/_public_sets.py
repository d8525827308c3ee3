"""The names of the public data sets, for those who must not import JAX to know them."""

PUBLIC_SETS = (
    "adult",
    "rand_hie",
    "blog_feedback",
    "credit_default",
    "belgian_motor",
    "twitter",
    "winnipeg",
    "year_prediction",
)
