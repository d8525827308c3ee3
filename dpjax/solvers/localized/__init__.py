"""Localized optimization of convex risks with heavy tails, in phases.

`_descent` is the general algorithm, `_one_pass` its linear-time form for smooth linear
losses; `_theory` has what both take from the moments.
"""
