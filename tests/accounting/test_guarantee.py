"""Guarantees: value semantics, and the sentence."""

import dataclasses
import math
import re

import dp_accounting
import hypothesis
import jax
import mpmath
import pytest
from hypothesis import strategies as st

from dpjax._types import ADD_OR_REMOVE_ONE, REPLACE_ONE, NeighboringRelation
from dpjax.accounting import PrivacyGuarantee, gaussian_event

EVENT = gaussian_event(3.7306)


def test_is_an_immutable_value():
    one = PrivacyGuarantee.of(1.0, 1e-5, dp_event=EVENT)
    other = PrivacyGuarantee.of(1.0, 1e-5, dp_event=gaussian_event(3.7306))
    assert one == other
    assert hash(one) == hash(other)
    assert one != dataclasses.replace(one, epsilon=2.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.epsilon = 2.0


def test_serves_as_static_metadata_of_a_pytree():
    traces = []

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Released:
        params: jax.Array
        privacy: PrivacyGuarantee = dataclasses.field(metadata={"static": True})

    @jax.jit
    def double(released):
        traces.append(1)
        return dataclasses.replace(released, params=2 * released.params)

    for _ in range(2):
        privacy = PrivacyGuarantee.of(1.0, 1e-5, dp_event=EVENT)
        released = double(Released(jax.numpy.ones(2), privacy))
    assert released.privacy == privacy
    assert len(traces) == 1


@pytest.mark.parametrize(
    "event",
    [
        EVENT,
        gaussian_event(1.0, num_steps=5, sampling_prob=0.1),
        gaussian_event(1.0, num_steps=5, num_samples=9, batch_size=2),
        dp_accounting.ZCDpEvent(0.1),
        dp_accounting.ComposedDpEvent((EVENT, dp_accounting.NoOpDpEvent())),
        dp_accounting.NonPrivateDpEvent(),
    ],
)
def test_events_hash(event):
    guarantee = PrivacyGuarantee.of(1.0, 1e-5, dp_event=event)
    assert {guarantee: 1}[guarantee] == 1


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [
        (0.0, "most e^0 = 1 times"),
        (1e-12, "most e^1e-12 times"),
        (1e-6, "e^1e-06 = 1.00000101 times"),
        (0.001, "e^0.001 = 1.00101 times"),
        (10.0, "e^10 = 22100 times"),
        (10.0049, "e^10.01 = 22300 times"),
        (50.0, "e^50 = 5.19e+21 times"),
        (1e4, "most e^1e+04 times"),
    ],
)
def test_description_at_any_epsilon(epsilon, text):
    guarantee = PrivacyGuarantee.of(epsilon, 1e-5, dp_event=EVENT)
    assert text in guarantee.description


@hypothesis.settings(max_examples=500, deadline=None, database=None)
@hypothesis.given(
    epsilon=st.floats(1e-6, 1e3)
    | st.floats(-6, 3).map(lambda x: min(max(10**x, 1e-6), 1e3)),
    delta=st.just(0.0)
    | st.floats(1e-300, 0.5)
    | st.floats(-300, -1).map(lambda x: max(10**x, 1e-300)),
)
def test_what_is_read_is_never_a_stronger_claim(epsilon, delta):
    said = str(PrivacyGuarantee.of(epsilon, delta, dp_event=EVENT))
    power, *factor = re.search(r"e\^(\S+)(?: = (\S+))? times", said).groups()
    assert epsilon <= float(power) <= epsilon * (1 + 1e-3)
    if factor[0] is not None:
        with mpmath.workprec(2_000):
            true = mpmath.exp(mpmath.mpf(epsilon))
            read = mpmath.mpf(factor[0])
            assert true <= read
            assert read - 1 <= (mpmath.exp(mpmath.mpf(power)) - 1) * 1.01
    assert (factor[0] is None) == (float(power) >= 700)
    probability = re.search(r", plus (\S+)\.$", said)
    assert (probability is None) == (delta == 0)
    if probability:
        assert delta <= float(probability[1]) <= delta * (1 + 1e-5)


def test_description_of_pure_and_other_relations():
    pure = PrivacyGuarantee.of(1.0, 0.0, dp_event=EVENT)
    assert pure.description.endswith("e^1 = 2.72 times what it was.")
    # The size of the data is private under add/remove: never named.
    added = PrivacyGuarantee.of(
        1.0, 0.0, dp_event=EVENT, relation=ADD_OR_REMOVE_ONE, num_samples=77
    )
    assert added.description.startswith("Adding or removing any one record changes")
    blanked = PrivacyGuarantee.of(
        1.0, 0.0, dp_event=EVENT, relation=NeighboringRelation.REPLACE_SPECIAL
    )
    assert blanked.description.startswith("Blanking any one record changes")


@pytest.mark.parametrize("unit", ["", "  ", None, 3])
def test_a_unit_is_words(unit):
    with pytest.raises(ValueError, match="unit must be a noun, such as"):
        PrivacyGuarantee.of(1.0, 0.0, dp_event=EVENT, unit=unit)


def test_non_private():
    guarantee = PrivacyGuarantee.non_private()
    assert guarantee.epsilon == math.inf
    assert guarantee.dp_event == dp_accounting.NonPrivateDpEvent()
    assert "No privacy" in str(guarantee)
    assert guarantee == PrivacyGuarantee.non_private()


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("epsilon", -1.0),
        ("epsilon", math.nan),
        ("delta", 1.0),
        ("delta", math.nan),
        ("relation", "replace one"),
        ("dp_event", dp_accounting.ComposedDpEvent([EVENT])),
    ],
)
def test_bad_arguments_are_named(name, bad):
    good = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "relation": REPLACE_ONE,
        "dp_event": EVENT,
        "description": "",
    }
    with pytest.raises(ValueError, match=f"^{name} must be .*got"):
        PrivacyGuarantee(**{**good, name: bad})
