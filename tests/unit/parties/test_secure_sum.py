"""Secure sums: right, restarted when a party drops, and silent about their parts."""

import math
import operator
import os
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.parties import SecureSum, _identity, run_parties
from dpjax.parties._secure_sum import Grid, PairwiseMasks, PartyError
from tests.parties import FALSE_ALARM, Recorder, uniformity
from tests.unit.refusals import refused

SENT = {  # in the place of a message
    None: bytes,  # as it is
    "nothing": lambda message: b"",
    "wrong size": lambda message: message + bytes(8),
    "stray": lambda message: b"\x01" * len(message),
}
IDENTITIES = [bytes([party]) * 32 for party in range(3)]
FINGERPRINTS = [_identity.fingerprint(identity) for identity in IDENTITIES]


def faulty(faults):
    """Returns a change of messages; the first exchange carries the public keys."""
    return lambda party, index, message: SENT[faults.get((party, index))](message)


def sums(num_parties, vectors, *, faults=None, **threats):
    """Runs two sums of the parties' vectors; also what each saw and contributed."""

    def party_fn(transport):
        transport = Recorder(transport, change=faulty(faults or {}))
        secure_sum = SecureSum(transport, **threats)
        asked = []

        def contribution():
            asked.append(None)
            return vectors[transport.party]

        totals = [secure_sum(contribution, len(vectors[0])) for _ in range(2)]
        return totals, secure_sum.live, len(asked), transport.heard

    return run_parties(party_fn, num_parties)


@pytest.mark.parametrize("num_parties", [1, 2, 4])
def test_sum_is_exact_with_negative_and_large_integers(num_parties):
    vectors = np.random.default_rng(0).integers(-(2**60), 2**60, (num_parties, 9))
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
    for party, (totals, live, asked, heard) in enumerate(results):
        np.testing.assert_array_equal(totals, [vectors.sum(axis=0), without])
        assert live == [0, 1, 3]
        assert len(heard) == 4  # keys, a round, a failed one, and its restart
        # The failed attempt and its restart have contributions (noise!) of their own.
        assert asked == (2 if party == 2 else 3)
    # A dropped party that sends again is not heard.
    faults = {(2, 1): fault, (2, 2): "stray", (2, 3): "stray"}
    for totals, live, *_ in sums(4, vectors, max_dropouts=1, faults=faults):
        np.testing.assert_array_equal(totals, [without] * 2)
        assert live == [0, 1, 3]


def test_no_two_rounds_share_a_mask():
    vectors = np.zeros((3, 20_000), np.int64)
    (*_, heard), *_ = sums(3, vectors, max_dropouts=1, faults={(2, 1): "nothing"})
    for party in (0, 1):
        failed, new, following = (np.frombuffer(x[party], "<u8") for x in heard[1:])
        for masked in (failed, new - failed, following - new):
            assert uniformity(masked) > FALSE_ALARM
    # The part of the failed attempt that is there does not add up to anything.
    rest = sum(np.frombuffer(heard[1][party], "<u8") for party in (0, 1))
    assert uniformity(rest) > FALSE_ALARM


@pytest.mark.parametrize("fault", ["nothing", "wrong size"])
def test_the_party_that_ends_the_job_is_named_and_it_sums_no_more(fault):
    def party_fn(transport):
        transport = Recorder(transport, change=faulty({(1, 1): fault}))
        secure_sum = SecureSum(transport)
        for _ in range(2):  # nothing is released to anyone
            with pytest.raises(PartyError, match="party 1") as error:
                secure_sum(lambda: np.ones(3), 3)
            assert error.value.parties == [1]
        return len(transport.heard)

    assert run_parties(party_fn, 3) == [2, 2, 2]  # keys, and the round that failed


@pytest.mark.parametrize(
    ("faults", "names"),
    [
        ({(0, 1): "nothing", (3, 2): "nothing"}, "party 3"),
        ({(0, 1): "nothing", (3, 1): "nothing"}, "party 0, 3"),
        ({(1, 0): "nothing"}, "party 1"),  # no public key
    ],
)
def test_too_many_dropouts_end_the_job(faults, names):
    with pytest.raises(PartyError, match=names):
        sums(4, np.ones((4, 2), int), max_dropouts=1, faults=faults)


