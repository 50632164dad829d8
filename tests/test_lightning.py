"""Lightning's Trainer runs a model as it is, on PyG's data modules."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.data.lightning import LightningDataset, LightningNodeData
from torch_geometric.nn import global_mean_pool

from examples.distributed import planted, sage, sampled
from pyg_basisconv import BasisConv, bases

lightning = pytest.importorskip("lightning")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*without a 'pyg-lib' installation"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),  # what Lightning calls of torch
]
QUIET = dict.fromkeys(["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)


class OfGraphs(nn.Module):
    """Scores of whole graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = BasisConv(4, 8, bases.Chebyshev(3))
        self.out = nn.Linear(8, 2)

    def forward(self, batch: Batch) -> Tensor:
        x = self.conv(batch.x, batch.edge_index, batch=batch.batch).relu()
        return self.out(global_mean_pool(x, batch.batch))


class OfNodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = sage(32, 16, 8, layers=2)

    def forward(self, batch: Data) -> Tensor:
        return self.net(batch.x, batch.edge_index)


class Module(lightning.LightningModule):
    """A model, and nothing that knows what its layers are."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.losses: list[float] = []

    def loss(self, batch: Data, mask: str) -> Tensor:
        scores, y = self.net(batch), batch.y
        if "batch_size" in batch:
            scores, y = scores[: batch.batch_size], y[: batch.batch_size]
        elif mask in batch:
            scores, y = scores[batch[mask]], y[batch[mask]]
        return F.cross_entropy(scores, y)

    def training_step(self, batch: Data, index: int) -> Tensor:
        loss = self.loss(batch, "train_mask")
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Data, index: int) -> None:
        self.log("validation", self.loss(batch, "val_mask"), batch_size=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 0.01)


def graphs(n: int) -> list[Data]:
    """Two kinds of random graphs, with larger features in one of them."""
    return [Data(x=torch.randn(6, 4) + i % 2, edge_index=torch.randint(6, (2, 12)), y=i % 2) for i in range(n)]


def whole() -> tuple[nn.Module, Any]:
    return OfNodes(), LightningNodeData(planted(400), loader="full")


def neighbours() -> tuple[nn.Module, Any]:
    if not sampled():
        pytest.skip("needs pyg-lib or torch_sparse")
    data = LightningNodeData(planted(400), loader="neighbor", num_neighbors=[5, 5], batch_size=50, pin_memory=False)
    return OfNodes(), data


def dataset() -> tuple[nn.Module, Any]:
    return OfGraphs(), LightningDataset(graphs(24), graphs(8), batch_size=8, pin_memory=False)


def trainer(folder: Path, epochs: int) -> Any:
    return lightning.Trainer(default_root_dir=folder, accelerator="cpu", devices=1, max_epochs=epochs, **QUIET)


@pytest.mark.parametrize("work", [whole, neighbours, dataset], ids=["whole graph", "NeighborLoader", "many graphs"])
def test_the_trainer_trains_saves_and_continues(work, tmp_path):
    net, data = work()
    start = {name: value.clone() for name, value in net.state_dict().items()}
    module, once = Module(net), trainer(tmp_path, 2)
    once.fit(module, data)
    assert once.callback_metrics["validation"].isfinite()
    assert all(not torch.equal(value, start[name]) for name, value in net.state_dict().items())
    path = tmp_path / "two.ckpt"
    once.save_checkpoint(path)

    again = Module.load_from_checkpoint(path, net=work()[0], weights_only=True)
    for name, value in net.state_dict().items():
        assert torch.equal(again.net.state_dict()[name], value)

    longer = trainer(tmp_path, 4)
    longer.fit(again, data, ckpt_path=path)
    assert len(again.losses) == len(module.losses)  # the other two epochs
    assert sum(again.losses) < sum(module.losses)
