"""The images that requests carry."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.gpu.plan import Shape

IMAGES = 8
TILES = 4
SEED = 11


def images_of(shape: Shape) -> NDArray[np.uint8]:
    """(`IMAGES`, 3, size, size): `TILES` × `TILES` coloured tiles each. Noise would be the same to
    a network that looks at an image as a whole."""
    tiles = np.random.default_rng(SEED).integers(0, 256, (IMAGES, 3, TILES, TILES), dtype=np.uint8)
    side = shape.size // TILES
    return tiles.repeat(side, axis=2).repeat(side, axis=3)


def batch_of(shape: Shape, size: int) -> NDArray[np.uint8]:
    """That many of them, from the first on and round again."""
    return images_of(shape)[np.arange(size) % IMAGES]
