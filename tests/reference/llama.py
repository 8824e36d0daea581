"""Llama in plain PyTorch, written from the specification: the yardstick for titan_train, and the benchmark's baseline.

Nothing here is clever. Parameter names are those of the checkpoints (`layers.0.attention.wq.weight`, ...), linears have
no bias, weights are [out, in]. Works in float32, float64 and under autocast.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from shapes import Shape

IGNORED_LABEL = -100


def at_least_float32(x: Tensor) -> Tensor:
    """float64 stays float64, everything narrower becomes float32."""
    return x if x.dtype == torch.float64 else x.float()


def rotary_frequencies(shape: Shape) -> Tensor:
    """Radians per token of each pair, float32 [head_dim / 2]: theta^(-2j / head_dim), then the family's scaling."""
    exponent = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    frequencies = 1.0 / torch.pow(torch.tensor(shape.theta, dtype=torch.float32), exponent)
    if shape.scaling is not None:
        frequencies = torch.tensor([shape.scaling.apply(f) for f in frequencies.tolist()], dtype=torch.float32)
    return frequencies


def rotary_table(shape: Shape, length: int) -> Tensor:
    """exp(i * position * frequency), complex64 [length, head_dim / 2]."""
    angles = torch.outer(torch.arange(length, dtype=torch.float32), rotary_frequencies(shape))
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x_bthd: Tensor, table: Tensor) -> Tensor:
    """Turns each adjacent pair (2j, 2j + 1) of every head as one complex number; table is [T, hd/2] or [B, T, hd/2]."""
    pairs = torch.view_as_complex(at_least_float32(x_bthd).unflatten(-1, (-1, 2)))
    turned = pairs * table.to(pairs.dtype).unsqueeze(-2)
    return torch.view_as_real(turned).flatten(-2).to(x_bthd.dtype)


def documents(tokens_bt: Tensor, end_of_text: int) -> tuple[Tensor, Tensor]:
    """Document number and position inside it of every token, both [B, T]. A document ends with its end-of-text token;
    the first one of a row begins at the row's start whether or not its beginning is there."""
    ends = (tokens_bt == end_of_text).long()
    number = ends.cumsum(1) - ends
    index = torch.arange(tokens_bt.shape[1], device=tokens_bt.device).expand_as(tokens_bt)
    starts = torch.ones_like(ends)
    starts[:, 1:] = ends[:, :-1]
    begin = torch.where(starts.bool(), index, torch.zeros_like(index)).cummax(1).values
    return number, index - begin


class RMSNorm(nn.Module):
    """x / rms(x) in float32, cast back to x's dtype, then times the weight. `fused` takes the library's function, which
    agrees up to where it rounds; the benchmark uses it because a good eager trainer would."""

    def __init__(self, dim: int, eps: float, fused: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        wide = at_least_float32(x)
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return normed.to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        kv_width = shape.kv_heads * shape.head_dim
        self.head_dim = shape.head_dim
        self.wq = nn.Linear(shape.dim, shape.dim, bias=False)
        self.wk = nn.Linear(shape.dim, kv_width, bias=False)
        self.wv = nn.Linear(shape.dim, kv_width, bias=False)
        self.wo = nn.Linear(shape.dim, shape.dim, bias=False)

    def forward(self, x_btd: Tensor, table: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (linear(x_btd).unflatten(-1, (-1, self.head_dim)) for linear in (self.wq, self.wk, self.wv))
        q, k = rotate(q, table), rotate(k, table)
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
        grouped = q.shape[1] != k.shape[1]  # kv head j serves the query heads j * r .. j * r + r - 1
        mixed = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
        )
        return self.wo(mixed.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.w1 = nn.Linear(shape.dim, shape.hidden, bias=False)
        self.w2 = nn.Linear(shape.hidden, shape.dim, bias=False)
        self.w3 = nn.Linear(shape.dim, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, shape: Shape, fused_norm: bool):
        super().__init__()
        self.attention = Attention(shape)
        self.feed_forward = FeedForward(shape)
        self.attention_norm = RMSNorm(shape.dim, shape.eps, fused_norm)
        self.ffn_norm = RMSNorm(shape.dim, shape.eps, fused_norm)

    def forward(self, x: Tensor, table: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), table, mask)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """`end_of_text` is needed by block-causal shapes only: there a token sees its own document and no other."""

    def __init__(self, shape: Shape, *, fused_norm: bool = False, end_of_text: int | None = None):
        super().__init__()
        if shape.block_causal and end_of_text is None:
            raise ValueError("a block-causal model must know the end-of-text id that separates documents")
        self.shape = shape
        self.end_of_text = end_of_text
        self.tok_embeddings = nn.Embedding(shape.vocab, shape.dim)
        self.layers = nn.ModuleDict({str(i): Block(shape, fused_norm) for i in range(shape.layers)})
        self.norm = RMSNorm(shape.dim, shape.eps, fused_norm)
        self.output = nn.Linear(shape.dim, shape.vocab, bias=False)
        if shape.tied:
            self.output.weight = self.tok_embeddings.weight
        self.table = torch.empty(0, dtype=torch.complex64)  # grows to the longest sequence seen

    def positions_and_mask(self, tokens_bt: Tensor) -> tuple[Tensor, Tensor | None]:
        length = tokens_bt.shape[1]
        if self.table.shape[0] < length:
            self.table = rotary_table(self.shape, length).to(tokens_bt.device)
        if not self.shape.block_causal:
            return self.table[:length], None
        number, position = documents(tokens_bt, self.end_of_text)
        same_document = number.unsqueeze(2) == number.unsqueeze(1)
        not_later = torch.ones(length, length, dtype=torch.bool, device=tokens_bt.device).tril()
        return self.table[position], (same_document & not_later).unsqueeze(1)

    def forward(self, tokens_bt: Tensor) -> Tensor:
        """Logits [B, T, vocab] in the compute dtype."""
        table, mask = self.positions_and_mask(tokens_bt)
        hidden = self.tok_embeddings(tokens_bt)
        for block in self.layers.values():
            hidden = block(hidden, table, mask)
        return self.output(self.norm(hidden))


@torch.no_grad()
def initialise(model: Llama, seed: int) -> None:
    """The published initialisation (depth-scaled): what to expect of a first loss, not the same numbers as titan's."""
    generator = torch.Generator().manual_seed(seed)

    def truncated(weight: Tensor, deviation: float, bound: float = 2.0) -> None:
        nn.init.trunc_normal_(weight, 0.0, deviation, -bound, bound, generator=generator)

    model.tok_embeddings.weight.normal_(generator=generator)
    for index, block in enumerate(model.layers.values()):
        deep = 0.02 / (2 * (index + 1)) ** 0.5
        attention, feed_forward = block.attention, block.feed_forward
        for linear in (attention.wq, attention.wk, attention.wv, feed_forward.w1):
            truncated(linear.weight, 0.02)
        for linear in (attention.wo, feed_forward.w2, feed_forward.w3):
            truncated(linear.weight, deep)
    deviation = model.shape.dim**-0.5
    truncated(model.output.weight, deviation, 3 * deviation)


def token_loss_sum(logits_btv: Tensor, labels_bt: Tensor) -> Tensor:
    """Sum of the cross-entropies of the labels that count, in float32 or wider. Divide by the step's valid tokens."""
    flat = at_least_float32(logits_btv).flatten(0, 1)
    return functional.cross_entropy(flat, labels_bt.flatten(), ignore_index=IGNORED_LABEL, reduction="sum")


def valid_tokens(labels_bt: Tensor) -> int:
    return int((labels_bt != IGNORED_LABEL).sum())