def met(replace, **stated):
    """Replaces the keys of party 1, and returns who is not the one that they say."""
    impostors = []

    class InTheMiddle(Recorder):
        def exchange(self, message, num_bytes):
            messages = super().exchange(message, num_bytes)
            if len(self.heard) == 1 and self.party != 1:
                messages[1] = replace(messages)
            return messages

    def party_fn(transport):
        identity = IDENTITIES[transport.party]
        try:
            SecureSum(InTheMiddle(transport), identity=identity, **stated)
        except PartyError as error:
            impostors.append(error.parties)

    run_parties(party_fn, 3)
    return impostors


def test_keys_that_were_replaced_are_refused():
    def attackers(messages):
        return _identity.signed(messages[1][:32], bytes(32), 1, 3)

    def changed(messages):
        return bytes(32) + messages[1][32:]

    own, of_another_party = operator.itemgetter(1), operator.itemgetter(2)
    for replace in (attackers, of_another_party, changed):
        assert met(replace, fingerprints=FINGERPRINTS) == [[1], [1]]
    assert met(own, fingerprints=FINGERPRINTS) == []
    assert met(changed) == [[1], [1]]
    assert met(attackers) == []  # whom nobody knows, anybody may be
    assert met(own, fingerprints=FINGERPRINTS[::-1]) == [[0, 2]] * 3


def test_the_curious_party_learns_the_sum_and_no_more():
    # Party 0 holds all messages, its own vector and its own masks. It takes off the
    # masks that it knows; what is left of party 1 and 2 is their mask for each other.
    vectors = np.stack([np.full(20_000, value) for value in (5, 100, -100)])

    def party_fn(transport):
        transport = Recorder(transport)
        secure_sum = SecureSum(transport)
        secure_sum(lambda: vectors[transport.party], 20_000)
        return transport.heard, secure_sum._masks

    heard, own_masks = run_parties(party_fn, 3)[0]
    peeled = {}
    for party in (1, 2):
        known = own_masks.mask([0, party], attempt=1, size=20_000)
        # Party 0 adds this stream, the other one subtracts it.
        peeled[party] = np.frombuffer(heard[1][party], "<u8") + known
        assert uniformity(peeled[party]) > FALSE_ALARM
        assert uniformity(vectors[party].astype("<u8")) < FALSE_ALARM  # unmasked fails
    np.testing.assert_array_equal(peeled[1] + peeled[2], vectors[1] + vectors[2])


def agree(settings_of, num_parties=3, **threats_of):
    """Lets the parties tell each other settings, each those of its number."""

    def party_fn(transport):
        threats = {name: of(transport.party) for name, of in threats_of.items()}
        secure_sum = SecureSum(transport, **threats)
        return secure_sum.agree(settings_of(transport.party), 10 + transport.party)

    return run_parties(party_fn, num_parties)


def traced(function, shape=(3,)):
    return jax.jit(function).trace(jax.ShapeDtypeStruct(shape, jnp.float32))


inner_product = jax.jit(lambda x, table: x @ table)
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
    tuple(traced(partial(inner_product, table=x)) for x in (TABLE, OTHER_TABLE)),
    (traced(lambda x: x), traced(lambda x: x, (4,))),
]


@pytest.mark.parametrize("pair", OTHER, ids=range(len(OTHER)))
def test_agreement_names_the_party_and_what_differs(pair):
    with pytest.raises(PartyError, match="party 2: value must be equal") as error:
        agree(lambda party: {"value": pair[party == 2], "x": 1})
    assert error.value.parties == [2]


def test_agreement_tells_the_numbers_of_records_and_is_about_the_same_things():
    def settings(_):
        table = TABLE.copy()
        fn = traced(lambda x: jnp.sin(inner_product(x, table)))
        params = {"w": jnp.ones(2), "b": None}
        return {"epsilon": 1.0, "params": params, "text": "x", "fn": fn}

    assert agree(settings) == [[10, 11, 12]] * 3
    with pytest.raises(PartyError, match=r"party 1: [ab] must be equal"):
        agree(lambda party: {"ab"[party]: 1.0}, 2)
    with pytest.raises(PartyError, match="bytes at the start"):
        agree(lambda party: {name: 1.0 for name in "ab"[party:]}, 2)
    for name in ("max_colluding", "max_dropouts"):
        with pytest.raises(PartyError, match=f"party 1: {name} must be equal"):
            agree(lambda _: {}, **{name: lambda party: int(party == 1)})


