"""What `dpjax audit` attacks: claims of mechanisms, transforms, solvers and scores."""

import functools
from collections.abc import Callable, Iterator, Mapping

from dpjax.audit import _mechanisms, _private_scores, _solvers, _transforms
from dpjax.audit._lower_bound import Case


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
    """Every mechanism, transform and solver of dpjax, and its scores, as cases by name.

    Returns:
        A mapping that builds a case when it is first asked for.

    Example:
        >>> import jax
        >>> case = cases()["permute_and_flip"]
        >>> found = case.audit(key=jax.random.key(0))
        >>> print(f"{found.epsilon:.2f} of {case.privacy.epsilon:g}")
        0.93 of 1
    """
    parts = _mechanisms, _transforms, _solvers, _private_scores
    return _Cases({name: one for part in parts for name, one in part.BUILDERS.items()})
