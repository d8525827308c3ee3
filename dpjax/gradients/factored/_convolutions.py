"""Kernels of convolutions: their vectors are patches of the image."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients._loss import Place
from dpjax.gradients.factored._products import (
    Image,
    Moves,
    Product,
    Repeated,
    is_ordinary,
)


@dataclass(frozen=True)
class Convolution(Repeated):
    """A convolution whose kernel is a parameter: vectors are patches of the image.

    Attributes:
        params: of the equation.
        window: the kernel's spatial sizes.
    """

    params: dict[str, Any]
    window: tuple[int, ...]

    @property
    def kind(self) -> str:
        return "patch"

    def residuals(self, inputs: Sequence[Any]) -> jax.Array:
        """Returns the image: its patches are many times as large."""
        return inputs[0]

    def vectors(self, residuals: jax.Array) -> jax.Array:
        """Returns patches: for each position a window, and in it the channels."""
        params, groups = self.params, self.sizes[0]
        numbers = params["dimension_numbers"]
        x = _channels_last(residuals, numbers.lhs_spec)
        no_padding = (0, 0, 0)
        pairs = zip(params["padding"], params["lhs_dilation"], strict=True)
        edges = [(low, high, dilation - 1) for (low, high), dilation in pairs]
        x = jax.lax.pad(x, jnp.zeros((), x.dtype), (no_padding, *edges, no_padding))
        counts = [self.result.shape[axis] for axis in numbers.out_spec[2:]]
        steps = zip(
            counts, params["window_strides"], params["rhs_dilation"], strict=True
        )
        for axis, (count, stride, dilation) in enumerate(steps, start=1):
            starts = [dilation * i for i in range(self.window[axis - 1])]
            span = stride * (count - 1) + 1
            parts = [
                jax.lax.slice_in_dim(x, start, start + span, stride, axis)
                for start in starts
            ]
            x = jnp.stack(parts, axis=-2)
        channels = x.shape[-1] // groups
        x = x.reshape(-1, math.prod(self.window), groups, channels)
        return x.transpose(2, 0, 1, 3).reshape(self.sizes[:3])

    def cotangents(self, x: jax.Array) -> jax.Array:
        groups, positions, _, q = self.sizes
        x = _channels_last(x, self.params["dimension_numbers"].out_spec)
        return x.reshape(positions, groups, q).swapaxes(0, 1)


def _channels_last(x, spec):
    batch, feature, *space = spec
    return x.transpose(batch, *space, feature)


def convolution_at(equation: Any, image: Image, place: Place) -> Product | None:
    """Returns the use of a kernel; None where it is another."""
    params = equation.params
    if not is_ordinary(equation) or params["batch_group_count"] > 1:
        return None
    kernel, result = equation.invars[1].aval.shape, equation.outvars[0].aval
    out, into, *space = params["dimension_numbers"].rhs_spec
    groups = params["feature_group_count"]
    size = kernel[out] // groups
    window = tuple(kernel[axis] for axis in space)
    site = Convolution(
        at=place,
        result=result,
        loops=image.loops,
        sizes=(
            groups,
            result.size // kernel[out],
            math.prod(window) * kernel[into],
            size,
        ),
        params=params,
        window=window,
    )
    # Channels of the result fall into groups: two axes.
    after = [axis + (axis > out) for axis in (*space, into)]
    return Product(
        sites=(site,),
        order=(out, *after, out + 1),
        num_groups=1,
        num_summed=len(after),
        shape=(*kernel[:out], groups, size, *kernel[out + 1 :]),
        moves=Moves((*image.moves, ("reshape", kernel))),
    )
