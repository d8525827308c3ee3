"""What private networks without settings are worth, beside hindsight."""
