"""What private models of a table without settings are worth, beside their rivals."""
