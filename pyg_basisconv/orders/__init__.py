"""The orders of contraction of A, x and Theta, each in a file of its own; the plan prints them as they stand here."""

from .base import Contracted, OnImage, Order
from .compacted import Compacted
from .mixed import Mixed
from .native import Natively
from .phi import Phi
from .sparse import AFirst, ThetaFirst

__all__ = ["LINKED", "ORDERS", "Contracted", "OnImage", "Order"]

LINKED = ThetaFirst.name  # the order in which only what is linked meets, and which is always possible

ORDERS: dict[str, Order] = {
    order.name: order for order in (AFirst(), ThetaFirst(), Phi(), Natively(), Compacted(), Mixed())
}
