"""Convolutions on CPU: as products of patches, or in the order of axes that is fast.

XLA's CPU backend has fast convolutions over one or two axes, of images NHWC and kernels
HWIO. Over three axes, and where the window is the larger operand, as in the gradient of
a kernel, a product of matrices is faster: of the patches that the windows cut out.

With negative padding that backend may read outside of an image, hence in the next
example (openxla/xla#48713). So an image is sliced instead, on every platform.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax._sharding import varying_with

LARGEST = 2**22  # numbers in the patches of an example: 16 MiB in float32


def channels_last(x: jax.Array, spec: Sequence[int]) -> jax.Array:
    """Returns images with the order of axes `spec` as (N, ..., C)."""
    batch, feature, *space = spec
    return x.transpose(batch, *space, feature)


def padded(x: jax.Array, padding: Any, spread: Any, axes: Any) -> jax.Array:
    """Returns images with entries `spread` apart on `axes`, then padded or sliced.

    `padding` has pairs (low, high), of which a negative number slices entries off.
    """
    edges = [(0, 0, 0)] * x.ndim
    for axis, (low, high), apart in zip(axes, padding, spread, strict=True):
        edges[axis] = max(low, 0), max(high, 0), apart - 1
    x = lax.pad(x, jnp.zeros((), x.dtype), edges)
    for axis, (low, high) in zip(axes, padding, strict=True):
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
    convolve = partial(_convolution, **params)
    as_given = partial(convolve, numbers=dimension_numbers)
    result = jax.eval_shape(as_given, lhs, rhs)
    counts = [result.shape[axis] for axis in of_result[2:]]
    window = [rhs.shape[axis] for axis in space]
    num_images = lhs.shape[dimension_numbers.lhs_spec[0]]
    size = num_images * math.prod((*counts, *window, rhs.shape[into]))  # of patches
    is_product = (
        (len(space) > 2 or math.prod(window) > math.prod(counts))
        and params["feature_group_count"] == params["batch_group_count"] == 1
        and lhs.dtype == rhs.dtype == result.dtype
        and 0 < size <= LARGEST
    )
    last = lhs.ndim - 1
    image = (0, last, *range(1, last))  # the places of N, C, H, W, ...
    kernel = (last, last - 1, *range(last - 1))  # the places of O, I, H, W, ...
    numbers = lax.ConvDimensionNumbers(image, kernel, image)
    is_fast = dimension_numbers == numbers and not is_product
    if is_fast or params["out_sharding"] is not None:
        return as_given(lhs, rhs)

    def on_cpu(lhs, rhs):
        """Returns the same convolution, by one of the two ways."""
        x = channels_last(lhs, dimension_numbers.lhs_spec)
        kernel = rhs.transpose(*space, into, out)
        if is_product:
            value = _product(x, kernel, counts, params)
        else:
            value = convolve(x, kernel, numbers=numbers)
        place = dict(zip(of_result, image, strict=True))
        return value.transpose([place[axis] for axis in range(lhs.ndim)])

    return lax.platform_dependent(lhs, rhs, cpu=on_cpu, default=as_given)


def _convolution(lhs, rhs, numbers, padding, lhs_dilation, **params):
    """Returns XLA's convolution, without negative padding."""
    if any(min(pair) < 0 for pair in padding):
        lhs = padded(lhs, padding, lhs_dilation, numbers.lhs_spec[2:])
        padding, lhs_dilation = ((0, 0),) * len(padding), (1,) * len(padding)
    params |= {"padding": padding, "lhs_dilation": lhs_dilation}
    return lax.conv_general_dilated_p.bind(
        lhs, rhs, dimension_numbers=numbers, **params
    )


def _product(x, kernel, counts, params):
    """Returns the convolution of x (N, ..., I) and kernel (..., I, O), by patches."""
    # Entries i of the image, w of the kernel and r of the result belong together if
    # spread * i = stride * r + dilation * w - low.
    strides, spread = params["window_strides"], params["lhs_dilation"]
    sizes, window, padding = x.shape[1:-1], kernel.shape[:-2], params["padding"]
    einsum = partial(jnp.einsum, precision=params["precision"])
    i, w, r = (letters[: len(counts)] for letters in ("hij", "klm", "pqr"))
    space = range(1, 1 + len(counts))
    # A patch has the size of the window or, in the gradient of a kernel, of the result.
    of_patch, of_rest = (window, w, params["rhs_dilation"]), (counts, r, strides)
    if is_gradient := math.prod(window) > math.prod(counts):
        of_patch, of_rest = of_rest, of_patch
    (patch, patch_axes, step), (rest, rest_axes, stride) = of_patch, of_rest
    if max(spread) == 1 or max(stride) > 1:
        x = padded(x, padding, spread, space)
        x = patches(x, patch, rest, stride, step)
        return einsum(f"n{rest_axes}{patch_axes}c,{w}co->n{r}o", x, kernel)
    # In a transposed convolution patches are cut from the kernel or the result, where
    # they are turned: so no zeros are needed between the entries of the image.
    low = np.array(padding)[:, 0]
    before = np.subtract(patch, 1) * step - low
    behind = np.subtract(sizes, 1) * spread + low - np.subtract(rest, 1)
    edges = list(zip(before.tolist(), behind.tolist(), strict=True))

    def turned_patches(x):
        x = padded(x, edges, [1] * len(edges), space)
        axes = [axis + len(counts) for axis in space]
        return lax.rev(patches(x, patch, sizes, spread, step), axes)

    if is_gradient:
        return einsum(f"n{i}c,{i}{r}co->n{r}o", x, turned_patches(kernel[None])[0])
    result = jnp.zeros((len(x), *counts, kernel.shape[-1]), x.dtype)
    added = einsum(f"n{i}c,{w}co->n{i}{w}o", x, kernel)
    return jax.linear_transpose(turned_patches, varying_with(result, added))(added)[0]
