"""Private selection of the best of a random number of private runs.

Its cost is `dpjax.accounting.tuning_epsilon`. A sweep over hyperparameters, by `vmap`
or by hand, is not private: the choice of a run by its loss is a release that no
guarantee of a single run covers. An argument out of its range raises `ValueError`.
"""

from dpjax.tuning._scores import Score, clipped_loss
from dpjax.tuning._select import dp_select

__all__ = ["Score", "clipped_loss", "dp_select"]
