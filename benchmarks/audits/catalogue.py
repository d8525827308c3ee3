"""The cases of all mechanisms, transforms, solvers and scores."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from types import ModuleType

from benchmarks.audits import (
    choosing_solvers,
    correlated,
    descent,
    linear_models,
    mechanisms,
    private_scores,
    solvers,
    transforms,
    updates,
)
from benchmarks.audits.case import BUILDERS, Case

LAYERS: dict[str, tuple[ModuleType, ...]] = {
    "mechanisms": (mechanisms,),
    "transforms": (transforms, updates, correlated),
    "solvers": (solvers, descent, linear_models, choosing_solvers),
    "models": (private_scores,),
}


class _Cases(Mapping[str, Case]):
    """Cases by name, each built when it is first asked for."""

    def __init__(self) -> None:
        self._names = [name for layer in LAYERS for name in names_of(layer)]
        self._build = functools.cache(
            lambda name: dataclasses.replace(BUILDERS[name](), name=name)
        )

    def __getitem__(self, name: str) -> Case:
        return self._build(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def names_of(layer: str) -> list[str]:
    """Returns the names of a layer's cases, in the order of its files."""
    return [
        name
        for part in LAYERS[layer]
        for name, build in BUILDERS.items()
        if build.__module__ == part.__name__
    ]


@functools.cache
def cases() -> Mapping[str, Case]:
    """Every mechanism, transform and solver of dpjax, and its scores, as cases by name.

    Example:
        >>> import jax
        >>> case = cases()["permute_and_flip"]
        >>> found = case.audit(key=jax.random.key(0))
        >>> print(f"{found.epsilon:.2f} of {case.privacy.epsilon:g}")
        0.93 of 1
    """
    return _Cases()
