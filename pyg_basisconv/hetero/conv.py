"""Convolution on graphs with several types of nodes and of edges."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch_geometric.nn.module_dict import ModuleDict
from torch_geometric.nn.parameter_dict import ParameterDict

from ..bases import Relations
from ..bases.relations import Norm
from ..conv import BasisConv
from ..errors import check_count, check_flags, reject, shape_or_type
from ..features import check_features
from ..theta import Full, Theta
from .edges import EdgeMask, EdgeType, TypeEdges, set_mask, typed_edges


class HeteroBasisConv(nn.Module):
    r"""Convolution along edges of several types: for the nodes of type t

    .. math:: y_t = \sum_{r: s \to t} A_r^\top x_s \, \Theta_r + x_t \Theta_t + b_t

    over the types of edges r into t, each from nodes of a type s. All edge types that start at nodes of one type are
    one operator, so that node types may differ in width; its targets, of all types, are concatenated.

    It replaces `torch_geometric.nn.HeteroConv` with a linear layer for each type of edges, and R-GCN.

    Args:
        in_channels: the width P of all types of nodes, or a dict with the width of each; -1 is found in the first call.
        out_channels: Q.
        metadata: the types of nodes and the types of edges, as `data.metadata()` has them.
        norm: how the edges of one type are normalised: 'mean', 'row', 'sym' or None, see `bases.Relations`.
        theta: the kind of parameter, copied for each type of nodes: `theta.Full()` by default, `theta.Grouped` or
            `theta.Separable`, the basis decomposition of R-GCN, for the types of edges that start there.
        root_weight: whether to add the second term, of the node's own features, for all types of nodes.
        bias: whether to add b.

    Attributes:
        convs: for each type of source nodes the `BasisConv` with the matrices of its edge types, in the order of the
            metadata.
        roots: for each type of nodes the parameter of the second term.
        bias: b, for each type of nodes.

    Shapes:
        - x_dict[t]: (\*, N_t, P_t)
        - edge_index_dict[s, r, t]: (2, E_r), or another layout of PyG, see `BasisConv.forward`
        - edge_weight_dict[s, r, t]: (E_r,)
        - result[t]: (\*, N_t, Q)

    >>> import torch
    >>> from pyg_basisconv.hetero import HeteroBasisConv
    >>> metadata = ['author', 'paper'], [('author', 'writes', 'paper'), ('paper', 'cites', 'paper')]
    >>> conv = HeteroBasisConv({'author': 8, 'paper': 16}, 4, metadata)
    >>> x_dict = {'author': torch.randn(2, 8), 'paper': torch.randn(3, 16)}
    >>> edges = {('author', 'writes', 'paper'): torch.tensor([[0, 1], [0, 2]])}  # nothing is cited in this batch
    >>> {t: tuple(y.shape) for t, y in conv(x_dict, edges).items()}
    {'author': (2, 4), 'paper': (3, 4)}
    """

    def __init__(
        self,
        in_channels: int | Mapping[str, int],
        out_channels: int,
        metadata: tuple[Sequence[str], Sequence[EdgeType]],
        norm: Norm = "mean",
        theta: Theta | None = None,
        root_weight: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.node_types, self.edge_types = _types(metadata)
        widths = _widths(in_channels, self.node_types)
        theta = Full() if theta is None else theta
        if not (isinstance(theta, Theta) and theta.of_types):
            reject("theta", "theta.Full(), theta.Grouped() or theta.Separable()", repr(theta), "others give no sums")
        check_flags(root_weight=root_weight, bias=bias)
        self.in_channels, self.out_channels, self.norm = in_channels, out_channels, norm
        self.starting: dict[str, list[EdgeType]] = {}  # the types of edges that start at each type of nodes
        for edge_type in self.edge_types:
            self.starting.setdefault(edge_type[0], []).append(edge_type)
        self.convs, self.roots, self.bias = ModuleDict(), ModuleDict(), ParameterDict()
        for t, starting in self.starting.items():
            basis = Relations(len(starting), norm)
            self.convs[t] = BasisConv(widths[t], out_channels, basis, deepcopy(theta), bias=False)
        self.masks = ModuleDict({t: EdgeMask() for t in self.edge_types})
        reached = {edge_type[2] for edge_type in self.edge_types}
        for t in self.node_types:
            if root_weight:
                self.roots[t] = Full().build(1, widths[t], out_channels)
            if bias and (root_weight or t in reached):
                self.bias[t] = nn.Parameter(torch.zeros(out_channels))

    def reset_parameters(self) -> None:
        """Resets all matrices, and sets the biases to zero."""
        for conv in self.convs.values():
            conv.reset_parameters()
        for root in self.roots.values():
            if not isinstance(root.weight, UninitializedParameter):  # the first call draws lazy ones
                root.reset_parameters()
        for bias in self.bias.values():
            nn.init.zeros_(bias)

    def forward(
        self,
        x_dict: Mapping[str, Tensor],
        edge_index_dict: Mapping[EdgeType, Any],
        edge_weight_dict: Mapping[EdgeType, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        r"""Applies the layer; returns y for each type of nodes that edges of this call reach, or that has a root term.

        Args:
            x_dict: the features of each type of nodes.
            edge_index_dict: the edges of each type; missing types have no edges.
            edge_weight_dict: their weights; ones for missing types.
        """
        explained = torch.compiler.is_dynamo_compiling() and any(mask.explain for mask in self.masks.values())
        evaluate = self._uncompiled if explained else self._evaluate
        return evaluate(x_dict, edge_index_dict, edge_weight_dict)

    def _evaluate(
        self,
        x_dict: Mapping[str, Tensor],
        edge_index_dict: Mapping[EdgeType, Any],
        edge_weight_dict: Mapping[EdgeType, Tensor] | None,
    ) -> dict[str, Tensor]:
        """Evaluates a call."""
        weights = {} if edge_weight_dict is None else edge_weight_dict
        sizes = self._check(x_dict, edge_index_dict, weights)
        result: dict[str, Tensor] = {}
        for s, starting in self.starting.items():
            present = [t for t in starting if t in edge_index_dict]
            if present:
                reached = {t[2]: sizes[t[2]] for t in present}
                first = dict(zip(reached, accumulate(reached.values(), initial=0), strict=False))
                parts = []
                for kind in present:
                    given, spans = (edge_index_dict[kind], weights.get(kind)), (first[kind[2]], reached[kind[2]])
                    parts.append(TypeEdges.of(kind, starting.index(kind), *given, sizes[s], *spans))
                if not torch.compiler.is_compiling():
                    set_mask([self.masks[t] for t in present], parts, self.convs[s])
                size = sizes[s], sum(reached.values())
                y = self.convs[s]((x_dict[s], None), *typed_edges(parts), size=size)
                for t, y_t in zip(reached, y.split(list(reached.values()), -2), strict=True):
                    result[t] = result[t] + y_t if t in result else y_t
        for t, root in self.roots.items():
            if t in x_dict:
                own = root.project(x_dict[t])[0]
                result[t] = result[t] + own if t in result else own
        for t, bias in self.bias.items():
            if t in result:
                result[t] = result[t] + bias.to(result[t].dtype)
        return {t: result[t] for t in self.node_types if t in result}

    _uncompiled = torch.compiler.disable(_evaluate)  # the compiled operator does not know an explainer's masks

    def _check(self, x_dict: Any, edge_index_dict: Any, edge_weight_dict: Any) -> dict[str, int]:
        """Checks a call; the number of nodes of each type."""
        for name, given, known in (
            ("x_dict", x_dict, self.node_types),
            ("edge_index_dict", edge_index_dict, self.edge_types),
            ("edge_weight_dict", edge_weight_dict, self.edge_types),
        ):
            if not isinstance(given, Mapping):
                reject(name, f"a dict with keys among {list(known)}", type(given).__name__, "as a HeteroData has it")
            for key in given:
                if key not in known:
                    reject(name, f"keys among {list(known)}", repr(key), "the metadata of the layer has to name it")
        for key in edge_weight_dict:
            if key not in edge_index_dict:
                reject("edge_weight_dict", f"weights of {list(edge_index_dict)}", repr(key), "give the edges as well")
        for t, x in x_dict.items():
            name = f"x_dict[{t!r}]"
            if t in self.convs:
                check_features(x, name, self.convs[t].theta)
            if t in self.roots:
                check_features(x, name, self.roots[t])
            if not isinstance(x, Tensor) or x.dim() < 2:  # of a type without parameters
                reject(name, "features of shape (*, N, P)", shape_or_type(x), "they say how many nodes there are")
        for edge_type in edge_index_dict:
            for node_type in (edge_type[0], edge_type[2]):
                if node_type not in x_dict:
                    fix = "they say how many nodes there are; or leave out the edges"
                    reject("x_dict", f"features of {node_type!r}, for the edges {edge_type}", list(x_dict), fix)
        batches = {t: tuple(x.shape[:-2]) for t, x in x_dict.items()}
        if len(set(batches.values())) > 1:
            reject("x_dict", "the same batch dimensions for all types of nodes", batches, "expand them to the same")
        return {t: x.shape[-2] for t, x in x_dict.items()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, num_relations={len(self.edge_types)})"


def _types(metadata: Any) -> tuple[list[str], list[EdgeType]]:
    """The types of nodes and of edges, checked."""
    fix = "pass data.metadata()"
    if not isinstance(metadata, tuple | list) or len(metadata) != 2:
        reject("metadata", "(types of nodes, types of edges)", repr(metadata), fix)
    nodes, edges = (list(part) if isinstance(part, tuple | list) else [] for part in metadata)
    if not edges or not all(isinstance(t, str) for t in nodes):
        reject("metadata", "lists of names of nodes and of types of edges, not empty", repr(metadata), fix)
    for t in edges:
        triple = isinstance(t, tuple | list) and len(t) == 3 and all(isinstance(name, str) for name in t)
        if not triple or t[0] not in nodes or t[2] not in nodes:
            reject("metadata", f"triples (source, relation, target) of {nodes}", repr(t), fix)
    for kinds in (nodes, edges):  # submodules are named after them, with '#' for '.'
        if len({ModuleDict.to_internal_key(tuple(t) if isinstance(t, list) else t) for t in kinds}) < len(kinds):
            reject("metadata", "each type once, also with '#' for '.'", repr(kinds), fix)
    if "" in nodes:
        reject("metadata", "names of nodes", repr(nodes), "give each type of nodes a name")
    return nodes, [tuple(t) for t in edges]


def _widths(in_channels: Any, node_types: list[str]) -> Mapping[str, int]:
    """The width of each type of nodes."""
    widths = in_channels if isinstance(in_channels, Mapping) else dict.fromkeys(node_types, in_channels)
    if set(widths) != set(node_types):
        fix = f"correct {sorted(set(widths) ^ set(node_types))}; a width of -1 is found in the first call"
        reject("in_channels", f"a width for each of {node_types}", dict(widths), fix)
    for width in widths.values():
        if width != -1:
            check_count("in_channels", width)
    return widths
