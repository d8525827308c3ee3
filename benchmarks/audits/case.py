"""One claim under attack."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from dpjax._types import Key, PyTree
from dpjax.accounting import PrivacyGuarantee
from dpjax.audit._lower_bound import Audit, epsilon_lower_bound
from dpjax.audit._releases import Release, Statistic
from dpjax.solvers import Solution


@dataclass(frozen=True)
class Case:
    """One release on two neighbouring data sets, and the privacy it claims.

    `statistic` is learnt where it is None; it, `is_gaussian` and `vectorize` are
    arguments of `epsilon_lower_bound`. An audit takes `num_releases` unless it is told.
    """

    release: Release
    data: PyTree
    neighbor: PyTree
    privacy: PrivacyGuarantee
    statistic: Statistic | None = None
    num_releases: int = 100_000
    is_gaussian: bool = False
    vectorize: bool = True
    name: str = ""

    def audit(self, *, key: Key, num_releases: int | None = None) -> Audit:
        """Attacks the claim, which a bound above `privacy.epsilon` refutes."""
        options = {"is_gaussian": self.is_gaussian, "statistic": self.statistic}
        options |= {"vectorize": self.vectorize, "delta": self.privacy.delta}
        num_releases = self.num_releases if num_releases is None else num_releases
        options |= {"num_releases": num_releases, "key": key}
        return epsilon_lower_bound(self.release, self.data, self.neighbor, **options)


Build = Callable[[], Case]  # an entry of a table of cases, under its name


def of(solver: Callable[..., Solution], *first: Any, **options: Any):
    """Returns solve(key, data), of one array or of several in a tuple."""

    def solve(key: Key, data: PyTree) -> Solution:
        arrays = data if isinstance(data, tuple) else (data,)
        return solver(*first, *arrays, key=key, **options)

    return solve


def solved(solve, data, neighbor, *, shown=lambda solution: solution.params, **options):
    """Audits what is shown, the parameters, against the guarantee that comes along."""

    def release(key: Key, data: PyTree) -> PyTree:
        return shown(solve(key, data))

    privacy = jax.eval_shape(solve, jax.random.key(0), data).privacy
    return Case(release, data, neighbor, privacy, **options)


def linear(params: jax.Array, example: jax.Array) -> jax.Array:
    """Returns a loss whose gradient is the record itself."""
    return jax.numpy.vdot(params, example)


def last_turned(data: jax.Array) -> jax.Array:
    """Returns data whose last record is its negative."""
    return data.at[-1].multiply(-1)
