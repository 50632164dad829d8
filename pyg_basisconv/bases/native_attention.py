"""Attention over all pairs by torch's own kernel."""

from typing import Any, cast

import torch
from torch import Tensor

from ..errors import reject
from ..kernels import ProductScores
from ..kernels.all_pairs import add_causal_mask, by_heads, pair_attention, pair_product, pair_weights
from .by_member import MemberByMember


class NativeAttention(MemberByMember):
    """A `BoundAttention` by `F.scaled_dot_product_attention`, with its mask as a bias; and its weights of all pairs."""

    def __init__(self, attention: Any) -> None:
        a = self.attention = attention
        self.K, self.M, self.N, self.dtype, self.device = a.K, a.M, a.N, a.dtype, a.device
        self.batch, self.entries = a.batch, a.entries

    def each(self, z: Tensor) -> Tensor:
        a, lead = self.attention, z.shape[1:-2]
        if tuple(lead) != self.batch:
            reject("x", f"the batch dimensions of the content, {self.batch}", tuple(lead), "choose another order")
        value = self.batch_first(z)
        if a.observed and a.may_hold_pairs:
            y = pair_product(self.weights().to(z.dtype), value)
        else:
            p = 0.0 if a.dropout is None else a.dropout.p
            y = pair_attention(*self.pairwise(z.dtype), value, p, self.entries.causal)  # (B, K, N, D)
        return self.heads_first(y)

    @property
    def native_cost(self) -> tuple[int, int, int]:
        # Both products, assuming that keys are as wide as values.
        e = self.entries
        pairs = self.K * self.M * self.N // (2 if e.causal else 1)
        # Another mask is written out as a bias, with which the gradient takes much longer.
        return 4 * pairs, self.K * (2 * self.M + 2 * self.N), 1 if e.complete or e.causal else 3

    @property
    def is_row_product(self) -> bool:
        """Whether scores are node-major inner products alone, for one batch dimension."""
        return len(self.batch) == 1 and isinstance(self.attention.score.scoring, ProductScores)

    def batch_first(self, t: Tensor) -> Tensor:
        """(K, *, L, d) -> (B, K, L, d), a view for up to one batch dimension."""
        if not self.batch:
            return t.unsqueeze(0)
        return (t if len(self.batch) == 1 else t.flatten(1, len(self.batch))).transpose(0, 1)

    def heads_first(self, t: Tensor) -> Tensor:
        """(B, K, L, d) -> (K, *, L, d), a view."""
        if not self.batch:
            return t.squeeze(0)
        t = t.transpose(0, 1)
        return t if len(self.batch) == 1 else t.unflatten(1, self.batch)

    def pairwise(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
        """Queries (B, K, N, d), keys (B, K, M, d), and the bias of their products, (B, K, N, M), (N, M) or None."""
        if self.is_row_product and self.entries.bias is None:
            key, query = (by_heads(cast(Tensor, t), self.K).to(dtype) for t in self.attention.score.rows)
            return query, key, None
        e, dots = self.entries, self.attention.score.dots
        assert dots is not None
        keys, queries, biases = dots(self.attention.score.tensors, e)
        if not keys:
            shapes = ((self.K, *self.batch, size, 1) for size in (self.M, self.N))
            keys, queries = ([torch.zeros(shape, dtype=self.dtype, device=self.device)] for shape in shapes)
        key, query = (self.batch_first(side[0] if len(side) == 1 else torch.cat(side, -1)) for side in (keys, queries))
        if e.bias is not None:
            biases = [*biases, e.bias]
        query, key = query.to(dtype), key.to(dtype)
        if not biases:
            return query, key, None
        bias = sum(biases[1:], biases[0]).transpose(-1, -2).to(dtype)  # (K, *, N, M), or (N, M)
        return query, key, bias if bias.dim() == 2 else self.batch_first(bias)

    def weights(self) -> Tensor:
        """(B, K, N, M) the weights of all pairs; cached, so that the layer applies the weights that it returns."""
        a, grad = self.attention, torch.is_grad_enabled()
        weights: Tensor | None = a._pair_weights
        if weights is None or weights.is_inference() or (grad and a.requires_grad and not weights.requires_grad):
            query, key, bias = self.pairwise(torch.promote_types(self.dtype, torch.float32))
            bias = add_causal_mask(bias, query, key) if self.entries.causal else bias
            weights = a._pair_weights = pair_weights(query, key, bias)
        return weights if grad else weights.detach()

    def to_dense(self) -> Tensor:
        return self.heads_first(self.weights().to(self.dtype, copy=True)).transpose(-1, -2)

    def mean(self) -> Tensor:
        """The mean of the matrices, written out, (B, M, N), for one batch dimension."""
        mean = self.weights().mean(1)
        return (mean if mean.dtype == self.dtype else mean.to(self.dtype)).mT
