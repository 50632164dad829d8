"""What registers kernels with autograd: compared with the derivatives of x^3 as they are in books."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, grad
from torch.testing import assert_close

from pyg_basisconv.kernels.op import Backward, recorded
from pyg_basisconv.portable import any_seen

X = torch.tensor([0.5, -2.0, 3.0], dtype=torch.float64)
SEEN: list[str] = []


def scaled_cube(scale: float, x: Tensor, y: Tensor | None) -> tuple[Tensor, tuple[Tensor]]:
    SEEN.append("compute")
    square = x * x
    return scale * square * x, (square,)


def scaled_cube_backward(given: Backward) -> tuple[Tensor, None]:
    SEEN.append("backward")
    return 3 * given.fixed[0] * given.further[0] * given.grad, None


def plain_cube(scale: float, x: Tensor, y: Tensor | None) -> Tensor:
    SEEN.append("plain")
    return scale * x**3


CUBE = recorded(1, scaled_cube, scaled_cube_backward, plain_cube)


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


def test_nothing_is_recorded_where_nothing_learns() -> None:
    assert_close(CUBE(2.0, X, None), torch.tensor([0.25, -16.0, 54.0], dtype=torch.float64))
    with torch.no_grad():
        assert not CUBE(2.0, X.clone().requires_grad_(), None).requires_grad
    assert SEEN == ["compute"] * 2


def test_a_first_derivative_is_its_own() -> None:
    x = X.clone().requires_grad_()
    (found,) = grad(CUBE(2.0, x, None).sum(), x)
    assert_close(found, torch.tensor([1.5, 24.0, 54.0], dtype=torch.float64))
    assert SEEN == ["compute", "backward"]


def test_a_second_derivative_is_that_of_the_plain_form() -> None:
    x = X.clone().requires_grad_()
    (first,) = grad(CUBE(2.0, x, None).sum(), x, create_graph=True)
    assert_close(grad(first.sum(), x)[0], torch.tensor([6.0, -24.0, 36.0], dtype=torch.float64))
    assert SEEN == ["compute", "plain"]


def test_a_batch_of_gradients_is_that_of_the_plain_form() -> None:
    x = X.clone().requires_grad_()
    along = torch.eye(3, dtype=torch.float64)
    (found,) = grad(CUBE(2.0, x, None), x, along, is_grads_batched=True)
    assert_close(found, torch.tensor([1.5, 24.0, 54.0], dtype=torch.float64).diag())
    assert SEEN == ["compute", "plain"]


def test_a_transform_takes_the_plain_form() -> None:
    found = torch.func.vmap(torch.func.grad(lambda x: CUBE(2.0, x, None)))(X)
    assert_close(found, torch.tensor([1.5, 24.0, 54.0], dtype=torch.float64))
    assert SEEN == ["plain"]


def test_values_are_not_looked_at_in_a_transform() -> None:
    assert any_seen(X < 0)
    assert not any_seen(X < -2)
    with forward_ad.dual_level():
        assert not any_seen(X < 0)
