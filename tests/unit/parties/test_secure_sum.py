"""Secure sums: right, restarted when a party drops, and silent about their parts."""

import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax.parties import (
    PartyError,
    SecureSum,
    _identity,
    fingerprint,
    new_identity,
    run_parties,
)
from tests.unit.refusals import refused

FALSE_ALARM = 1e-6


class Faulty:
    """A transport on which a party's vector is lost, or has the wrong size."""

    def __init__(self, transport, faults):
        self.party, self.num_parties = transport.party, transport.num_parties
        self.seen = []
        self._transport, self._faults = transport, faults

    def exchange(self, message, num_bytes):
        index = len(self.seen)  # the first exchange carries the public keys
        fault = self._faults.get((self.party, index))
        if fault == "nothing":
            message = b""
        elif fault == "wrong size":
            message += bytes(8)
        elif fault == "stray":
            message = b"\x01" * num_bytes
        self.seen.append(self._transport.exchange(message, num_bytes))
        return self.seen[-1]


def sums(num_parties, vectors, *, faults=None, **threats):
    """Runs two sums of the parties' vectors; also what each saw and contributed."""

    def party_fn(transport):
        transport = Faulty(transport, faults or {})
        secure_sum = SecureSum(transport, **threats)
        asked = []

        def contribution():
            asked.append(None)
            return vectors[transport.party]

        size = len(vectors[0])
        totals = [secure_sum(contribution, size) for _ in range(2)]
        return totals, secure_sum.live, len(asked), transport.seen

    return run_parties(party_fn, num_parties)


@pytest.mark.parametrize("num_parties", [1, 2, 4])
def test_sum_is_exact_with_negative_and_large_integers(num_parties):
    rng = np.random.default_rng(0)
    vectors = rng.integers(-(2**60), 2**60, (num_parties, 9))
    for totals, live, asked, _ in sums(num_parties, vectors, max_colluding=0):
        for total in totals:
            assert total.dtype == np.int64
            np.testing.assert_array_equal(total, vectors.sum(axis=0))
        assert live == list(range(num_parties))
        assert asked == 2


@pytest.mark.parametrize("fault", ["nothing", "wrong size"])
def test_a_dropped_party_restarts_the_round(fault):
    vectors = np.arange(12).reshape(4, 3)
    without = vectors[[0, 1, 3]].sum(axis=0)
    results = sums(4, vectors, max_dropouts=1, faults={(2, 2): fault})
    for party, (totals, live, asked, seen) in enumerate(results):
        np.testing.assert_array_equal(totals, [vectors.sum(axis=0), without])
        assert live == [0, 1, 3]
        assert len(seen) == 4  # keys, a round, a failed one, and its restart
        # The failed attempt and its restart have contributions (noise!) of their own.
        assert asked == (2 if party == 2 else 3)


def test_a_dropped_party_that_sends_again_is_not_heard():
    vectors = np.arange(12).reshape(4, 3)
    faults = {(2, 1): "nothing", (2, 2): "stray", (2, 3): "stray"}
    for totals, live, _, _ in sums(4, vectors, max_dropouts=1, faults=faults):
        np.testing.assert_array_equal(totals, [vectors[[0, 1, 3]].sum(axis=0)] * 2)
        assert live == [0, 1, 3]


def test_failed_and_new_attempt_share_no_mask():
    vectors = np.zeros((3, 20_000), np.int64)
    (_, _, _, seen), *_ = sums(3, vectors, max_dropouts=1, faults={(2, 1): "nothing"})
    for party in (0, 1):
        failed, new = (np.frombuffer(seen[i][party], "<u8") for i in (1, 2))
        assert uniformity(failed) > FALSE_ALARM
        assert uniformity(new - failed) > FALSE_ALARM
    # What there is of the failed attempt does not add up to anything.
    partial = sum(np.frombuffer(seen[1][party], "<u8") for party in (0, 1))
    assert uniformity(partial) > FALSE_ALARM


@pytest.mark.parametrize("fault", ["nothing", "wrong size"])
def test_the_party_that_ends_the_job_is_named(fault):
    lock, errors = threading.Lock(), []

    def party_fn(transport):
        secure_sum = SecureSum(Faulty(transport, {(1, 1): fault}))
        try:
            return secure_sum(lambda: np.ones(3), 3)
        except PartyError as error:
            with lock:
                errors.append(error)

    assert run_parties(party_fn, 3) == [None] * 3  # nothing is released to anyone
    assert all(error.parties == [1] for error in errors)
    assert "party 1" in str(errors[0])


