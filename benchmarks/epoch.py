"""A whole training epoch of the two-layer GCN on Cora (Kipf and Welling, arXiv:1609.02907), dropout included.

Ours has sparse features, so that dropout draws only their entries; PyG's has sparse or dense ones, whichever is faster.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from pyg_basisconv import convert

from .compare import assert_close, assert_same_gradients, step
from .contest import best, measure
from .data import Graph
from .layers import LAYOUTS, layer
from .on_graphs import SPARSE
from .result import Bench, Result, Target

HIDDEN = 16


class GCN(nn.Module):
    """Two layers with dropout before each."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, *edges: Any) -> Tensor:
        hidden = self.first(drop(x, self.training), *edges).relu()
        return self.second(drop(hidden, self.training), *edges)


def drop(x: Tensor, training: bool) -> Tensor:
    """Dropout with probability 1/2; for a sparse x, of its entries."""
    if x.layout == torch.strided:
        return F.dropout(x, 0.5, training)
    values = F.dropout(x.values(), 0.5, training)
    return torch.sparse_csr_tensor(x.crow_indices(), x.col_indices(), values, x.shape)


def converted(model: Any) -> GCN:
    return GCN(convert(model.first), convert(model.second))


def epoch(model: GCN, x: Tensor, edges: tuple[Any, ...], graph: Graph) -> Callable[[], None]:
    """One step of training."""
    decayed: dict[str, Any] = {"params": list(model.first.parameters()), "weight_decay": 5e-4}
    optimizer = torch.optim.Adam([decayed, {"params": list(model.second.parameters())}], lr=0.01)
    assert graph.y is not None
    labels = graph.y[graph.train]

    def train() -> None:
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, *edges)[graph.train], labels)
        loss.backward()
        optimizer.step()

    return train


class EpochRow:
    """Training, dropout included; equality is asserted without it."""

    name = "epoch of a 2-layer GCN, Cora, dropout, sparse x"
    target = Target(3)
    devices = ("cpu", "cuda")

    def run(self, bench: Bench) -> Result:
        torch.manual_seed(0)
        graph, device, lay_out = bench.graph("Cora"), bench.device, layer("GCNConv").edges
        P, classes = graph.x.shape[1], 7

        def make() -> GCN:
            model = GCN(GCNConv(P, HIDDEN, cached=True), GCNConv(HIDDEN, classes, cached=True)).to(device)
            model.load_state_dict(state)
            return model

        state = GCN(GCNConv(P, HIDDEN), GCNConv(HIDDEN, classes)).to(device).state_dict()
        reference, edges = make(), lay_out(graph, "edge_index")
        ours = converted(reference)
        gradient = torch.randn(graph.N, classes, device=device)

        def both(model: nn.Module, x: Tensor, edges: tuple[Any, ...]) -> tuple[Tensor, ...]:
            return step(lambda: model.eval()(x, *edges), list(model.parameters()), gradient)

        features = {"": graph.x, SPARSE: graph.sparse_x}
        expected, found = both(reference, graph.x, edges), both(ours, graph.sparse_x, edges)
        assert_close(found[0], expected[0], f"{self.name}: the value")
        assert_same_gradients(make(), converted, expected[1:], found[1:], self.name)

        ways = {f"{layout}{kind}": (x, layout) for kind, x in features.items() for layout in LAYOUTS}

        def build(way: str) -> Callable[[], None]:
            x, layout = ways[way]
            model, laid = make(), lay_out(graph, layout)
            assert_close(both(model, x, laid)[0], expected[0], "the value")
            work = epoch(model, x, laid, graph)
            work()
            return work

        way, peers, skipped = best(ways, build, device)
        mine = epoch(ours, graph.sparse_x, edges, graph)
        fields = {"work": self.name, "graph": graph.name, "E": graph.E, "P": P, "Q": HIDDEN, "gradients": "Theta"}
        # No ceiling: dropout, the loss and the optimizer take much of an epoch.
        return measure(peers, mine, bench, way=way, skipped=skipped, target=self.target, **fields)
