"""Parties in processes of their own, over JAX's distributed runtime."""

import numpy as np

from tests.parties import free_port, records, run_processes
from tests.unit.solvers.test_multiparty import SIZES, noise_of, pooled_descent

EXCHANGE = """
import os, sys, jax
party, address = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(
    address, 3, party, initialization_timeout=30, heartbeat_timeout_seconds=5
)
from dpjax.parties import JaxTransport
transport = JaxTransport()
everything = transport.exchange(bytes([party]) * 5, 5)
gaps = transport.exchange(b"" if party == 1 else b"ab" * (1 + party), 2)
# They may also await different sizes.
own = transport.exchange(b"abc" if party == 1 else b"de", 2 + (party == 1))
if sys.argv[3] == "die" and party == 1:
    os._exit(7)
print("RESULT", everything, gaps, own, transport.exchange(b"z", 1), flush=True)
"""
DESCENT = """
import sys
import jax, jax.numpy as jnp, numpy as np
party, address, num_parties = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
jax.distributed.initialize(address, num_parties, party, initialization_timeout=60)
from dpjax import losses
from dpjax.estimators import Clipping
from dpjax.parties import JaxTransport, SecureSum
from dpjax.solvers import dp_multiparty_gradient_descent
with np.load(sys.argv[4]) as file:
    data = file[f"features{party}"], file[f"targets{party}"]
known = np.random.default_rng(party).bytes
solution = dp_multiparty_gradient_descent(
    losses.logistic, jnp.zeros(3), data,
    secure_sum=SecureSum(JaxTransport(), test_only_random_bytes=known), epsilon=2.0,
    delta=1e-6, estimator=Clipping(1.0), learning_rate=0.5, num_steps=5)
print("RESULT", *(float(x).hex() for x in solution.params), flush=True)
"""


def run(script, *arguments):
    address = f"127.0.0.1:{free_port(0)}"
    commands = [["-c", script, i, address, *arguments] for i in range(3)]
    return run_processes(commands, timeout=120)[:2]


def test_processes_exchange_over_jax():
    codes, results = run(EXCHANGE, "live")
    assert codes == [0, 0, 0]
    everything = [bytes([party]) * 5 for party in range(3)]
    most, second = [b"de", None, b"de"], [None, b"abc", None]
    assert results == [
        [f"{everything} {[b'ab', None, None]} {own} {[b'z'] * 3}"]
        for own in (most, second, most)
    ]


def test_a_process_that_dies_ends_the_job():
    codes, results = run(EXCHANGE, "die")
    assert codes[1] == 7
    assert 0 not in codes
    assert results == [[], [], []]


def test_processes_do_as_one_process_does_with_the_same_noise(tmp_path):
    data = [records(size, seed) for seed, size in enumerate(SIZES[:3])]
    arrays = {f"features{i}": x for i, (x, _) in enumerate(data)}
    arrays |= {f"targets{i}": y for i, (_, y) in enumerate(data)}
    np.savez(tmp_path / "data.npz", **arrays)
    codes, lines = run(DESCENT, 3, tmp_path / "data.npz")
    assert codes == [0] * 3
    results = np.array([[float.fromhex(x) for x in line.split()] for (line,) in lines])
    assert np.all(results == results[0])
    expected = pooled_descent(data, noise_of(SIZES[:3], num_shares=2))
    np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-5)
