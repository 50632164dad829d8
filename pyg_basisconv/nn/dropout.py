"""Dropout of features that may be sparse."""

import torch
from torch import Tensor
from torch.nn.functional import dropout

from ..cache import constituents


class Dropout(torch.nn.Dropout):
    r"""`torch.nn.Dropout`, which also takes a sparse x, in CSR, CSC or COO layout, and keeps the layout.

    A zero is zero whether it is dropped or not, so numbers are drawn for the entries that are there alone. (For a
    sparse x, `torch.nn.Dropout` and `F.dropout` raise a `NotImplementedError`.)

    Args:
        p: the probability that a value is dropped; the others are divided by 1 - p.
        inplace: whether a dense x is changed itself.

    >>> x = torch.eye(1000).to_sparse_csr()
    >>> dropped = Dropout(0.5)(x)
    >>> dropped.layout, sorted(set(dropped.values().tolist()))
    (torch.sparse_csr, [0.0, 2.0])
    >>> Dropout(0.5).eval()(x) is x
    True
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.layout == torch.strided or not self.training:
            return super().forward(input)
        x = input.coalesce() if input.layout == torch.sparse_coo else input
        *ends, values = constituents(x)  # the very indices, by which a layer knows the pattern again
        values = dropout(values, self.p)
        if x.layout == torch.sparse_coo:
            return torch.sparse_coo_tensor(ends[0], values, x.shape, device=x.device, is_coalesced=True)
        return torch.sparse_compressed_tensor(ends[0], ends[1], values, x.shape, layout=x.layout, device=x.device)
