"""Models of several layers."""

from copy import deepcopy
from typing import Any

from torch import Tensor
from torch_geometric.nn.models.basic_gnn import BasicGNN

from .basis import Basis, BoundBasis
from .conv import BasisConv
from .errors import check_count, reject
from .theta import Theta


class BasisGNN(BasicGNN):
    r"""A stack of `BasisConv`s, with the interface of PyG's models, such as `torch_geometric.nn.GCN`.

    The basis and the parameter are given once, as for one layer; each layer gets copies. To have another layer
    somewhere, replace it afterwards: `model.convs[0] = BasisConv(...)`.

    Args:
        in_channels: P, or -1 to find it in the first call; or (P, P') as in `BasisConv`.
        hidden_channels: the width of the hidden layers.
        num_layers: the number of layers.
        out_channels: Q; `hidden_channels` where None.
        basis: the family A, see `pyg_basisconv.bases`.
        theta: the kind of parameter, see `pyg_basisconv.theta`; `theta.Full()` by default.
        out_theta: that of the layer with `out_channels`, if it differs: a GAT concatenates the heads of hidden layers,
            and averages those of the last one.
        dropout: the probability that a hidden value is dropped, in training.
        act: the activation, by name or as a function.
        act_first: whether it comes before the normalisation.
        act_kwargs: its arguments.
        norm: the normalisation, by name or as a function.
        norm_kwargs: its arguments.
        jk: how the layers' results are joined: None, 'last', 'cat', 'max' or 'lstm'.
        **kwargs: of `BasisConv`, such as `order` and `bias`.

    >>> import torch
    >>> from pyg_basisconv import bases
    >>> from pyg_basisconv.models import BasisGNN
    >>> model = BasisGNN(16, 32, num_layers=3, out_channels=7, basis=bases.Chebyshev(K=3), norm='batch_norm', jk='cat')
    >>> model(torch.randn(5, 16), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])).shape
    torch.Size([5, 7])
    """

    supports_edge_weight = True
    supports_edge_attr = True

    def init_conv(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        basis: Basis | None = None,
        theta: Theta | None = None,
        out_theta: Theta | None = None,
        **kwargs: Any,
    ) -> BasisConv:
        """One layer, with copies of the basis and the parameter."""
        if not isinstance(basis, Basis):
            reject("basis", "a Basis", repr(basis), "choose one from pyg_basisconv.bases, such as bases.Chebyshev(3)")
        check_count("num_layers", self.num_layers)
        if out_theta is not None and getattr(self, "_is_conv_to_out", False):
            theta = out_theta
        return BasisConv(in_channels, out_channels, deepcopy(basis), deepcopy(theta), **kwargs)

    def forward(
        self,
        x: Tensor,
        edge_index: Any,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        batch_size: int | None = None,
        num_sampled_nodes_per_hop: list[int] | None = None,
        num_sampled_edges_per_hop: list[int] | None = None,
        edge_type: Tensor | None = None,
    ) -> Tensor:
        r"""Applies the layers.

        Args:
            x: (N, P) features of the nodes.
            edge_index: (2, E), or any other graph that `BasisConv` takes, such as a bound basis.
            edge_weight: (E,) weights of the edges.
            edge_attr: (E, R) features of the edges, for bases that read them.
            batch: (N,) the graph that each node belongs to, for bases and normalisations that read it.
            batch_size: the number of graphs.
            num_sampled_nodes_per_hop: of `NeighborLoader`, to leave out nodes that no later layer reads.
            num_sampled_edges_per_hop: the same for edges.
            edge_type: (E,) types of the edges, for bases of typed edges.
        """
        if num_sampled_nodes_per_hop is not None and isinstance(edge_index, BoundBasis):
            fix = "pass the edges, which are bound as far as each layer reads them"
            reject("edge_index", "edges, from which some are left out", type(edge_index).__name__, fix)
        results: list[Tensor] = []
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            if num_sampled_nodes_per_hop is not None:
                sampled, whole = (i, num_sampled_nodes_per_hop, num_sampled_edges_per_hop), (x, edge_index)
                x, edge_index, edge_weight = self._trim(*sampled, *whole, edge_weight)
                _, _, edge_attr = self._trim(*sampled, *whole, edge_attr)
                _, _, edge_type = self._trim(*sampled, *whole, edge_type)
                batch = None if batch is None else batch[: x.shape[-2]]
            bound = isinstance(edge_index, BoundBasis)
            edges, graphs = edge_index if bound or conv.basis.takes_edges else None, None if bound else batch
            x = conv(x, edges, edge_weight=edge_weight, edge_type=edge_type, edge_attr=edge_attr, batch=graphs)
            if i == self.num_layers - 1 and self.jk_mode is None:
                return x
            if self.act is not None and self.act_first:
                x = self.act(x)
            x = norm(x, batch, batch_size) if self.supports_norm_batch else norm(x)
            if self.act is not None and not self.act_first:
                x = self.act(x)
            x = self.dropout(x)
            results.append(x)
        return self.lin(self.jk(results) if hasattr(self, "jk") else x)
