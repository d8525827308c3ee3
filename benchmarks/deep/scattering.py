"""Features of images that no data train: the scattering transform of two scales.

Bruna and Mallat (2013), "Invariant scattering convolution networks"; with the group
norm of Tramer and Boneh (2021), "Differentially private learning needs better
features". An image's features depend on this image alone.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

ANGLES = 8
CHANNELS = 1 + 2 * ANGLES + ANGLES**2
GROUPS, PAD, STRIDE = 27, 4, 4


def _wavelet(size: int, scale: int, angle: int) -> np.ndarray:
    """Returns the Fourier transform, real, of a Morlet wavelet of scale 0 or 1."""
    theta, slant = math.pi * angle / ANGLES, 4 / ANGLES
    sigma, frequency = 0.8 * 2**scale, 0.75 * math.pi / 2**scale
    # The grid is periodic, and several periods are summed.
    x, y = np.mgrid[-2 * size : 2 * size, -2 * size : 2 * size]
    along = x * math.cos(theta) + y * math.sin(theta)
    across = y * math.cos(theta) - x * math.sin(theta)
    bump = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
    wave = bump * np.exp(1j * frequency * along)
    wave = wave - bump * wave.sum() / bump.sum()  # the mean is zero
    periods = wave.reshape(4, size, 4, size).sum(axis=(0, 2))
    return np.real(np.fft.fft2(periods)) * slant / (2 * math.pi * sigma**2)


def _average(size: int, stride: int, num: int) -> np.ndarray:
    """Returns the matrix (num, size) of Gaussian means at every stride-th place."""
    places = stride * (1 + np.arange(num))[:, None]
    weights = np.exp(-(((np.arange(size) - places) / (0.4 * stride)) ** 2) / 2)
    return weights / weights.sum(axis=1, keepdims=True)


@partial(jax.jit, static_argnums=1)
def _scattered(images: jax.Array, width: int) -> jax.Array:
    size, num = width + 2 * PAD, width // STRIDE
    fine, coarse = (
        np.stack([_wavelet(size, scale, angle) for angle in range(ANGLES)])
        for scale in (0, 1)
    )
    full = jnp.asarray(_average(size, STRIDE, num), "float32")
    half = jnp.asarray(_average(size // 2, STRIDE // 2, num), "float32")

    def mean(maps, matrix):
        return jnp.einsum("ki,...ij,lj->...kl", matrix, maps, matrix)

    def convolved(spectra, wavelets, fold):
        """Moduli of all wavelets' convolutions, at every `fold`-th place."""
        product = spectra[..., None, :, :] * jnp.asarray(wavelets, "float32")
        shape = *product.shape[:-2], fold, size // fold, fold, size // fold
        folded = product.reshape(shape).sum(axis=(-4, -2)) / fold**2
        return jnp.abs(jnp.fft.ifft2(folded))

    edges = (0, 0), (PAD, PAD), (PAD, PAD)
    images = jnp.pad(images, edges, mode="reflect")
    spectra = jnp.fft.fft2(images)
    first = convolved(spectra, fine, 1)
    second = convolved(jnp.fft.fft2(first), coarse, 2)
    maps = (
        mean(images, full)[:, None],
        mean(first, full),
        mean(convolved(spectra, coarse, 2), half),
        mean(second, half).reshape(len(images), -1, num, num),
    )
    grouped = jnp.concatenate(maps, axis=1).reshape(len(images), GROUPS, -1)
    grouped = grouped - grouped.mean(axis=2, keepdims=True)
    grouped = grouped / jnp.sqrt(grouped.var(axis=2, keepdims=True) + 1e-5)
    return grouped.reshape(len(images), CHANNELS, num, num)


def scattered(images: np.ndarray) -> np.ndarray:
    """Returns features (n, 81, width / 4, width / 4) of images (n, width, width)."""
    width = images.shape[1]
    parts = np.array_split(images, -(-len(images) // 500))
    return np.concatenate([np.asarray(_scattered(one, width)) for one in parts])
