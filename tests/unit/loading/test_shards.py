"""Records dealt out over devices; nightly/test_processes.py over processes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from dpjax import batching as ways
from dpjax.batching import Full, Poisson, WithoutReplacement
from dpjax.loading import batches, load

N, T = 40, 4
FEATURES = np.random.default_rng(0).standard_normal((N, 2)).astype(np.float32)


class Recorder:
    """Records in memory that write down which of them were read."""

    def __init__(self, data):
        self.data, self.read = data, []

    def __len__(self):
        return len(self.data[0])

    def __getitem__(self, rows):
        if not isinstance(rows, slice):
            self.read.append(rows)
        return tuple(x[rows] for x in self.data)


def by_records():
    # On one device: on more, batches are padded to a multiple of them.
    mesh = jax.make_mesh((1,), ("records",), devices=jax.devices()[:1])
    return NamedSharding(mesh, PartitionSpec("records"))


def state_of(batching, num_steps=T):
    return batching.init(jax.random.key(3), N, num_steps, epsilon=1.0, delta=1e-5)


def source():
    return Recorder((FEATURES, np.arange(N, dtype=np.int32)))


def test_loads_all_records():
    features, _ = load(source(), by_records())
    assert features.sharding == by_records()
    np.testing.assert_array_equal(features, FEATURES)


BATCHINGS = [Full(), ways.Disjoint(), WithoutReplacement(7), Poisson(8.0)]
BATCHINGS += [ways.CyclicPoisson(8.0, 3), ways.BallsInBins(3), ways.ShuffledEpochs(16)]


@pytest.mark.quick(2)
@pytest.mark.parametrize("batching", BATCHINGS, ids=repr)
def test_batches_are_those_that_are_drawn_in_memory(batching):
    records, state = source(), state_of(batching)
    found = list(batches(records, state_of(batching), sharding=by_records()))
    assert len(found) == T
    for step, ((features, numbers), mask) in enumerate(found):
        data = jnp.asarray(FEATURES), jnp.arange(N)
        (wanted, rows), wanted_mask, state = batching.draw(state, data)
        np.testing.assert_array_equal(features, wanted)
        np.testing.assert_array_equal(numbers, rows)
        np.testing.assert_array_equal(mask, wanted_mask)
        assert not np.any(np.asarray(features)[np.asarray(mask)])
        real = np.asarray(rows)[~np.asarray(mask)]
        # No record is read but those of the batch.
        np.testing.assert_array_equal(records.read[step], np.sort(real))
    assert not list(batches(records, state, sharding=by_records()))  # it is over


def test_goes_on_from_a_state():
    batching = Poisson(8.0)

    def dataset():
        return batches(source(), state_of(batching), sharding=by_records())

    numbers_of_all = [np.asarray(numbers) for (_, numbers), _ in dataset()]
    iterator = iter(dataset())
    next(iterator)
    state = iterator.get_state()
    again = iter(dataset())
    again.set_state(state)
    _, _, following = batching.draw(state_of(batching), jnp.arange(N))
    later = batches(source(), following, sharding=by_records())
    for rest in (again, later):
        rest = [np.asarray(numbers) for (_, numbers), _ in rest]
        np.testing.assert_array_equal(rest, numbers_of_all[1:])


def test_names_what_is_wrong():
    right = {"source": source(), "state": state_of(Full()), "sharding": by_records()}
    nothing = Recorder((FEATURES[:0],))
    unsharded = NamedSharding(by_records().mesh, PartitionSpec(None))
    loaded = {"source": source(), "sharding": by_records()}
    for call, given, message in (
        (batches, right | {"state": WithoutReplacement(7)}, "state .* batching.init"),
        (batches, right | {"source": nothing}, "source .* 40 records .*'0 records'"),
        (batches, right | {"sharding": jax.devices()[0]}, "sharding .* NamedSharding"),
        (load, loaded | {"sharding": unsharded}, "sharding .* NamedSharding of rows"),
        (load, loaded | {"source": nothing}, "source must be at least one record"),
    ):
        with pytest.raises(ValueError, match=message):
            call(**given)