def test_keys_come_from_the_operating_system():
    sources = run_parties(lambda transport: SecureSum(transport).random_bytes, 2)
    assert sources == [os.urandom] * 2
    assert SecureSum.count_secret_shares(1, 0, 0) == 1


@pytest.mark.parametrize("key", [bytes(32), b"short"])
def test_a_bad_public_key_names_its_party(key):
    masks = PairwiseMasks(0)
    with pytest.raises(PartyError, match="party 1: its public key is refused"):
        masks.agree([masks.public_key, key])


def test_a_grid_is_no_wider_than_its_step():
    for step in (1e-9, 0.3, 1.0, 52.8, 1e12):
        grid = Grid.of(step, bound=step)
        assert grid.step <= step < 2 * grid.step
        assert math.frexp(grid.step)[0] == 0.5


def test_values_survive_to_half_a_step_and_nothing_leaves_the_bound():
    grid = Grid(step=2.0**-10, bound=1e3)
    values = np.random.default_rng(0).uniform(-1e3, 1e3, 1000)
    integers = grid.to_integers(values)
    assert integers.dtype == np.int64
    assert np.abs(grid.to_reals(integers) - values).max() <= 2.0**-11
    odd = np.array([np.nan, np.inf, -np.inf, 1e308, -1e38, 5e-324, -7.4, 7.0])
    integers = Grid(step=1.0, bound=7.0).to_integers(odd)
    np.testing.assert_array_equal(integers, [0, 7, -7, 7, -7, 0, -7, 7])


def test_sensitivity_covers_the_worst_rounding():
    # Neighbors on either side of a rounding boundary, in every coordinate.
    grid, d = Grid(step=0.5, bound=100.0), 16
    below, above = np.full(d, 0.25 - 1e-9), np.full(d, 0.75 + 1e-9)
    moved = np.linalg.norm(grid.to_integers(above) - grid.to_integers(below))
    distance = np.linalg.norm(above - below)
    assert moved > distance / grid.step  # rounding adds to it
    assert moved <= grid.sensitivity(distance, d)


def test_all_parties_see_the_same_messages_in_step():
    def exchanged(transport, index):
        time.sleep(0.001 * (transport.party == index % 3))
        return transport.exchange(b"%d %02d" % (transport.party, index), 4)

    expected = [[b"%d %02d" % (party, i) for party in range(3)] for i in range(50)]
    seen = run_parties(lambda one: [exchanged(one, i) for i in range(50)], 3)
    assert seen == [expected] * 3


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

    with pytest.raises(KeyError, match="own fault") as error:
        run_parties(party_fn, 3)
    assert error.value.__notes__ == ["This is the error of party 2."]


def test_silence_ends_at_the_timeout():
    def party_fn(transport):
        if transport.party == 1:
            time.sleep(1.0)
        return transport.exchange(b"x", 1)

    with pytest.raises(TimeoutError, match=r"parties \[1\]"):
        run_parties(party_fn, 2, timeout=0.2)


def summed(num_parties=1, max_colluding=0, **options):
    """Returns a call in which parties begin a secure sum."""
    options = {"max_colluding": max_colluding, **options}
    return lambda: run_parties(lambda x: SecureSum(x, **options), num_parties)


test_bad_arguments_are_refused_by_name = refused(
    lambda call: call(),
    (SecureSum, "num_parties"),  # of one process
    *((partial(run_parties, print, number), "num_parties") for number in (0, 1.5)),
    *((summed(*of), "max_colluding") for of in ((4, -1), (1, 1))),
    (summed(4, 2, max_dropouts=2), "max_colluding"),  # no party's share is left
    (summed(4, 1, max_dropouts=0.5), "max_dropouts"),
    (summed(identity=b"short"), "identity must be 32 bytes"),
    (summed(fingerprints=FINGERPRINTS[:1]), "identity must be given with"),
    *(
        (summed(identity=bytes(32), fingerprints=bad), "fingerprints must be a list")
        for bad in ([], ["a"], "a" * 64)
    ),
    *((partial(Grid, step=step, bound=1.0), "step") for step in (0.3, 0.0, math.inf)),
    *((partial(Grid, step=1.0, bound=bound), "bound") for bound in (2.0**53, math.nan)),
)
