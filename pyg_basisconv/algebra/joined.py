"""The products of two families, written as mixtures of the matrices of one."""

from typing import NamedTuple

from ..bases import Basis

Rows = list[list[float]]


class Joined(NamedTuple):
    r"""A family that the products :math:`A'_k A''_l` are mixtures of.

    basis: of J matrices. mixtures: (J, K' K''), such that with :math:`\Theta_j` the mixture of the
    :math:`\Theta'_k \Theta''_l` by row j the layer is the same; None where the matrices are the products themselves.
    """

    basis: Basis
    mixtures: Rows | None = None


def unit(K: int) -> Rows:
    """The identity."""
    return [[float(i == j) for j in range(K)] for i in range(K)]
