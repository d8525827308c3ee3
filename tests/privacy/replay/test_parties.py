"""Parties show nothing but sums: all messages and solutions are functions of them.

A record of one party is replaced, and its noisy contributions are handed out again.
Whatever any of the parties sends or returns must be equal, with the entropy of the run
before. The transcript of objective perturbation is not private, and it says so: of it
the released sum is handed out, and what an outsider sees is compared.
"""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import constraints, estimators, losses, parties, solvers
from tests.parties import Recorder
from tests.privacy.replay import _replay
from tests.privacy.replay.test_solvers import CLIPPING, NEIGHBOURS, D, neighbour, table

SIZES = (5, 1, 14)  # of the parties' tables
BUDGET = {"epsilon": 1.0, "delta": 1e-5}


class Released(parties.SecureSum):
    """Sums of which party 0 is handed the last, which alone is released."""

    hooks = None

    def __call__(self, contribution_fn, size):
        total = super().__call__(contribution_fn, size)
        if contribution_fn.__name__ != "output" or self.transport.party != 0:
            return total
        return self.hooks.handed("objective", total, total)


def descent(secure_sum, data, **options):
    ticks = []

    def tick(step, params):
        ticks.append(_replay.seen((step, params)))

    settings = {"estimator": CLIPPING, "learning_rate": 0.1, "num_steps": 3} | options
    settings |= {"execution": solvers.Execution(callback=tick), **BUDGET}
    solution = solvers.dp_multiparty_gradient_descent(
        losses.squared, jnp.zeros(D), data, secure_sum=secure_sum, **settings
    )
    return solution, ticks, secure_sum.live


def objective(secure_sum, data, **options):
    return solvers.dp_multiparty_objective_perturbation(
        *data, secure_sum=secure_sum, **BUDGET, **options
    )


CASES = {
    "clipped": descent,
    "averaged": partial(
        descent,
        averaging=True,
        learning_rate=lambda step: 0.1 / (1 + step.astype("float32")),
        projection_fn=constraints.L2Ball(0.1).project,
    ),
    "winsorized": partial(descent, estimator=estimators.Winsorization(1.0)),
    "objective": partial(objective, regularization=0.1),
    "objective, hinge": partial(
        objective, regularization=0.0, loss=losses.MarginLoss.smoothed_hinge()
    ),
}


def refuse_interference(hooks, case, owner=0, ends=None, names=tuple(NEIGHBOURS)):
    """Compares runs of other first records; the last party may send `ends` messages."""
    is_objective = getattr(case, "func", case) is objective
    tables = [table(size) for size in SIZES]
    guarantees = []

    def run(data):
        sent = {}

        def party_fn(transport):
            k = transport.party
            source = np.random.default_rng(k)
            entropy = source.bytes
            if k == owner:
                hooks.watched = None if is_objective else entropy
            is_cut = ends is not None and k == len(SIZES) - 1
            recorder = Recorder(transport, ends=ends if is_cut else None)
            sent[k] = recorder.sent
            options = {"max_colluding": 1, "max_dropouts": 0 if ends is None else 1}
            options |= {"identity": source.bytes(32), "test_only_random_bytes": entropy}
            make = Released if is_objective else parties.SecureSum
            secure_sum = make(recorder, **options)
            try:
                return case(secure_sum, data if k == owner else tables[k])
            except RuntimeError as error:
                assert is_cut  # it has dropped out, and need not be told
                return str(error)

        results = parties.run_parties(party_fn, len(SIZES))
        first = results[0] if is_objective else results[0][0]
        guarantees.append(first.privacy)
        return first if is_objective else (results, [*map(sent.get, range(len(SIZES)))])

    Released.hooks = hooks
    shown = hooks.record(partial(run, tables[owner]))
    assert shown[0][0] != "raised", shown
    assert hooks.recorded
    for name in names:
        other = neighbour(tables[owner], *NEIGHBOURS[name])
        hooks.replay(partial(run, other), shown, _replay.charged(guarantees[0]))


@pytest.mark.quick(3)
@pytest.mark.parametrize("owner", range(len(SIZES)))
@pytest.mark.parametrize("name", CASES)
def test_parties_show_what_they_release(hooks, name, owner):
    refuse_interference(hooks, CASES[name], owner)


@pytest.mark.parametrize("ends", [2, 3])
def test_a_party_that_drops_shows_no_more(hooks, ends):
    # The others make the attempt anew, and go on without it.
    refuse_interference(hooks, descent, ends=ends, names=("opposite", "NaN"))
