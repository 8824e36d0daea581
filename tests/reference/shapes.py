"""Sizes of the Llama families: the table that the reference builds its models from.

Values are the published hyper-parameters. A flavor may be shrunk with `Shape.replace(dim=64, ...)` for tests.
"""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1 and 3.2 stretch the slow rotary frequencies beyond the original context."""

    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context: int = 8192

    def apply(self, frequency: float) -> float:
        """Scaled frequency (radians per token) of one rotary pair."""
        wavelength = 2 * math.pi / frequency
        if wavelength > self.original_context / self.low_frequency_factor:
            return frequency / self.factor
        if wavelength < self.original_context / self.high_frequency_factor:
            return frequency
        span = self.high_frequency_factor - self.low_frequency_factor
        share = (self.original_context / wavelength - self.low_frequency_factor) / span
        return (1 - share) * frequency / self.factor + share * frequency


@dataclasses.dataclass(frozen=True)
class Shape:
    dim: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    theta: float
    multiple_of: int = 256
    multiplier: float | None = None
    tied: bool = False
    scaling: RopeScaling | None = None
    eps: float = 1e-5
    block_causal: bool = False

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def hidden(self) -> int:
        """Width of the feed-forward layer: two thirds of 4 * dim, stretched, rounded up."""
        width = int(2 * 4 * self.dim / 3)
        if self.multiplier is not None:
            width = int(self.multiplier * width)
        return self.multiple_of * math.ceil(width / self.multiple_of)

    def parameters(self) -> int:
        """Number of weights, a tied embedding counted once; a closed form, independent of the module tree."""
        attention = 2 * self.dim * self.dim + 2 * self.dim * self.kv_heads * self.head_dim
        block = attention + 3 * self.dim * self.hidden + 2 * self.dim
        tables = (1 if self.tied else 2) * self.vocab * self.dim
        return tables + self.layers * block + self.dim

    def replace(self, **changes) -> Shape:
        return dataclasses.replace(self, **changes)


def _llama2(dim, layers, heads, kv_heads=None, *, vocab=32000, theta=1e4, **more) -> Shape:
    return Shape(dim, layers, heads, kv_heads or heads, vocab, theta, **more)


def _llama3(dim, layers, heads, kv_heads, multiplier, multiple_of, *, vocab=128256, **more) -> Shape:
    return Shape(dim, layers, heads, kv_heads, vocab, 5e5, multiple_of, multiplier, **more)


_LLAMA3_DEBUG = _llama3(256, 6, 16, 16, None, 256, vocab=2048)
_LLAMA3_DEBUG_D24 = _llama3(256, 8, 16, 16, None, 256, vocab=2256)
_LLAMA3 = {
    "debugmodel": _LLAMA3_DEBUG,
    "debugmodel_d24": _LLAMA3_DEBUG_D24,
    "debugmodel_flex_attn": _LLAMA3_DEBUG.replace(block_causal=True),
    "debugmodel_varlen_attn": _LLAMA3_DEBUG.replace(block_causal=True),
    "8B": _llama3(4096, 32, 32, 8, 1.3, 1024),
    "70B": _llama3(8192, 80, 64, 8, 1.3, 4096),
    "405B": _llama3(16384, 126, 128, 8, 1.2, 4096),
}

FLAVORS: dict[str, dict[str, Shape]] = {
    "llama2": {
        "debugmodel": _llama2(256, 8, 16, vocab=2048),
        "271M": _llama2(1024, 16, 8),
        "1B": _llama2(2048, 18, 16),
        "7B": _llama2(4096, 32, 32),
        "13B": _llama2(5120, 40, 40),
        "26B": _llama2(5120, 80, 40),
        "34B": _llama2(8192, 48, 64, 8, multiplier=1.0, theta=1e6),
        "70B": _llama2(8192, 80, 64, 8, multiplier=1.3, multiple_of=4096),
    },
    "llama3": _LLAMA3,
    "llama3_1": {name: shape.replace(scaling=RopeScaling(8.0)) for name, shape in _LLAMA3.items()},
    "llama3_2": {
        "1B": _llama3(2048, 16, 32, 8, 1.5, 256, tied=True, scaling=RopeScaling(32.0)),
        "3B": _llama3(3072, 28, 24, 8, 1.0, 256, tied=True, scaling=RopeScaling(32.0)),
    },
}
