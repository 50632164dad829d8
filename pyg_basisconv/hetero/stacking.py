"""Converts features of node types to rows of one x, in the order of `data.to_homogeneous()`, and back."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from ..errors import reject, shape_or_type

__all__ = ["split", "stack"]

_STACKED = (torch.strided, torch.sparse_coo)


def stack(x_dict: Mapping[str, Tensor], data: HeteroData) -> Tensor:
    r"""Concatenates the features of all node types, in the order of `data.node_types`.

    Args:
        x_dict: the features of each node type, all of one width.
        data: the graph, for its node types and their sizes.

    Shapes:
        - x_dict[t]: (\*, N_t, P)
        - result: (\*, N, P), :math:`N = \sum_t N_t`

    >>> import torch
    >>> from torch_geometric.data import HeteroData
    >>> data = HeteroData(actor={'num_nodes': 3}, film={'num_nodes': 2})
    >>> stack({'film': torch.ones(2, 8), 'actor': torch.zeros(3, 8)}, data)[:, 0]
    tensor([0., 0., 0., 1., 1.])
    """
    sizes = _sizes(data)
    if not isinstance(x_dict, Mapping):
        reject("x_dict", "a dict from node types to features", type(x_dict).__name__, "pass data.x_dict")
    other = sorted(map(repr, set(sizes) ^ set(x_dict)))
    if other:
        reject("x_dict", f"features of the node types {list(sizes)}", f"{list(x_dict)}", f"see to {', '.join(other)}")
    for name, N in sizes.items():
        x = x_dict[name]
        if not isinstance(x, Tensor) or x.dim() < 2 or x.shape[-2] != N:
            fix = f"give a row for each node of type {name!r}"
            reject(f"x_dict[{name!r}]", f"(*, {N}, P)", shape_or_type(x), fix)
    shapes = {name: (*x_dict[name].shape[:-2], x_dict[name].shape[-1]) for name in sizes}
    if len(set(shapes.values())) > 1:
        fix = "give each type a linear layer to the same width"
        reject("x_dict", "one width, and the same batch dimensions, for all node types", shapes, fix)
    kinds = {name: (x_dict[name].dtype, x_dict[name].layout) for name in sizes}
    if len(set(kinds.values())) > 1 or any(layout not in _STACKED for _, layout in kinds.values()):
        fix = "convert them with .to() and .to_dense()"
        reject("x_dict", "one dtype, and all of them dense or torch.sparse_coo, for all node types", kinds, fix)
    if not sizes:
        reject("data", "a HeteroData with nodes", "one without", "pass the graph that has the node types")
    return torch.cat([x_dict[name] for name in sizes], -2)


def split(y: Tensor, data: HeteroData) -> dict[str, Tensor]:
    r"""Splits y into the rows of each node type, as views.

    Args:
        y: a layer's result for the nodes of `data.to_homogeneous()`.
        data: the graph, for its node types and their sizes.

    Shapes:
        - y: (\*, N, Q), :math:`N = \sum_t N_t`
        - result[t]: (\*, N_t, Q)

    >>> import torch
    >>> from torch_geometric.data import HeteroData
    >>> from pyg_basisconv import BasisConv, bases
    >>> data = HeteroData(actor={'num_nodes': 3}, film={'num_nodes': 2})
    >>> data['actor', 'played_in', 'film'].edge_index = torch.tensor([[0, 1, 2, 2], [0, 0, 0, 1]])
    >>> x = stack({'actor': torch.randn(3, 8), 'film': torch.randn(2, 8)}, data)
    >>> graph = data.to_homogeneous()
    >>> conv = BasisConv(8, 4, bases.Relations.from_hetero(data, norm='mean', inverse=True, self_loop=True))
    >>> {name: tuple(t.shape) for name, t in split(conv(x, graph.edge_index, edge_type=graph.edge_type), data).items()}
    {'actor': (3, 4), 'film': (2, 4)}
    """
    sizes = _sizes(data)
    if not isinstance(y, Tensor) or y.layout != torch.strided or y.dim() < 2 or y.shape[-2] != sum(sizes.values()):
        fix = f"it has the nodes of {sizes} under each other"
        reject("y", f"(*, {sum(sizes.values())}, Q)", shape_or_type(y), fix)
    return dict(zip(sizes, y.split(list(sizes.values()), -2), strict=True))


def _sizes(data: HeteroData) -> dict[str, int]:
    """The number of nodes of each type, in order."""
    if not isinstance(data, HeteroData):
        reject("data", "a HeteroData", type(data).__name__, "pass the graph that has the node types")
    sizes = {name: data[name].num_nodes for name in data.node_types}
    for name, N in sizes.items():
        if N is None:
            reject("data", f"features or num_nodes of type {name!r}", "neither", f"set data[{name!r}].num_nodes")
    return sizes
