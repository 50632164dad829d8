"""A whole layer as one operator, for `torch.compile`.

A compiled graph contains `torch.ops.basisconv.layer`, whose result's shape is known while torch.compile traces. When
the graph runs, the operator evaluates the layer as if it were not compiled: the call is checked, bound and planned, and
reads the same caches. Its derivative is an operator too, which replays what autograd recorded in the first.

`serial` gives layers the numbers by which operators name them; `arguments` brings the arguments of a call to the few
types that operators take; `recording` keeps what autograd recorded; `operator` defines the two operators.
"""

from .operator import applies, results
from .serial import serial_number

__all__ = ["applies", "results", "serial_number"]
