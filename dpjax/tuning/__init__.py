"""Choosing privately: the best of a random number of private runs.

The price is `dpjax.accounting.tuning_epsilon`. Sweeps that look at every run, by `vmap`
over hyperparameters or by hand, are free of this and are not private: whoever picks a
run by its loss has released what no guarantee of a single run covers.
"""

from dpjax.tuning._scores import Score, accuracy, clipped_loss
from dpjax.tuning._select import dp_select

__all__ = ["Score", "accuracy", "clipped_loss", "dp_select"]
