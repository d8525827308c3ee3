"""Messages between threads, and between processes of JAX's distributed runtime."""

import socket
import subprocess
import sys
import time

import pytest

from dpjax.parties import JaxTransport, run_parties


def test_all_see_the_same_messages_in_step():
    def party_fn(transport):
        seen = []
        for index in range(50):
            if transport.party == index % 3:
                time.sleep(0.001)
            message = b"%d %02d" % (transport.party, index)
            seen.append(transport.exchange(message, 4))
        return seen

    expected = [[b"%d %02d" % (party, i) for party in range(3)] for i in range(50)]
    assert run_parties(party_fn, 3) == [expected] * 3


def test_a_message_of_another_size_counts_as_none():
    def party_fn(transport):
        return transport.exchange(b"abc"[: 3 - transport.party], 3)

    assert run_parties(party_fn, 3) == [[b"abc", None, None]] * 3


def test_a_party_that_left_sends_nothing():
    def party_fn(transport):
        transport.exchange(b"x", 1)
        return transport.exchange(b"y", 1) if transport.party else None

    assert run_parties(party_fn, 3) == [None, [None, b"y", b"y"], [None, b"y", b"y"]]


def test_the_first_error_comes_out_and_nobody_waits():
    def party_fn(transport):
        if transport.party == 2:
            raise KeyError("own fault")
        return transport.exchange(b"x", 1)

    with pytest.raises(KeyError, match="own fault"):
        run_parties(party_fn, 3)


def test_silence_ends_at_the_timeout():
    def party_fn(transport):
        if transport.party == 1:
            time.sleep(1.0)
        return transport.exchange(b"x", 1)

    with pytest.raises(TimeoutError, match=r"parties \[1\]"):
        run_parties(party_fn, 2, timeout=0.2)


def test_one_process_is_no_transport():
    with pytest.raises(ValueError, match="num_parties"):
        JaxTransport()


@pytest.mark.parametrize("num_parties", [0, 1.5])
def test_bad_number_of_parties_is_named(num_parties):
    with pytest.raises(ValueError, match="num_parties"):
        run_parties(lambda transport: None, num_parties)


SCRIPT = """
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


def run_processes(script, num_processes, *arguments, timeout=60):
    """Runs a script several times; the exit codes, and the results that are printed.

    Its arguments are the number of the process, an address for all, and the rest.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(party), address, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for party in range(num_processes)
    ]
    try:
        output = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    results = [
        [line for line in text.splitlines() if line.startswith("RESULT")]
        for text in output
    ]
    return [process.returncode for process in processes], results


@pytest.mark.slow
def test_processes_exchange_over_jax():
    codes, results = run_processes(SCRIPT, 3, "live")
    assert codes == [0, 0, 0]
    everything = [bytes([party]) * 5 for party in range(3)]
    most, one = [b"de", None, b"de"], [None, b"abc", None]
    assert results == [
        [f"RESULT {everything} {[b'ab', None, None]} {own} {[b'z'] * 3}"]
        for own in (most, one, most)
    ]


@pytest.mark.slow
def test_a_process_that_dies_ends_the_job():
    codes, results = run_processes(SCRIPT, 3, "die")
    assert codes[1] == 7
    assert 0 not in codes
    assert results == [[], [], []]
