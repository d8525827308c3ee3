"""What a private linear model without settings is worth, beside its rivals."""
