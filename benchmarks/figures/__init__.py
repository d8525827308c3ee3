"""The papers' figures: their panels as data, and what runs and draws them."""