def test_too_many_dropouts_end_the_job():
    faults = {(0, 1): "nothing", (3, 2): "nothing"}
    with pytest.raises(PartyError, match="party 3"):
        sums(4, np.ones((4, 2), int), max_dropouts=1, faults=faults)
    both = {(0, 1): "nothing", (3, 1): "nothing"}
    with pytest.raises(PartyError, match="party 0, 3"):
        sums(4, np.ones((4, 2), int), max_dropouts=1, faults=both)


def test_a_job_that_has_ended_sums_no_more():
    def party_fn(transport):
        transport = Faulty(transport, {(1, 1): "nothing"})
        secure_sum = SecureSum(transport)
        for _ in range(2):
            with pytest.raises(PartyError, match="party 1"):
                secure_sum(lambda: np.ones(3), 3)
        return len(transport.seen)

    assert run_parties(party_fn, 3) == [2, 2, 2]  # keys, and the round that failed


def test_a_party_without_public_key_is_named():
    with pytest.raises(PartyError, match="party 1"):
        sums(3, np.ones((3, 2), int), max_dropouts=1, faults={(1, 0): "nothing"})


class InTheMiddle(Faulty):
    """A transport that puts other keys in the place of party 1's."""

    def __init__(self, transport, replace):
        super().__init__(transport, {})
        self._replace = replace

    def exchange(self, message, num_bytes):
        messages = super().exchange(message, num_bytes)
        if len(self.seen) == 1 and self.party != 1:
            messages[1] = self._replace(messages)
        return messages


IDENTITIES = [bytes([party]) * 32 for party in range(3)]
FINGERPRINTS = [fingerprint(identity) for identity in IDENTITIES]


def met(replace, **stated):
    """Makes the sums of three parties; tells who was found not to be who they say."""
    found = []

    def party_fn(transport):
        between = InTheMiddle(transport, replace)
        identity = IDENTITIES[transport.party]
        try:
            SecureSum(between, identity=identity, **stated)
        except PartyError as error:
            found.append(error.parties)

    run_parties(party_fn, 3)
    return found


def test_keys_that_were_replaced_are_refused():
    def attackers(messages):
        return _identity.signed(messages[1][:32], new_identity(), 1, 3)

    def of_another_party(messages):
        return messages[2]

    def changed(messages):
        return bytes(32) + messages[1][32:]

    stated = {"fingerprints": FINGERPRINTS}
    for replace in (attackers, of_another_party, changed):
        assert met(replace, **stated) == [[1], [1]]
    assert met(lambda messages: messages[1], **stated) == []
    assert met(changed) == [[1], [1]]
    assert met(attackers) == []  # whom nobody knows, anybody may be
    swapped = {"fingerprints": FINGERPRINTS[::-1]}
    assert met(lambda messages: messages[1], **swapped) == [[0, 2]] * 3


test_wrong_identities_are_named = refused(
    lambda arguments: run_parties(
        lambda one: SecureSum(one, max_colluding=0, **arguments), 1
    ),
    ({"identity": b"short"}, "identity must be 32 bytes"),
    ({"fingerprints": FINGERPRINTS[:1]}, "identity must be given with"),
    ({"identity": bytes(32), "fingerprints": []}, "fingerprints must be 1"),
    ({"identity": bytes(32), "fingerprints": ["a"]}, "fingerprints must be 1"),
    ({"identity": bytes(32), "fingerprints": "a" * 64}, "fingerprints must be 1"),
)


def test_the_curious_party_learns_the_sum_and_no_more():
    # Party 0 holds all messages, its own vector and its own masks. It takes off the
    # masks that it knows; what is left of party 1 and 2 is their mask for each other.
    vectors = np.stack([np.full(20_000, value) for value in (5, 100, -100)])
    own = {}

    def party_fn(transport):
        transport = Faulty(transport, {})
        secure_sum = SecureSum(transport)
        if transport.party == 0:
            own["masks"] = secure_sum._masks
        secure_sum(lambda: vectors[transport.party], 20_000)
        return transport.seen

    seen = run_parties(party_fn, 3)[0]
    peeled = {}
    for party in (1, 2):
        known = own["masks"].mask([0, party], attempt=1, size=20_000)
        # Party 0 adds this stream, the other one subtracts it.
        peeled[party] = np.frombuffer(seen[1][party], "<u8") + known
        assert uniformity(peeled[party]) > FALSE_ALARM
        assert uniformity(vectors[party].astype("<u8")) < FALSE_ALARM  # unmasked fails
    np.testing.assert_array_equal(peeled[1] + peeled[2], vectors[1] + vectors[2])


