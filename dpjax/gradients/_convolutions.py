"""Convolutions on CPU: as products of patches, or in the order of axes that is fast.

XLA's CPU backend has fast convolutions over one or two axes, of images NHWC and kernels
HWIO. Over three axes, and where the window is the larger operand, as in the gradient of
a kernel, a product of matrices is faster: of the patches that the windows cut out.

With negative padding it may read outside of an image, hence in the next example
(openxla/xla#48713): such an image is sliced before.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._sharding import varying_with

MOST = 2**22  # numbers in the patches of an example: 16 MiB in float32


def channels_last(x: jax.Array, spec: Sequence[int]) -> jax.Array:
    """Returns images with the order of axes `spec` as (N, ..., C)."""
    batch, feature, *space = spec
    return x.transpose(batch, *space, feature)


def padded(x: jax.Array, padding: Any, spread: Sequence[int]) -> jax.Array:
    """Returns images (N, ..., C) with entries `spread` apart, then padded or sliced."""
    pairs = zip(padding, spread, strict=True)
    edges = [(max(low, 0), max(high, 0), apart - 1) for (low, high), apart in pairs]
    others = [(0, 0, 0)] * (x.ndim - 1 - len(edges))
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *edges, *others])
    for axis, (low, high) in enumerate(padding, start=1):
        x = lax.slice_in_dim(x, max(-low, 0), x.shape[axis] + min(high, 0), axis=axis)
    return x


def patches(
    x: jax.Array,
    window: Sequence[int],
    counts: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> jax.Array:
    """Returns the patches (N, *counts, *window, C) of images x, shape (N, ..., C).

    On each axis patches begin `strides` entries apart, and the entries of a patch are
    `dilation` apart.
    """
    steps = zip(window, counts, strides, dilation, strict=True)
    for axis, (width, count, stride, step) in enumerate(steps, start=1):
        starts, span = range(0, step * width, step), stride * (count - 1) + 1
        parts = [lax.slice_in_dim(x, i, i + span, stride, axis) for i in starts]
        x = jnp.stack(parts, axis=len(window) + axis)
    return x


def convolution(
    lhs: jax.Array, rhs: jax.Array, *, dimension_numbers: Any, **params: Any
) -> jax.Array:
    """Returns `lax.conv_general_dilated` of images lhs and kernels rhs, fast on CPU."""
    (out, into, *space), of_result = dimension_numbers[1:]
    bind = partial(lax.conv_general_dilated_p.bind, **params)
    as_given = partial(bind, dimension_numbers=dimension_numbers)
    result = jax.eval_shape(as_given, lhs, rhs)
    num_axes, counts = len(space), [result.shape[axis] for axis in of_result[2:]]
    window = [rhs.shape[axis] for axis in space]
    size = lhs.shape[dimension_numbers.lhs_spec[0]] * math.prod(counts)
    size *= math.prod(window) * rhs.shape[into]  # numbers in the patches
    is_product = (
        (num_axes > 2 or math.prod(window) > math.prod(counts))
        and params["feature_group_count"] == params["batch_group_count"] == 1
        and lhs.dtype == rhs.dtype == result.dtype
        and 0 < size <= MOST
    )
    is_sliced = min((min(pair) for pair in params["padding"]), default=0) < 0
    axes = range(lhs.ndim)
    image = (0, axes[-1], *axes[1:-1])  # the places of N, C, H, W, ...
    kernel = (axes[-1], axes[-2], *axes[:-2])  # the places of O, I, H, W, ...
    numbers = lax.ConvDimensionNumbers(image, kernel, image)
    if dimension_numbers == numbers and not (is_product or is_sliced):
        return as_given(lhs, rhs)

    def on_cpu(lhs, rhs):
        """Returns the same convolution by one of the three ways."""
        x = channels_last(lhs, dimension_numbers.lhs_spec)
        kernel = rhs.transpose(*space, into, out)
        if is_product:
            value = _product(x, kernel, counts, params)
        elif is_sliced:
            x = padded(x, params["padding"], params["lhs_dilation"])
            done = {"padding": ((0, 0),) * num_axes, "lhs_dilation": (1,) * num_axes}
            value = bind(x, kernel, dimension_numbers=numbers, **done)
        else:
            value = bind(x, kernel, dimension_numbers=numbers)
        place = dict(zip(of_result, image, strict=True))
        return value.transpose([place[axis] for axis in axes])

    return lax.platform_dependent(lhs, rhs, cpu=on_cpu, default=as_given)


def _product(x, kernel, counts, params):
    """Returns the convolution of x (N, ..., I) and kernel (..., I, O), by patches."""
    # Entries i of the image, w of the kernel and r of the result belong together if
    # spread * i = stride * r + dilation * w - low.
    strides, spread, dilation = (
        params[name] for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    sizes, window, padding = x.shape[1:-1], kernel.shape[:-2], params["padding"]
    einsum = partial(jnp.einsum, precision=params["precision"])
    i, w, r = (letters[: len(counts)] for letters in ("hij", "klm", "pqr"))
    small, large = (window, w, dilation), (counts, r, strides)
    if is_gradient := math.prod(window) > math.prod(counts):
        small, large = large, small
    (few, a, near), (many, b, far) = small, large
    if max(spread) == 1 or max(far) > 1:
        x = patches(padded(x, padding, spread), few, many, far, near)
        return einsum(f"n{b}{a}c,{w}co->n{r}o", x, kernel)
    # Of a transposed convolution the larger operand is cut, or the result: so no zeros
    # are needed between the entries of the image.
    edges = [
        ((count - 1) * step - low, low + apart * (size - 1) - (end - 1))
        for count, step, (low, _), apart, size, end in zip(
            few, near, padding, spread, sizes, many, strict=True
        )
    ]

    def cut(x):
        x = padded(x, edges, [1] * len(edges))
        return lax.rev(patches(x, few, sizes, spread, near), axes)

    axes = range(1 + len(edges), 1 + 2 * len(edges))  # those of a patch
    if is_gradient:
        return einsum(f"n{i}c,{i}{r}co->n{r}o", x, cut(kernel[None])[0])
    result = jnp.zeros((len(x), *counts, kernel.shape[-1]), x.dtype)
    added = einsum(f"n{i}c,{w}co->n{i}{w}o", x, kernel)
    return jax.linear_transpose(cut, varying_with(result, added))(added)[0]
