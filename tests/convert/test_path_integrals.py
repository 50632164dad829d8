"""PANConv, which PyG evaluates only beside torch_sparse, against its definition, written out; with the matrix."""

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.typing import WITH_TORCH_SPARSE, SparseTensor

import pyg_basisconv.nn as drop_in
from pyg_basisconv import convert
from pyg_basisconv.verify import Case, N, P, Q, cases, drawn, features, forget, graph
from pyg_basisconv.verify.recipes import default_dtype
from tests.convert.conversion import agree, over


class WrittenOut(pyg.PANConv):
    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        A, power, M = torch.zeros(N, N).double(), torch.eye(N).double(), 0
        for m, n in edge_index.t().tolist():
            A[n, m] += 1
        reached, coefficient = torch.zeros(N, N, dtype=torch.bool), torch.ones(()).double()
        for weight in self.weight:
            coefficient = coefficient * weight
            reached, M, power = reached | (power > 0), M + coefficient * power, power @ A
        scale = reached.sum(1).double() ** -0.5
        M = scale[:, None] * M * scale
        return self.lin(M @ x), M


@pytest.mark.parametrize("filter_size", [0, 1, 3])
@pytest.mark.parametrize("kind", [pyg.PANConv, drop_in.PANConv], ids=["converted", "drop-in"])
@pytest.mark.parametrize("widths", [(P, Q), (Q, P)], ids=str)
def test_paths(kind: type[nn.Module], filter_size: int, widths: tuple[int, int]) -> None:
    layer, expected = (drawn(made(*widths, filter_size=filter_size)) for made in (kind, WrittenOut))
    expected.load_state_dict(layer.state_dict())
    ours, edge_index = layer if kind is drop_in.PANConv else convert(layer), graph()[0]
    agree(Case(ours, expected, [features(N, widths[0])], lambda f, x: both(f, x, edge_index)))
    assert WITH_TORCH_SPARSE or ours(features(N, widths[0]), edge_index)[1].is_coalesced()


def both(layer: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
    """The result and the matrix, in one vector."""
    y, M = layer(x, edge_index)
    return torch.cat([y.flatten(), M.to_dense().flatten()])


def test_the_matrix_follows_its_weights() -> None:
    """The powers are kept with the graph; what is learnt is read in each call."""
    layer, (edge_index, _) = convert(pyg.PANConv(P, Q, filter_size=2)).double(), graph()
    x = features(N, P)
    first = layer(x, edge_index)[1].to_dense()
    with torch.no_grad():
        layer.weight.mul_(2)
    torch.testing.assert_close(layer(x, edge_index)[1].to_dense().diagonal()[-1], 2 * first.diagonal()[-1])


@pytest.mark.skipif(not WITH_TORCH_SPARSE, reason="PyG's layer needs torch_sparse")
@pytest.mark.parametrize(("kind", "options"), over(lambda kind, sweep: sweep if kind == "PANConv" else []))
def test_as_pyg(kind: str, options: dict) -> None:
    for case in cases(kind, options):
        forget(case.reference)
        agree(case)
        edge_index = graph()[0].unique(dim=1)
        adj_t = SparseTensor(row=edge_index[1], col=edge_index[0], sparse_sizes=(N, N))
        with default_dtype(torch.float64):
            results = [f(case.leaves[0], adj_t) for f in (case.ours, case.reference)]
        (y, M), (z, expected) = results
        torch.testing.assert_close(y, z)
        torch.testing.assert_close(M.to_dense(), expected.to_dense())
        assert isinstance(M, SparseTensor)