def uniformity(vector):
    """The p-value of a chi-squared test that all bytes are uniform."""
    counts = np.bincount(np.frombuffer(vector.tobytes(), np.uint8), minlength=256)
    return scipy.stats.chisquare(counts).pvalue


def agree(settings_of, num_parties=3):
    """What the parties tell each other, each with the settings of its number."""

    def party_fn(transport):
        secure_sum = SecureSum(transport)
        return secure_sum.agree(settings_of(transport.party), 10 + transport.party)

    return run_parties(party_fn, num_parties)


def traced(function, shape=(3,)):
    return jax.jit(function).trace(jax.ShapeDtypeStruct(shape, jnp.float32))


@jax.jit
def inner_product(x, table):
    return x @ table


TABLE = np.arange(3000, dtype=np.float32).reshape(3, 1000)
OTHER_TABLE = TABLE + (np.arange(1000) == 500).astype(np.float32)
# Pairs that differ as little as can be.
OTHER = [
    (1.0, np.nextafter(1.0, 2.0)),
    (None, 0),
    ([1.0, None], [None, 1.0]),
    ({"w": jnp.zeros(2)}, {"w": jnp.zeros((2, 1))}),
    (jnp.zeros(2), np.zeros(2)),
    (np.array(0.0), np.array(-0.0)),
    (TABLE, OTHER_TABLE),
    (traced(jnp.sin), traced(jnp.cos)),
    (traced(lambda x: x + 1.0), traced(lambda x: x + np.float32(1.0000001))),
    (traced(lambda x: x @ TABLE), traced(lambda x: x @ OTHER_TABLE)),
    (
        traced(lambda x: inner_product(x, TABLE)),
        traced(lambda x: inner_product(x, OTHER_TABLE)),
    ),
    (traced(lambda x: x), traced(lambda x: x, (4,))),
]


@pytest.mark.parametrize("pair", OTHER, ids=range(len(OTHER)))
def test_agreement_names_the_party_and_what_differs(pair):
    with pytest.raises(PartyError, match="party 2: other value than party 0") as error:
        agree(lambda party: {"value": pair[party == 2], "x": 1})
    assert error.value.parties == [2]


def test_agreement_tells_the_numbers_of_records():
    def settings(party):
        del party
        table = TABLE.copy()
        return {
            "epsilon": 1.0,
            "params": {"w": jnp.ones(2), "b": None},
            "text": "x",
            "fn": traced(lambda x: jnp.sin(inner_product(x, table))),
        }

    assert agree(settings) == [[10, 11, 12]] * 3


def test_agreement_is_about_the_same_things():
    with pytest.raises(PartyError, match=r"party 1: other [ab] than party 0"):
        agree(lambda party: {"ab"[party]: 1.0}, 2)
    with pytest.raises(PartyError, match="bytes at the start"):
        agree(lambda party: {name: 1.0 for name in "ab"[party:]}, 2)


@pytest.mark.parametrize("name", ["max_colluding", "max_dropouts"])
def test_agreement_is_about_threats_too(name):
    def party_fn(transport):
        threats = {name: int(transport.party == 1)}
        return SecureSum(transport, **threats).agree({}, 10)

    with pytest.raises(PartyError, match=f"party 1: other {name} than party 0"):
        run_parties(party_fn, 3)


def test_entropy_is_the_operating_systems():
    sources = run_parties(lambda transport: SecureSum(transport).random_bytes, 2)
    assert sources == [os.urandom] * 2


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("max_colluding", (4, -1, 0)),
        ("max_dropouts", (4, 1, 0.5)),
        ("max_colluding", (4, 2, 2)),
        ("max_colluding", (1, 1, 0)),
    ],
)
def test_threats_leave_a_share(name, arguments):
    num_parties, max_colluding, max_dropouts = arguments
    with pytest.raises(ValueError, match=name):
        run_parties(
            lambda transport: SecureSum(
                transport, max_colluding=max_colluding, max_dropouts=max_dropouts
            ),
            num_parties,
        )
    assert SecureSum.count_secret_shares(1, 0, 0) == 1
