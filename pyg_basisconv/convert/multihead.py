"""Torch's own attention, between all pairs of positions in sequences."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import compiled
from ..bases import Attention
from ..conv import BasisConv
from ..errors import reject
from ..mechanisms import Dot
from ..theta import LowRank
from .attention import apply_weights, weigh
from .build import META, check_dropout, check_frozen_alike, fill, parameter
from .composite import Composite
from .operator_module import OperatorModule, check_forms
from .registry import Unchanged, rule


@rule(
    nn.MultiheadAttention,
    "Transformer, masks and weights",
    [
        {"kdim": 5, "vdim": 3},
        {"vdim": 3},
        *({"add_bias_kv": True, "add_zero_attn": True} | more for more in ({"kdim": 5}, {"bias": False})),
    ],
    fixed=("batch_first",),
)
class ConvertedMultihead(OperatorModule, nn.MultiheadAttention):
    r""":math:`\sum_k A_k^\top (x V_k + \beta_k) O_k + b` with the softmax of scaled dot products for A, called as
    `torch.nn.MultiheadAttention`.

    It is an `nn.MultiheadAttention` only for `isinstance`, without its parameters. A target whose sources are all
    masked gets the bias alone.

    `add_bias_kv` and `add_zero_attn` add sources, which are further rows of x. Channels of ones tell these from the
    others; the biases are then rows of the matrices.
    """

    # Torch's Transformer layers read these before they take a fast path, which would bypass this layer.
    in_proj_weight = None  # type: ignore[assignment]
    in_proj_bias = None  # type: ignore[assignment]
    _qkv_same_embed_dim = False

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        if type(layer.out_proj) is not nn.modules.linear.NonDynamicallyQuantizableLinear:
            raise Unchanged(f"its output projection is a {type(layer.out_proj).__name__}")
        check_dropout(layer.dropout)
        E, H, D = layer.embed_dim, layer.num_heads, layer.head_dim
        self.own_row, self.zero_row = layer.bias_k is not None, bool(layer.add_zero_attn)
        self.rows = self.own_row + self.zero_row  # the number of added sources
        matrices = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        if layer.in_proj_weight is not None:
            matrices = layer.in_proj_weight.chunk(3)
        bias = layer.in_proj_bias
        self.lifted = self.rows > 0 and bias is not None  # the biases are then rows of the matrices
        if self.rows:
            check_frozen_alike(*matrices, bias, layer.bias_k, layer.bias_v)
        query, key, value = (w.view(H, D, -1).transpose(1, 2) for w in matrices)
        if self.lifted:
            rows = bias.view(3, H, 1, D)
            query, key, value = (torch.cat(part, 1) for part in zip((query, key, value), rows, strict=True))
        if self.own_row:
            key, value = (torch.cat([w, b.view(H, 1, D)], 1) for w, b in ((key, layer.bias_k), (value, layer.bias_v)))
        biased = bias is not None and not self.lifted
        with META:
            score, theta = Dot(D, bias=biased), LowRank(D, bias=biased)
            basis = Attention(H, score, dropout=layer.dropout)
            basis.complete(key.shape[1], query.shape[1], D)  # keys may be wider than values
            self.conv = BasisConv((key.shape[1], query.shape[1]), E, basis, LowRank(D), bias=False)
            self.conv.theta = theta.build(H, value.shape[1], E)
            self.conv.in_channels = (value.shape[1], query.shape[1])
        fill(score, key=key, query=query)
        fill(theta, weight=value, output=layer.out_proj.weight.t())
        if biased:
            query_bias, key_bias, value_bias = bias.chunk(3)
            fill(score, key_bias=key_bias, query_bias=query_bias)
            fill(theta, value_bias=value_bias)
        self.conv.bias = parameter(layer.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        given: dict[str, Any] = {"query": query, "key": key, "value": value}
        given |= {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask}
        check_forms(given)
        flags: Any = {"need_weights": need_weights, "average_attn_weights": average_attn_weights}
        if not self.uses_operator(given):
            return self.compute(**given, **flags)
        found = compiled.results(self, given | flags)
        return found[0], found[1] if need_weights else None

    def compute(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        need_weights: bool,
        average_attn_weights: bool,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        A: Any
        turned = not self.batch_first and query.dim() == 3
        sides = [query, key] if key is value else [query, key, value]
        sides = [t.transpose(0, 1) if turned else t for t in sides]
        mask, valid = self._masks(attn_mask, key_padding_mask, sides)
        if self.rows:
            sides = [self._with_ones(sides[0]), *map(self._with_rows, sides[1:])]
        if key is value:
            x = sides[1] if query is key and not self.rows else (sides[1], sides[0])
            y = self.conv(x, mask=mask, valid=valid, return_attention=need_weights)
            y, A = y if need_weights else (y, None)
        else:
            A = weigh(self.conv, sides[1], sides[0], mask=mask, valid=valid, observed=need_weights)
            y = apply_weights(self.conv, sides[2], A)
        y = y.transpose(0, 1) if turned else y
        if not need_weights:
            return y, None
        if average_attn_weights:
            return y, A.mean().mT
        return y, A.to_dense().movedim(0, -3).transpose(-1, -2)  # (*, H, L, S)

    def fake_result(self, given: dict[str, Any], unknown: Callable[[], int]) -> list[Tensor]:
        query, key = given["query"], given["key"]
        y = query.new_empty(*query.shape[:-1], self.embed_dim)
        if not given["need_weights"]:
            return [y]
        turned = not self.batch_first and query.dim() == 3
        L, S = (t.shape[0 if turned else -2] for t in (query, key))
        batch = query.shape[1:-1] if turned else query.shape[:-2]
        heads = () if given["average_attn_weights"] else (self.num_heads,)
        return [y, query.new_empty(*batch, *heads, L, S + self.rows)]

    def _with_ones(self, x: Tensor) -> Tensor:
        return torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1) if self.lifted else x

    def _with_rows(self, x: Tensor) -> Tensor:
        """The sources, then the added ones, with the channels that tell them apart."""
        x = self._with_ones(x)
        if self.own_row:
            x = torch.cat([x, x.new_zeros(*x.shape[:-1], 1)], -1)
        rows = x.new_zeros(*x.shape[:-2], self.rows, x.shape[-1])
        if self.own_row:
            rows[..., 0, -1] = 1
        return torch.cat([x, rows], -2)

    def _masks(
        self, attn: Tensor | None, padding: Tensor | None, sides: list[Tensor]
    ) -> tuple[Tensor | None, Tensor | None]:
        """The masks, as `mask` and `valid` of a BasisConv."""
        query, key = sides[:2]
        batch, L, S = query.shape[:-2], query.shape[-2], key.shape[-2]
        if attn is not None:
            attn = _checked("attn_mask", attn, query, ((L, S), (math.prod(batch) * self.num_heads, L, S)))
        if padding is not None:
            padding = _checked("key_padding_mask", padding, query, ((*batch, S),))
        soft = padding is not None and padding.dtype != torch.bool
        mask = None
        if attn is not None:
            mask = attn if attn.dim() == 2 else attn.view(*batch, self.num_heads, L, S)
            mask = mask.transpose(-1, -2)
            if mask.dtype == torch.bool:
                mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask, -torch.inf) if soft else ~mask
            if self.rows:
                mask = nn.functional.pad(mask, (0, 0, 0, self.rows), value=mask.dtype == torch.bool)
        if padding is None:
            return mask, None
        if self.rows:
            padding = nn.functional.pad(padding, (0, self.rows))
        if not soft:
            return mask, ~padding
        added = padding.unsqueeze(-1).expand(*batch, S + self.rows, L)
        if mask is None:
            return added, None
        return (mask + added if mask.dim() == 2 else mask + added.unsqueeze(-3)), None

    _reset_parameters = Composite.reset_parameters


def _checked(name: str, mask: Tensor, query: Tensor, shapes: tuple[tuple[int, ...], ...]) -> Tensor:
    """A mask of torch's; numbers in the dtype of the query, as torch takes those in float32 with any."""
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise AssertionError(f"only bool and floating types of {name} are supported")
    if tuple(mask.shape) not in shapes:
        reject(name, f"shape {' or '.join(map(str, shapes))}", tuple(mask.shape), "see torch.nn.MultiheadAttention")
    return mask if mask.dtype == torch.bool else mask.to(query.dtype)
