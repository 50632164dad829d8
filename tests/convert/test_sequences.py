"""Torch's attention, and the modules around it: `recipes.py` has all its masks, shapes and options."""

import copy

import pytest
import torch
from torch import Tensor, nn

from pyg_basisconv import convert
from pyg_basisconv.convert.registry import convertible
from pyg_basisconv.verify import Case, drawn, features
from pyg_basisconv.verify.recipes import attended, hidden, made
from tests.convert.conversion import agree, left_of

B, L, S, H, E = 3, 4, 6, 2, 8  # a batch, the numbers of queries and of keys, heads, and the width


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_self_attention(options: dict) -> None:
    """Masked; the systems "Transformer, self" and "Transformer, causal" are compared in any case."""
    reference = made("MultiheadAttention", {"batch_first": True} | options)
    ours, call = convert(reference), {"attn_mask": torch.ones(S, S, dtype=torch.bool).triu(1)}
    for lead in ((), (B,)):
        agree(Case(ours, reference, [features(*lead, S, E)], lambda f, x: attended(f, x, x, x, **call)))
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        ours(features(S, E), features(S, E), features(S, E), is_causal=True)
    with torch.no_grad():
        x = features(B, S, E)
        torch.testing.assert_close(ours.eval()(x, x, x), reference.eval()(x, x, x))


def test_dropout_and_what_is_frozen() -> None:
    reference = made("MultiheadAttention", {"dropout": 0.5})
    ours = convert(reference)
    x = features(S, E)
    assert not torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])
    torch.testing.assert_close(ours.eval()(x, x, x), reference.eval()(x, x, x))
    reference.out_proj.requires_grad_(False)
    frozen = {name for name, p in convert(reference).named_parameters() if not p.requires_grad}
    assert frozen == {"conv.bias", "conv.theta.output"}


def causal(n: int) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(n, dtype=torch.float64)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_encoder_layer(batch_first: bool, norm_first: bool) -> None:
    options = {"dropout": 0.0, "batch_first": batch_first, "norm_first": norm_first}
    reference = drawn(nn.TransformerEncoderLayer(E, H, 9, **options))
    ours = convert(reference)
    assert not any(map(convertible, ours.modules()))
    shape = (B, S, E) if batch_first else (S, B, E)
    for call in ({}, {"src_mask": causal(S), "is_causal": True}, {"src_key_padding_mask": hidden(B, S)}):
        agree(Case(ours, reference, [features(*shape)], lambda f, x, c=call: f(x, **c)))
        with torch.no_grad():  # torch then takes a path of its own
            x, evaluated = features(*shape), [copy.deepcopy(f).eval() for f in (ours, reference)]
            torch.testing.assert_close(*(f(x, **call) for f in evaluated))


def test_decoder_layer() -> None:
    reference = drawn(nn.TransformerDecoderLayer(E, H, 9, dropout=0.0, batch_first=True))
    call = {"tgt_mask": causal(L), "tgt_is_causal": True, "memory_key_padding_mask": hidden(B, S)}
    leaves = [features(B, L, E), features(B, S, E)]
    agree(Case(convert(reference), reference, leaves, lambda f, x, y: f(x, y, **call)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("training", [True, False])
def test_whole_transformer(training: bool) -> None:
    reference = nn.Transformer(E, H, 2, 2, 9, dropout=0.0, batch_first=True).double().train(training)
    ours = convert(reference)
    x, y, padding = features(B, S, E), features(B, L, E), torch.arange(S) >= torch.tensor([[S], [4], [2]])
    call = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
    agree(Case(ours, reference, [x, y], lambda f, x, y: f(x, y, **call)))
    with torch.no_grad():  # nested tensors, in torch
        torch.testing.assert_close(ours(x, y, **call), reference(x, y, **call))
    assert left_of(reference) == {}
