"""Neighbours of programs that are drawn at random stay within `sensitivity`.

An estimator, its rows and their mask, a divisor at hand or traced, dtypes, leaves, and,
where they are asked for, devices.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE
from dpjax.estimators import Clipping, MedianOfMeans, Truncation, Winsorization
from tests import registry

pytestmark = pytest.mark.optimized

MEANS = [
    registry.ESTIMATORS[name]
    for name in registry.bounded_estimators(1.0)
    if not name.startswith("MedianOfMeans")
]
LIMITS = [0.7, 1.0, 1.2, 1e-12, 1e12]
ROWS = [1, 2, 7, 64, 65, 300, 4_608, 4_609, 9_001, 33_029]
LEAVES = [((),), ((7,),), ((),) * 40, ((3, 5), (), (11,)), ((256,),), ((1024,),)]
DTYPES = ["bfloat16", "float16", "float32", "float64"]


@dataclass(frozen=True)
class Drawn:
    """A mean, its samples, and a neighbour that differs in one row."""

    estimator: Any
    num_rows: int
    shapes: tuple
    dtype: str
    divisor: float | None
    is_traced: bool
    share_masked: float
    pattern: str
    place: float
    replacement: float
    relation: Any
    num_devices: int
    seed: int

    def samples(self):
        """Returns rows (n, d) of float64 and a mask, both before the change."""
        rng = np.random.default_rng(self.seed)
        n, d = self.num_rows, sum(int(np.prod(shape)) for shape in self.shapes)
        limit = float(self.estimator.limit)
        rows = {
            "equal": lambda: np.full((n, d), limit),
            "above": lambda: np.full((n, d), 1e3 * limit),
            "alternating": lambda: limit * (1 - 2 * (np.indices((n, d)).sum(0) % 2)),
            "cauchy": lambda: limit * rng.standard_cauchy((n, d)),
            "scales": lambda: limit * 10.0 ** rng.uniform(-12, 1, (n, d)),
            "one coordinate": lambda: limit * np.eye(1, d).repeat(n, 0),
        }[self.pattern]()
        return rows, rng.uniform(size=n) < self.share_masked

    def pair(self):
        """Returns the two neighbours, as (samples, mask) each."""
        rows, mask = self.samples()
        position = min(int(self.place * self.num_rows), self.num_rows - 1)
        mask[position] = False
        other_rows, other_mask = rows.copy(), mask.copy()
        if self.relation is REPLACE_ONE:
            with np.errstate(invalid="ignore"):
                other_rows[position] *= self.replacement
        else:
            other_mask[position] = True
        splits = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]

        def tree(rows):
            parts = np.split(rows, splits, axis=1)
            with np.errstate(over="ignore"):
                return [
                    part.reshape(-1, *shape).astype(jnp.dtype(self.dtype))
                    for part, shape in zip(parts, self.shapes, strict=True)
                ]

        return (tree(rows), mask), (tree(other_rows), other_mask)

    def means(self):
        """Returns the estimates of both, as vectors of float64."""
        if self.num_devices == 1:
            place, axis_name = (lambda tree: tree), None
        else:
            devices = jax.devices()[: self.num_devices]
            mesh = jax.make_mesh((self.num_devices,), ("records",), devices=devices)
            sharding = NamedSharding(mesh, PartitionSpec("records"))
            axis_name = "records"

            def place(tree):
                return jax.device_put(tree, sharding)

        def mean(rows, mask, divisor):
            return self.estimator(rows, mask, normalize_by=divisor, axis_name=axis_name)

        if self.is_traced and self.divisor is not None:
            run = jax.jit(mean)
        else:
            run = jax.jit(lambda rows, mask, _: mean(rows, mask, self.divisor))
        for rows, mask in self.pair():
            mean = run(*place((rows, mask)), self.divisor)
            leaves = [np.ravel(np.asarray(x, np.float64)) for x in mean]
            yield np.concatenate(leaves)


@st.composite
def drawn(draw, numbers_of_devices=(1,)):
    limit = draw(st.sampled_from(LIMITS))
    num_devices = draw(st.sampled_from(numbers_of_devices))
    num_rows = draw(st.sampled_from(ROWS))
    num_rows += -num_rows % num_devices
    fitting = [x for x in LEAVES if num_rows * sum(map(np.prod, x)) < 2**22]
    estimator = draw(
        st.sampled_from(
            [
                *(part.make(limit) for part in MEANS),
                MedianOfMeans(Clipping(limit), min(3, num_rows)),
            ]
        )
    )
    divisor = None
    if not isinstance(estimator, MedianOfMeans):
        ratio = draw(st.sampled_from([None, 1 / 64, 1 / 8, 0.5, 1 / 1.125, 1.0, 3.0]))
        divisor = None if ratio is None else max(1, round(num_rows * ratio))
    return Drawn(
        estimator=estimator,
        num_rows=num_rows,
        shapes=draw(st.sampled_from(fitting)),
        dtype=draw(st.sampled_from(DTYPES)),
        divisor=divisor,
        is_traced=draw(st.booleans()),
        share_masked=draw(st.sampled_from([0.0, 0.01, 0.5])),
        pattern=draw(
            st.sampled_from(
                ["equal", "above", "alternating", "cauchy", "scales", "one coordinate"]
            )
        ),
        place=draw(st.sampled_from([0.0, 0.37, 1.0])),
        replacement=draw(st.sampled_from([-1.0, 0.0, 1e-3, 1e30, -np.inf, np.nan])),
        relation=draw(st.sampled_from([REPLACE_ONE, ADD_OR_REMOVE_ONE])),
        num_devices=num_devices,
        seed=draw(st.integers(0, 99)),
    )


def check(drawn):
    is_refused = (
        drawn.divisor is not None
        and not drawn.is_traced
        and drawn.num_rows > 1.125 * max(drawn.divisor, 4096)
    )
    with jax.enable_x64(drawn.dtype == "float64"):
        if is_refused:
            with pytest.raises(ValueError, match="normalize_by"):
                next(drawn.means())
            return
        first, second = drawn.means()
        divisor = drawn.num_rows if drawn.divisor is None else drawn.divisor
        stated = drawn.estimator.sensitivity(divisor, len(first), drawn.relation)
    gap = first - second
    found = np.abs(gap).sum(), np.sqrt((gap**2).sum()), np.abs(gap).max()
    event(f"l2 moves by {int(10 * found[1] / stated.l2) / 10:.1f} of what is stated")
    assert np.isfinite(gap).all()
    assert (np.asarray(found) <= np.asarray(stated)).all(), (drawn, found, stated)


def options(max_examples):
    return settings(
        max_examples=max_examples,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


@pytest.mark.slow
@given(drawn())
@options(60)
def test_neighbours_are_within_sensitivity(drawn):
    check(drawn)


@pytest.mark.devices(8)
@given(drawn((2, 8)))
@options(40)
def test_neighbours_on_devices_are_within_sensitivity(drawn):
    check(drawn)


@pytest.mark.audit
@given(drawn())
@options(1500)
def test_many_neighbours_are_within_sensitivity(drawn):
    check(drawn)


@pytest.mark.slow
def test_a_traced_divisor_of_few_rows_is_covered():
    # Its rows are eight times as many, so that the mean's own rounding is too.
    num_coordinates, divisor, num_rows = 1024, 4112, 33_029
    for estimator in (Clipping(1.0), Winsorization(1.0)):
        mean = jax.jit(lambda x, n, e=estimator: e(x, normalize_by=n))
        samples = np.ones((num_rows, num_coordinates), np.float32)
        first = np.asarray(mean(samples, divisor), np.float64)
        samples[0] = -1
        gap = first - np.asarray(mean(samples, divisor), np.float64)
        stated = estimator.sensitivity(divisor, num_coordinates)
        assert np.sqrt((gap**2).sum()) <= stated.l2
        # The divisor that is taken instead is the least that would not be refused.
        np.testing.assert_allclose(first, mean(samples, num_rows / 1.125), rtol=1e-3)


@pytest.mark.audit
def test_a_traced_divisor_of_a_million_is_covered():
    num_coordinates, divisor, num_rows = 256, 953_250, 7_654_597
    mean = jax.jit(lambda x, mask, n: Clipping(1.0)(x, mask, normalize_by=n))
    samples = np.ones((num_rows, num_coordinates), np.float32)
    mask = np.arange(num_rows) >= 7_645_072
    first = np.asarray(mean(samples, mask, divisor), np.float64)
    samples[0] = -1
    gap = first - np.asarray(mean(samples, mask, divisor), np.float64)
    stated = Clipping(1.0).sensitivity(divisor, num_coordinates)
    assert np.sqrt((gap**2).sum()) <= stated.l2


@pytest.mark.quick(5)
@pytest.mark.parametrize("limit", [1e2, 1e8, 1e12, 1e15, 1e30])
@pytest.mark.parametrize("make", [Clipping, Winsorization, Truncation])
def test_a_limit_far_above_the_samples_leaves_their_mean_alone(make, limit):
    samples = np.random.default_rng(0).normal(size=(100_000, 3)).astype(np.float32)
    mean = make(limit)(samples)
    np.testing.assert_allclose(
        mean, samples.astype(np.float64).mean(axis=0), rtol=0, atol=3e-8
    )
