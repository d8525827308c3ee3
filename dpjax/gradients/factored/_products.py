"""Parameters that a loss multiplies: where, by what vectors, and the gradients.

Where a parameter is multiplied by one vector, its gradient is the outer product of that
vector and of the cotangent of the result. By several vectors, or in several places, it
is the sum of outer products: one product of matrices.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._sums.matrices import MatrixProducts
from dpjax._sums.samples import OuterProducts, are_much_smaller
from dpjax.gradients._loss import Place

EACH = ("each", None)
MOST_POSITIONS = 2**12  # the bound on rounding is proven up to there: `_sums.matrices`
PATCH = 1.5  # what a patch, cut from an image, costs beside a vector that is there


class Loop(NamedTuple):
    """A `scan` around a use, of whole parameters or of a slice each time."""

    length: int
    is_each: bool


class Moves(tuple):
    """Reshapes, transposes and slices of a loop, one after the other."""

    def undone(self, x: jax.Array) -> jax.Array:
        """Returns the gradient of what was moved, of that where it is used."""
        if EACH in self:  # what follows is of single slices
            i = self.index(EACH)
            return Moves(self[:i]).undone(jax.vmap(Moves(self[i + 1 :]).undone)(x))
        for kind, how in reversed(self):
            x = x.reshape(how) if kind == "reshape" else x.transpose(how)
        return x


class Image(NamedTuple):
    """A variable that holds a parameter, or a slice of it, one for one: see `Site`."""

    leaf: int
    moves: Moves = Moves()
    loops: tuple[Loop, ...] = ()


@dataclass(frozen=True)
class Site(ABC):
    """An equation that multiplies a parameter by vectors.

    Attributes:
        at: the place of the equation.
        result: the type of its result.
        loops: around it, from the outside in.
        sizes: how many groups and positions there are, and entries of a vector and of
            a result.
    """

    at: Place
    result: Any
    loops: tuple[Loop, ...]
    sizes: tuple[int, int, int, int]

    @property
    def kind(self) -> str:
        """Names what vectors are: "vector", "patch" of an image, or "one-hot"."""
        return "vector"

    @abstractmethod
    def residuals(self, inputs: Sequence[Any]) -> Any:
        """Returns what is to be kept of the equation's inputs."""

    @abstractmethod
    def factors(
        self, residuals: Any, cotangents: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns vectors (G, T, p) and cotangents (G, T, q) of all turns."""


@dataclass(frozen=True)
class Repeated(Site):
    """One whose loops make the same of each turn."""

    def factors(
        self, residuals: Any, cotangents: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        vectors, cotangents_at = self.vectors, self.cotangents
        for _ in self.loops:
            vectors, cotangents_at = jax.vmap(vectors), jax.vmap(cotangents_at)
        depth = len(self.loops)
        each = [i for i, loop in enumerate(self.loops) if loop.is_each]
        summed = [i for i, loop in enumerate(self.loops) if not loop.is_each]
        order = (*each, depth, *summed, depth + 1, depth + 2)
        groups = self.sizes[0] * math.prod(self.loops[i].length for i in each)

        def merged(x):
            return x.transpose(order).reshape(groups, -1, x.shape[-1])

        return merged(vectors(residuals)), merged(cotangents_at(cotangents))

    @abstractmethod
    def vectors(self, residuals: jax.Array) -> jax.Array:
        """Returns the vectors of one turn, shape (G, T, p)."""

    @abstractmethod
    def cotangents(self, x: jax.Array) -> jax.Array:
        """Returns the cotangents of one turn, shape (G, T, q)."""


@dataclass(frozen=True)
class Dense(Repeated):
    """A `dot_general` with a parameter.

    Attributes:
        operand: which operand the parameter is.
        axes: of the other operand: of groups, positions and entries.
    """

    operand: int
    axes: tuple[int, ...]

    def residuals(self, inputs: Sequence[Any]) -> jax.Array:
        """Returns the vectors."""
        return inputs[1 - self.operand].transpose(self.axes).reshape(self.sizes[:3])

    def vectors(self, residuals: jax.Array) -> jax.Array:
        return residuals

    def cotangents(self, x: jax.Array) -> jax.Array:
        groups, positions, _, q = self.sizes
        if self.operand == 0:
            return jnp.swapaxes(x.reshape(groups, q, positions), 1, 2)
        return x.reshape(groups, positions, q)


@dataclass(frozen=True)
class Turned(Site):
    """Another site, of which vectors and cotangents change places."""

    site: Site

    @classmethod
    def of(cls, site: Site) -> Self:
        """Returns a site of the transpose."""
        groups, positions, p, q = site.sizes
        sizes = groups, positions, q, p
        return cls(site.at, site.result, site.loops, sizes, site)

    @property
    def kind(self) -> str:
        return self.site.kind

    def residuals(self, inputs: Sequence[Any]) -> jax.Array:
        return self.site.residuals(inputs)

    def factors(
        self, residuals: jax.Array, cotangents: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns cotangents and vectors of all turns."""
        vectors, cotangents = self.site.factors(residuals, cotangents)
        return cotangents, vectors


@dataclass(frozen=True)
class Product:
    """A parameter that is multiplied by vectors.

    Attributes:
        sites: where.
        order: the axes of the parameter: of groups, those that are summed over, others.
        num_groups: how many axes are of groups.
        num_summed: how many are summed over.
        shape: of the parameter where it is used.
        moves: how it came there from the parameter itself.
    """

    sites: tuple[Site, ...]
    order: tuple[int, ...]
    num_groups: int
    num_summed: int
    shape: tuple[int, ...]
    moves: Moves

    @property
    def common(self) -> Hashable:
        """Identifies products that can be added up."""
        each = tuple(x.length for x in self.sites[0].loops if x.is_each)
        kinds = self.num_groups, self.num_summed
        return self.moves, self.order, kinds, self.shape, each

    @property
    def is_outer(self) -> bool:
        """Tells whether there is one vector."""
        return self.sizes[:2] == (1, 1)

    @property
    def is_smaller(self) -> bool:
        """Tells whether to store factors: of many vectors, if they are much smaller."""
        _, positions, p, q = self.sizes
        cost = positions * (PATCH if "patch" in self.kinds else 1)
        return self.is_outer or (
            positions <= MOST_POSITIONS and are_much_smaller((cost, p), q)
        )

    @property
    def is_in_loop(self) -> bool:
        """Tells whether a `scan` adds to the gradient each time that it runs.

        After it, one product does, where its vectors are there: patches and one-hot
        vectors take too much memory.
        """
        loops = [loop for site in self.sites for loop in site.loops]
        is_there = self.kinds == {"vector"}
        return is_there and not all(loop.is_each for loop in loops)

    @property
    def kinds(self) -> set[str]:
        """Names what its vectors are: see `Site.kind`."""
        return {site.kind for site in self.sites}

    @property
    def way(self) -> str:
        """As of `LeafCheck`."""
        if self.is_outer:
            return "outer product"
        return "matrix product" if self.is_smaller else "written out"

    @property
    def why(self) -> str:
        """Says how many vectors there are, and their sizes."""
        groups, positions, p, q = self.sizes
        name, names = "vector", "vectors"
        if "patch" in self.kinds:
            name, names = "patch", "patches"
        number = f"one {name}" if self.is_outer else f"{groups * positions:,} {names}"
        text = f"multiplied by {number}"
        if "one-hot" in self.kinds:
            text += ", one-hot where its rows are read"
        return f"{text}: {p} and {q} numbers" if self.is_smaller else text

    @property
    def num_held(self) -> int:
        """Counts the numbers stored of an example."""
        groups, positions, p, q = self.sizes
        return groups * (positions * (p + q) if self.is_smaller else p * q)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Groups, positions, and the sizes of a vector and of a result."""
        groups, _, p, q = self.sites[0].sizes
        each = [loop.length for loop in self.sites[0].loops if loop.is_each]
        positions = sum(
            site.sizes[1] * math.prod(x.length for x in site.loops if not x.is_each)
            for site in self.sites
        )
        return math.prod(each) * groups, positions, p, q

    def factors(
        self, residuals: Sequence[jax.Array], cotangents: Sequence[jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Returns vectors (G, T, p) and cotangents (G, T, q) of one example."""
        return joined(self.sites, residuals, cotangents, axis=1)

    def samples(
        self, left: jax.Array, right: jax.Array
    ) -> OuterProducts | MatrixProducts | jax.Array:
        """Returns the gradients of n examples, from their factors."""
        n, order = self.num_summed, self.order
        if not self.is_outer:
            products = MatrixProducts(left, right, self._built(order))
            return products if self.is_smaller else products.written_out()
        left, right = left[:, 0, 0], right[:, 0, 0]
        if (*order[n:], *order[:n]) == tuple(range(len(order))):
            return OuterProducts(right, left, self._built(range(len(order))))
        return OuterProducts(left, right, self._built(order))

    def _built(self, order):
        sizes = [self.shape[axis] for axis in order]
        inverse = np.argsort(order)
        each = [loop.length for loop in self.sites[0].loops if loop.is_each]
        depth = len(each)
        axes = (*range(depth), *(depth + k for k in inverse))
        return lambda x: self.moves.undone(x.reshape(*each, *sizes).transpose(axes))


@dataclass(frozen=True)
class WrittenOut:
    """A parameter whose gradient is made in full for each example, and why."""

    why: str
    way = "written out"


def joined(
    sites: Sequence[Any],
    residuals: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
    axis: int,
) -> tuple[jax.Array, jax.Array]:
    """Returns the factors at all sites, one after the other."""
    pairs = [
        site.factors(x, y)
        for site, x, y in zip(sites, residuals, cotangents, strict=True)
    ]
    left, right = zip(*pairs, strict=True)
    return _concatenated(left, axis), _concatenated(right, axis)


def _concatenated(arrays, axis):
    dtypes = {x.dtype for x in arrays}
    if len(dtypes) > 1:  # of indices, or of floats of which none has 64 bits
        is_index = jnp.issubdtype(arrays[0].dtype, jnp.integer)
        arrays = [x.astype(jnp.int32 if is_index else jnp.float32) for x in arrays]
    return jnp.concatenate(arrays, axis)


def product_at(
    equation: Any, operand: int, image: Image, place: Place
) -> Product | None:
    """Returns the use of a parameter in a `dot_general`; None where it is another."""
    summed, groups = equation.params["dimension_numbers"]
    matrix, vector = (equation.invars[k].aval for k in (operand, 1 - operand))
    if not is_ordinary(equation):
        return None
    (summed, of_vector), (groups, of_groups) = (
        (axes[operand], axes[1 - operand]) for axes in (summed, groups)
    )
    entries = [k for k in range(matrix.ndim) if k not in (*summed, *groups)]
    positions = [k for k in range(vector.ndim) if k not in (*of_vector, *of_groups)]

    def size(of, axes):
        return math.prod(of.shape[axis] for axis in axes)

    site = Dense(
        at=place,
        result=equation.outvars[0].aval,
        loops=image.loops,
        operand=operand,
        axes=(*of_groups, *positions, *of_vector),
        sizes=(
            size(matrix, groups),
            size(vector, positions),
            size(matrix, summed),
            size(matrix, entries),
        ),
    )
    return Product(
        sites=(site,),
        order=(*groups, *summed, *entries),
        num_groups=len(groups),
        num_summed=len(summed),
        shape=matrix.shape,
        moves=image.moves,
    )


def is_ordinary(equation: Any) -> bool:
    """Tells whether operands have one type and entries, and no sharding is stated."""
    (left, right), (result,) = (
        [x.aval for x in variables] for variables in (equation.invars, equation.outvars)
    )
    is_placed = equation.params["out_sharding"] is not None
    is_same = left.dtype == right.dtype and are_of_one_kind(left, result)
    return is_same and not is_placed and 0 not in (left.size, right.size, result.size)


def are_of_one_kind(*arrays: Any) -> bool:
    """Tells whether sums of all of them are float64, or of none."""
    return len({x.dtype == jnp.float64 for x in arrays}) == 1
