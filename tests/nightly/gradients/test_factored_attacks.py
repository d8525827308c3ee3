"""Hostile records for factored means: every estimator, more records and positions."""

from itertools import product

import pytest

from dpjax.estimators import Clipping, SmoothedClipping, SmoothedTruncation, Truncation
from tests.privacy.gradients import test_factored_attacks as short

ESTIMATORS = (
    *(Clipping(1.0), SmoothedClipping(1.0)),
    *(Truncation(0.5), SmoothedTruncation(0.5)),
)
SETTINGS = [
    (model, dtype, *sizes)
    for model in short.MODELS
    for dtype in (short.SINGLE, short.HALF)
    for sizes in ((40, 3), (256, 7))
]
SETTINGS += [(m, short.SINGLE, 9, 4096) for m in ("positions", "held")]
SETTINGS += [("loop", short.SINGLE, 3, 4096), ("kernel", short.SINGLE, 40, 64)]
CASES = [(e, *setting) for e, setting in product(ESTIMATORS, SETTINGS)]


@pytest.mark.parametrize("case", [x for x in CASES if x not in short.CASES], ids=str)
def test_no_record_moves_the_mean_too_far(case, monkeypatch):
    short.test_no_record_moves_the_mean_too_far(*case, monkeypatch)
