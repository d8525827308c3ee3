"""A privacy claim on worst-case neighbours, as data: what `dpjax audit` attacks."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping

from dpjax._types import Key, PyTree
from dpjax.accounting import PrivacyGuarantee
from dpjax.audit._lower_bound import (
    Audit,
    Release,
    Statistic,
    epsilon_lower_bound,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One release on two neighbouring data sets, and the privacy it claims.

    Args:
        name: what the release is called.
        release: `release(key, data)`, as for `epsilon_lower_bound`.
        data: a data set.
        neighbor: a neighbour of it under `privacy.relation`, chosen to be told apart.
        privacy: the claim, an (epsilon, delta) guarantee.
        statistic: as for `epsilon_lower_bound`; learnt where it is None.
        num_releases: how many releases an audit takes unless it is told.
        lower_bound: `epsilon_lower_bound`; or `gaussian_lower_bound`, where the claim
            is the epsilon of Gaussian differential privacy at its delta.
        vectorize: as for `epsilon_lower_bound`.

    Example:
        >>> import dataclasses, jax
        >>> case = cases()["laplace"]
        >>> def release(key, value):  # of too little noise
        ...     return case.release(key, jax.tree.map(lambda x: 1.5 * x, value))
        >>> faulty = dataclasses.replace(case, release=release)
        >>> found = faulty.audit(key=jax.random.key(0))
        >>> print(found.epsilon > case.privacy.epsilon)
        True
    """

    name: str
    release: Release
    data: PyTree
    neighbor: PyTree
    privacy: PrivacyGuarantee
    statistic: Statistic | None = None
    num_releases: int = 100_000
    lower_bound: Callable[..., Audit] = epsilon_lower_bound
    vectorize: bool = True

    def audit(self, *, key: Key, num_releases: int | None = None) -> Audit:
        """Attacks the claim, which a bound above `privacy.epsilon` refutes.

        Args:
            key: a typed key, used once here.
            num_releases: how many to draw; by default the case's own number.

        Returns:
            What `lower_bound` found.

        Raises:
            ValueError: as for `epsilon_lower_bound`.
        """
        return self.lower_bound(
            self.release,
            self.data,
            self.neighbor,
            key=key,
            delta=self.privacy.delta,
            num_releases=self.num_releases if num_releases is None else num_releases,
            statistic=self.statistic,
            vectorize=self.vectorize,
        )


class _Cases(Mapping[str, Case]):
    """Cases by name, each built when it is first asked for."""

    def __init__(self, builders: Mapping[str, Callable[[], Case]]) -> None:
        self._builders = builders
        self._build = functools.cache(lambda name: builders[name]())

    def __getitem__(self, name: str) -> Case:
        return self._build(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._builders)

    def __len__(self) -> int:
        return len(self._builders)


def cases() -> Mapping[str, Case]:
    """Every mechanism, transform and solver of dpjax as a case, by name.

    Returns:
        A mapping that builds a case when it is first asked for.

    Example:
        >>> import jax
        >>> case = cases()["permute_and_flip"]
        >>> found = case.audit(key=jax.random.key(0))
        >>> print(f"{found.epsilon:.2f} of {case.privacy.epsilon:g}")
        0.94 of 1
    """
    # Each module has BUILDERS, a dict of names and functions without arguments that
    # return a Case. They import this one, and so are imported here.
    from dpjax.audit import _mechanisms, _solvers, _transforms

    return _Cases(_mechanisms.BUILDERS | _transforms.BUILDERS | _solvers.BUILDERS)
