"""The layer in GraphGym's models, which a configuration makes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Batch, Data

pytest.importorskip("yacs")
pytestmark = pytest.mark.filterwarnings("ignore:To use GraphGym, install:UserWarning")

YAML = """
dataset: {task: node, task_type: classification}
gnn: {layer_type: basisconv, layers_mp: 2, layers_post_mp: 1, dim_inner: 8, l2norm: false, batchnorm: BATCHNORM,
      basis: "BASIS", theta: "THETA"}
model: {loss_fun: cross_entropy}
"""


@pytest.fixture
def cfg() -> Iterator[Any]:
    from torch_geometric.graphgym.config import cfg, set_cfg

    import pyg_basisconv.graphgym  # noqa: F401

    yield cfg
    set_cfg(cfg)


def model(cfg: Any, path: Path, basis: str, theta: str = "Full()", batchnorm: bool = True) -> Any:
    """A model of two layers, by way of a file."""
    from torch_geometric.graphgym.config import assert_cfg
    from torch_geometric.graphgym.model_builder import create_model

    text = YAML.replace("BASIS", basis).replace("THETA", theta).replace("BATCHNORM", str(batchnorm).lower())
    (path / "model.yaml").write_text(text)
    cfg.merge_from_file(str(path / "model.yaml"))
    assert_cfg(cfg)
    return create_model(to_device=False, dim_in=5, dim_out=3)


def graphs(**attributes: Any) -> Batch:
    def one(N: int) -> Data:
        data = Data(x=torch.randn(N, 5), edge_index=torch.randint(N, (2, 20)), y=torch.randint(3, (N,)))
        data.train_mask = torch.arange(N) < 4
        for name, value in attributes.items():
            data[name] = value(20)
        return data

    return Batch.from_data_list([one(6), one(8)])


CASES = {
    "gcn": ("Adjacency('sym', self_loops=True)", "Full()", {}),
    "chebyshev": ("Identity() + Chebyshev(K=3)", "Separable(2)", {}),
    "attention": (
        "Attention(2, Additive(projected=True).then(LeakyReLU(0.2)), Adjacency(self_loops=True))",
        "Heads()",
        {},
    ),
    "weights": ("Adjacency('mean')", "Full()", {"edge_weight": torch.rand}),
    "types": ("Relations(3, 'mean')", "Full()", {"edge_type": lambda E: torch.randint(3, (E,))}),
    "types for others": ("Adjacency('mean')", "Full()", {"edge_type": lambda E: torch.randint(3, (E,))}),
    "features of edges": (
        "Attention(2, Dot(4, edge_dim=2), Adjacency())",
        "Heads()",
        {"edge_attr": lambda E: torch.randn(E, 2)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_of_training(cfg: Any, tmp_path: Path, name: str):
    basis, theta, attributes = CASES[name]
    network, batch = model(cfg, tmp_path, basis, theta), graphs(**attributes)
    from pyg_basisconv.expressions import read

    convs = [layer.layer.model for layer in network.mp.children()]
    assert [repr(conv.basis) for conv in convs] == [repr(read(basis))] * 2
    assert [conv.bias for conv in convs] == [None, None]  # batch normalisation follows
    (optimizer,), _ = network.configure_optimizers()
    before = [p.clone() for p in convs[0].parameters()]
    network.training_step(batch)["loss"].backward()
    optimizer.step()
    assert not any(torch.equal(p, q) for p, q in zip(before, convs[0].parameters(), strict=True))


def test_same_as_graphgym(cfg: Any, tmp_path: Path):
    ours = model(cfg, tmp_path, "Adjacency('sym', self_loops=True)", batchnorm=False)
    cfg.gnn.layer_type = "gcnconv"
    from torch_geometric.graphgym.model_builder import create_model

    theirs = create_model(to_device=False, dim_in=5, dim_out=3)
    with torch.no_grad():
        for mine, peer in zip(ours.mp.children(), theirs.mp.children(), strict=True):
            mine.layer.model.weight[0].copy_(peer.layer.model.lin.weight.t())
    ours.post_mp.load_state_dict(theirs.post_mp.state_dict())
    batch = graphs()
    for one in (ours, theirs):
        one.result = one(batch.clone())[0]
    torch.testing.assert_close(ours.result, theirs.result)


def test_graphs_of_a_batch_do_not_see_each_other(cfg: Any, tmp_path: Path):
    network, batch = model(cfg, tmp_path, "Attention(2, Dot(4), Complete())", "Heads()", batchnorm=False), graphs()
    y, other = network(batch.clone())[0], batch.clone()
    other.x[other.batch > 0] += 1
    z = network(other)[0]
    torch.testing.assert_close(y[:4], z[:4])  # four nodes of each graph are for training
    assert not torch.allclose(y[4:], z[4:])


def test_what_cannot_be(cfg: Any, tmp_path: Path):
    with pytest.raises(ValueError, match="did you mean 'Chebyshev'"):
        model(cfg, tmp_path, "Chebyshew(3)")
    with pytest.raises(ValueError, match="basis: expected a Basis"):
        model(cfg, tmp_path, "Full()")
    with pytest.raises(ValueError, match="theta: expected a Theta"):
        model(cfg, tmp_path, "Identity()", "Identity()")
