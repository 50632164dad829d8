"""The orders of contraction of A, x and Theta, one per file. The plan prints them in this sequence."""

from .base import Contracted, ImageFunction, Order
from .compacted import Compacted
from .mixed import Mixed
from .native import NativeKernel
from .phi import Phi
from .sparse import AFirst, ThetaFirst

__all__ = ["LINKED", "ORDERS", "Contracted", "ImageFunction", "Order"]

LINKED = ThetaFirst.name  # always possible, and without products between nodes that are not linked

ORDERS: dict[str, Order] = {
    order.name: order for order in (AFirst(), ThetaFirst(), Phi(), NativeKernel(), Compacted(), Mixed())
}
