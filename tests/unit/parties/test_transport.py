"""Messages between threads: in step, of one size, and none that is waited for."""

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


def test_a_message_of_another_size_and_of_a_party_that_left_count_as_none():
    def party_fn(transport):
        first = transport.exchange(b"abc"[: 3 - transport.party], 3)
        return first, transport.exchange(b"y", 1) if transport.party else None

    first, last = [b"abc", None, None], [None, b"y", b"y"]
    assert run_parties(party_fn, 3) == [(first, None), (first, last), (first, last)]


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


def test_bad_number_of_parties_is_named():
    with pytest.raises(ValueError, match="num_parties"):
        JaxTransport()  # of one process
    for num_parties in (0, 1.5):
        with pytest.raises(ValueError, match="num_parties"):
            run_parties(lambda transport: None, num_parties)
