"""A linear map for each type of rows, against a loop over rows."""

import pytest
import torch
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.func import vmap
from torch.testing import assert_close

from pyg_basisconv.convert.typed_linear import TypedLinear

KINDS = {"mixed": [2, 0, 2, 3, 0], "sorted": [0, 0, 1, 2, 3], "one": [3, 3, 3], "none": []}


def made(bias: bool) -> TypedLinear:
    torch.manual_seed(0)
    weight, shift = torch.randn(4, 3, 2, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    return TypedLinear(weight, shift if bias else None).requires_grad_()


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("lead", [(), (2,)], ids=["rows", "batch"])
@pytest.mark.parametrize("case", KINDS)
@pytest.mark.sweep(4)
def test_rows_by_their_types(case: str, lead: tuple[int, ...], bias: bool) -> None:
    maps, kinds = made(bias), torch.tensor(KINDS[case], dtype=torch.long)
    x = torch.randn(*lead, len(kinds), 3, dtype=torch.float64, requires_grad=True)
    y, leaves = maps(x, kinds), [x, *maps.parameters()]
    expected = torch.zeros(*lead, len(kinds), 2, dtype=torch.float64)
    for n, k in enumerate(kinds.tolist()):
        shift = 0 if maps.bias is None else maps.bias[k]
        expected = expected.index_copy(-2, torch.tensor([n]), (x[..., n, :] @ maps.weight[k] + shift).unsqueeze(-2))
    assert_close(y, expected)
    probe = torch.randn_like(y)
    options = {"allow_unused": True, "materialize_grads": True}
    if y.requires_grad and expected.requires_grad:
        for a, b in zip(grad(y, leaves, probe, **options), grad(expected, leaves, probe, **options), strict=True):
            assert_close(a, b)
    if len(kinds):
        assert gradcheck(lambda *_: maps(x, kinds), leaves)
        assert gradgradcheck(lambda *_: maps(x, kinds), leaves)


def test_the_same_where_types_are_not_looked_at() -> None:
    maps, kinds, x = made(True), torch.tensor(KINDS["mixed"]), torch.randn(3, 5, 3, dtype=torch.float64)
    assert_close(vmap(lambda one: maps(one, kinds))(x), maps(x, kinds))
    assert_close(torch.compile(maps, backend="eager")(x, kinds), maps(x, kinds))


def test_types_that_are_not_there() -> None:
    for kinds in ([0, 4], [-1, 0]):
        with pytest.raises(ValueError, match="node_type: expected types from 0 to 3"):
            made(True)(torch.randn(2, 3, dtype=torch.float64), torch.tensor(kinds))
