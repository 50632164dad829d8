"""What a layer is to PyG: its message passing path, with its hooks, and the masks of its explainers."""

from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch_geometric.nn.conv import MessagePassing

from .basis import BoundBasis
from .errors import check_arguments, reject
from .graph import Graph
from .sparse import Sparse


class Messages(MessagePassing):
    """A layer that passes messages only where it is asked to: by `fuse = False`, by hooks on messages, by
    `decomposed_layers`, or by an explainer that replaces `explain_message`.
    """

    def __init__(self, **kwargs: Any) -> None:
        check_arguments(kwargs)
        kwargs.setdefault("aggr", "add")
        if kwargs["aggr"] not in ("add", "sum"):
            reject("aggr", "'add'", repr(kwargs["aggr"]), "a mean is in the basis: bases.Adjacency('mean')")
        if kwargs.get("node_dim", -2) != -2:
            reject("node_dim", "-2", kwargs["node_dim"], "move the nodes to the axis before the last")
        super().__init__(**kwargs)
        self._observers = (
            *(self._propagate_forward_pre_hooks, self._propagate_forward_hooks),
            *(self._message_forward_pre_hooks, self._message_forward_hooks),
            *(self._aggregate_forward_pre_hooks, self._aggregate_forward_hooks),
        )
        self._alpha: Tensor | None = None
        self.fuse = True  # False takes the message passing path, as in PyG

    @property
    def is_explained(self) -> bool:
        """Whether an explainer has set a mask on it."""
        return bool(self.explain)

    # PyG's inspector reads this signature, and knows Optional but not the bar.
    def message(self, x_j: Tensor, weight: Optional[Tensor]) -> Tensor:  # noqa: UP045
        """The message along an edge of one basis matrix."""
        return x_j if weight is None else weight.unsqueeze(-1) * x_j

    def with_messages(self, family: BoundBasis) -> BoundBasis:
        """A family whose matrices are applied by message passing."""
        self._alpha = family.alpha if self._message_forward_hooks else None
        return family.map(lambda part: part.via(self._by_messages))

    def _by_messages(self, matrix: Sparse, x: Tensor) -> Tensor:
        """A^T x for one sparse matrix, as PyG's message passing."""
        pattern = matrix.pattern
        edge_index = torch.stack([pattern.source.long(), pattern.target.long()])
        size = (pattern.M, pattern.N)
        if self.flow == "target_to_source":
            edge_index, size = edge_index.flip(0), size[::-1]
        pieces, width = self._decomposed_layers, x.shape[-1]
        if len(x.chunk(pieces, -1)) < pieces:  # PyG counts on as many
            x = pad(x, (0, pieces * -(-width // pieces) - width))
        y: Tensor = self.propagate(edge_index, size=size, x=x, weight=matrix.weight)
        self._alpha = None  # PyG's AttentionExplainer reads it once
        return y[..., :width]

    def explain_message(self, inputs: Tensor, dim_size: Optional[int]) -> Tensor:  # noqa: UP045
        """The messages unchanged, as edges are masked when the basis is bound."""
        return inputs

    @property
    def _explained_otherwise(self) -> bool:
        """Whether `explain_message` was replaced, as PyG's GraphMaskExplainer does."""
        return getattr(self.explain_message, "__func__", None) is not Messages.explain_message

    @property
    def numbers_edges(self) -> bool:
        """Whether there are hooks on messages, which may read the weights of attention by edge."""
        return bool(self._message_forward_hooks)

    def masked(self, graph: Graph) -> Graph:
        """The graph with the mask that an explainer has set for its edges."""
        if not self.explain or self._explained_otherwise:
            return graph
        mask, E = self._edge_mask, graph.source.numel()
        if mask is None:
            reject("explain", "a mask, where it is True", None, "call an Explainer, or set explain = None")
        if self._apply_sigmoid:
            mask = mask.sigmoid()
        given = mask.numel()
        if given != E and self._loop_mask is not None:  # the caller of the layer has removed loops, or replaced them
            mask = mask[self._loop_mask]
            mask = torch.cat([mask, mask.new_ones(graph.N if mask.numel() + graph.N == E else 0)])
        if mask.numel() != E:
            fix = "set explain = False on layers that have edges of their own"
            reject("edge_index", f"the {given} edges that are explained", E, fix)
        return graph.masked(mask)

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """Does nothing: PyG would generate a module from this source for each layer, which nothing here needs."""
        cls = type(self)
        cls._orig_propagate = cls._jinja_propagate = cls.propagate
