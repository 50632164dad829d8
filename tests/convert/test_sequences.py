"""Torch's attention, and the modules around it: `recipes.py` has all its masks, shapes and options."""

import copy
import re

import pytest
import torch
from torch import Tensor, nn

from pyg_basisconv import convert
from pyg_basisconv.convert.registry import convertible
from pyg_basisconv.verify import Case, drawn, features
from pyg_basisconv.verify.recipes import hidden, made
from tests.convert.conversion import agree, left_of

B, L, S, H, E = 3, 4, 6, 2, 8  # a batch, the numbers of queries and of keys, heads, and the width


def test_self_attention() -> None:
    """Without gradients torch takes a path of its own; a hint alone is refused."""
    reference = made("MultiheadAttention", {"batch_first": True})
    ours, x = convert(reference), features(B, S, E)
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        ours(x, x, x, is_causal=True)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(x, x, x), reference.eval()(x, x, x))


@pytest.mark.parametrize("name", ["attn_mask", "key_padding_mask"])
def test_numbers_of_a_mask_may_be_in_single_precision(name: str) -> None:
    """As those of `nn.Transformer.generate_square_subsequent_mask` are, whatever the layer's precision."""
    reference = made("MultiheadAttention", {"batch_first": True})
    ours, x = convert(reference), features(B, S, E)
    masks = {name: torch.randn(S, S) if name == "attn_mask" else torch.randn(B, S)}
    torch.testing.assert_close(
        ours(x, x, x, need_weights=False, **masks), reference(x, x, x, need_weights=False, **masks)
    )
    low = ours.bfloat16()(*[x.bfloat16()] * 3, need_weights=False, **masks)[0]
    torch.testing.assert_close(low.double(), reference(x, x, x, need_weights=False, **masks)[0], rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ({"attn_mask": torch.zeros(S, S + 1)}, "(6, 6) or (6, 6, 6), got (6, 7)"),
        ({"attn_mask": torch.zeros(S)}, "(6, 6) or (6, 6, 6), got (6,)"),
        ({"attn_mask": torch.zeros(1, S, S)}, "(6, 6) or (6, 6, 6), got (1, 6, 6)"),
        ({"attn_mask": torch.zeros(S, S + 1), "key_padding_mask": torch.zeros(B, S)}, "got (6, 7)"),
        ({"key_padding_mask": torch.zeros(B, S + 1)}, "(3, 6), got (3, 7)"),
        ({"key_padding_mask": torch.zeros(S).bool()}, "(3, 6), got (6,)"),
    ],
)
def test_masks_of_another_shape(masks: dict[str, Tensor], expected: str) -> None:
    ours, x = convert(made("MultiheadAttention", {"batch_first": True})), features(B, S, E)
    with pytest.raises(ValueError, match=f"^{next(iter(masks))}: expected shape .*{re.escape(expected)}"):
        ours(x, x, x, **masks)


@pytest.mark.parametrize(
    "options",
    [{"add_bias_kv": True}, {"add_zero_attn": True, "bias": False}, {"add_bias_kv": True, "add_zero_attn": True}],
)
def test_rows_beside_the_keys(options: dict) -> None:
    """Under masks, and with the weights of these rows."""
    reference = made("MultiheadAttention", options | {"batch_first": True})
    ours, query, key = convert(reference), features(B, L, E), features(B, S, E)
    masks = {"attn_mask": torch.rand(L, S) < 0.3, "key_padding_mask": torch.rand(B, S) < 0.3}
    for given in ({}, masks):
        for side in (key, query):  # of others, and of itself
            mine, theirs = (f(query, side, side, **(given if side is key else {})) for f in (ours, reference))
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("weights", [{}, {"need_weights": False}, {"average_attn_weights": False}], ids=str)
def test_a_compiled_layer_returns_what_was_asked_for(weights: dict) -> None:
    ours, query, key = (
        convert(made("MultiheadAttention", {"add_bias_kv": True, "add_zero_attn": True})),
        features(L, B, E),
        features(S, B, E),
    )
    masks = {"attn_mask": torch.rand(L, S) < 0.3, "key_padding_mask": torch.rand(B, S) < 0.3}
    found = torch.compile(ours, fullgraph=True, backend="eager")(query, key, key, **masks, **weights)
    torch.testing.assert_close(found, ours(query, key, key, **masks, **weights))


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
