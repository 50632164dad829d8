"""Wrong input is refused at the door, with the argument, what was expected, what came, and the fix."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from pyg_basisconv import BasisConv, GridConv, bases, compose, mechanisms, theta
from pyg_basisconv.graph import Graph
from pyg_basisconv.reading import read_graph
from tests.contract import refused

EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 3]])
X = torch.ones(5, 3)
Z = torch.tensor([[0.0, 0.5], [1.0, 0.25], [0.5, 0.5], [1.0, 0.0]])  # features of these edges
ADJ = torch.sparse_coo_tensor(EDGES.flip(0), torch.ones(4), (5, 5))


def conv(basis: bases.Basis | None = None, **kwargs) -> BasisConv:
    return BasisConv(3, 2, bases.Adjacency() if basis is None else basis, **kwargs)


def edges(*pairs: tuple[int, int]) -> Tensor:
    return torch.tensor(pairs).t()


CALLS: dict[str, tuple[str, Callable[[], Any]]] = {
    # what is wrong: (the argument that the message names, the call)
    "no member": ("z", lambda: (bases.Identity() + bases.Adjacency()).bind(EDGES).combine([None, None])),
    "no member of a mixture": ("z", lambda: (3 * bases.Adjacency()).bind(EDGES).combine([None])),
    "no member of powers": ("z", lambda: bases.Powers(2).bind(EDGES).combine([None, None])),
    "no member of edges": ("z", lambda: bases.Edges(2).bind(EDGES, torch.ones(4, 2)).combine([None, None])),
    "edge_index negative": ("edge_index", lambda: conv()(X, edges((0, 1), (-1, 2)))),
    "edge_index source too large": ("edge_index", lambda: conv()(X, edges((5, 1)))),
    "edge_index target too large": ("edge_index", lambda: conv()(X, edges((1, 5)))),
    "edge_index target too large for x_dst": ("edge_index", lambda: conv()((X, X[:2]), EDGES)),
    "edge_index float": ("edge_index", lambda: conv()(X, EDGES.float())),
    "edge_index bool": ("edge_index", lambda: conv()(X, EDGES.bool())),
    "edge_index int16": ("edge_index", lambda: conv()(X, EDGES.short())),
    "edge_index (E, 2)": ("edge_index", lambda: conv()(X, EDGES.t())),
    "edge_index 1d": ("edge_index", lambda: conv()(X, EDGES[0])),
    "edge_index 3d": ("edge_index", lambda: conv()(X, EDGES[None])),
    "edge_index numpy": ("edge_index", lambda: conv()(X, np.zeros((2, 1), dtype=np.int64))),
    "edge_index list": ("edge_index", lambda: conv()(X, EDGES.tolist())),
    "edge_index missing": ("edge_index", lambda: conv()(X)),
    "edge_index missing in a sum": ("edge_index", lambda: conv(bases.Identity() + bases.Adjacency())(X)),
    "edge_index missing in powers": ("edge_index", lambda: conv(bases.Powers(2))(X)),
    "edge_index elsewhere": ("edge_index", lambda: conv()(X, EDGES.to("meta"))),
    "edge_index a family": ("edge_index", lambda: conv()(X, bases.Adjacency())),
    "edge_index sparse of other size": ("edge_index", lambda: conv()(torch.ones(4, 3), ADJ)),
    "edge_index sparse 3d": (
        "edge_index",
        lambda: conv()(X, torch.sparse_coo_tensor(torch.zeros(3, 1).long(), torch.ones(1), (5, 5, 5))),
    ),
    "edge_index sparse with vectors": (
        "edge_index",
        lambda: conv()(X, torch.sparse_coo_tensor(EDGES, torch.ones(4, 2), (5, 5, 2))),
    ),
    "edge_index sparse BSR": ("edge_index", lambda: conv()(torch.ones(4, 3), torch.eye(4).to_sparse_bsr((2, 2)))),
    "edge_index sparse of float64": ("edge_", lambda: conv()(X, ADJ.double())),
    "edge_index sparse and turned": ("edge_index", lambda: conv(flow="target_to_source")(X, ADJ)),
    "EdgeIndex of other size": ("edge_index", lambda: conv()(X, EdgeIndex(EDGES, sparse_size=(4, 4)))),
    "edge_weight beside a sparse matrix": ("edge_weight", lambda: conv()(X, ADJ, torch.ones(4))),
    "edge_weight too short": ("edge_weight", lambda: conv()(X, EDGES, torch.ones(3))),
    "edge_weight of no edges": ("edge_weight", lambda: conv(bases.Identity())(X, None, torch.ones(3))),
    "edge_weight (1, E)": ("edge_weight", lambda: conv()(X, EDGES, torch.ones(1, 4))),
    "edge_weight (E, 2) of an adjacency": ("edge_weight", lambda: conv()(X, EDGES, torch.ones(4, 2))),
    "edge_weight (E, 1) of an adjacency": ("edge_weight", lambda: conv()(X, EDGES, torch.ones(4, 1))),
    "edge_weight (E, 2) of a normalised adjacency": (
        "edge_weight",
        lambda: conv(bases.Adjacency("sym", True))(X, EDGES, torch.ones(4, 2)),
    ),
    "edge_weight (E, 2) of a degree": ("edge_weight", lambda: conv(bases.Degree())(X, EDGES, torch.ones(4, 2))),
    "edge_weight (E, 2) of a Laplacian": ("edge_weight", lambda: conv(bases.Laplacian())(X, EDGES, torch.ones(4, 2))),
    "edge_weight scalar": ("edge_weight", lambda: conv()(X, EDGES, torch.tensor(1.0))),
    "edge_weight float64": ("edge_weight", lambda: conv()(X, EDGES, torch.ones(4).double())),
    "edge_weight integer": ("edge_weight", lambda: conv()(X, EDGES, torch.ones(4).long())),
    "edge_weight a batch": ("edge_weight", lambda: conv()(X, EDGES, torch.zeros(5).long())),
    "batch of several grids": ("batch", lambda: conv(bases.Shifts(None, [1]))(X, batch=torch.tensor([0, 0, 0, 1, 1]))),
    "batch of several grids, in a sum": (
        "batch",
        lambda: conv(bases.Shifts(None, [1]) + bases.Adjacency())(X, EDGES, batch=torch.tensor([0, 0, 0, 1, 1])),
    ),
    "edge_weight integer, bound": ("edge_weight", lambda: bases.Adjacency().bind(EDGES, torch.ones(4).long())),
    "edge_weight number": ("edge_weight", lambda: conv()(X, EDGES, 2.0)),
    "edge_weight list": ("edge_weight", lambda: conv()(X, EDGES, [1.0] * 4)),
    "edge_weight elsewhere": ("edge_weight", lambda: conv()(X, EDGES, torch.ones(4, device="meta"))),
    "edge_weight with negative degrees": (
        "edge_weight",
        lambda: conv(bases.Adjacency("sym"))(X, EDGES, -torch.ones(4)),
    ),
    "edge_weight with negative degrees, Laplacian": (
        "edge_weight",
        lambda: conv(bases.Laplacian("sym"))(X, EDGES, -torch.ones(4)),
    ),
    "edge_weight with negative degrees, Chebyshev": (
        "edge_weight",
        lambda: conv(bases.Chebyshev(3))(X, EDGES, -torch.ones(4)),
    ),
    "edge_weight of other K": ("edge_weight", lambda: conv(bases.Edges(3))(X, EDGES, torch.ones(4, 2))),
    "edge_weight of Edges(1) with K = 2": ("edge_weight", lambda: conv(bases.Edges())(X, EDGES, torch.ones(4, 2))),
    "edge_weight (E, K) beside types": (
        "edge_weight",
        lambda: conv(bases.Edges(2))(X, EDGES, torch.ones(4, 2), torch.zeros(4).long()),
    ),
    "edge_type missing": ("edge_type", lambda: conv(bases.Edges(2))(X, EDGES)),
    "edge_type missing beside weights": ("edge_type", lambda: conv(bases.Edges(3))(X, EDGES, torch.ones(4))),
    "edge_type too large": ("edge_type", lambda: conv(bases.Edges(3))(X, EDGES, None, torch.tensor([0, 1, 2, 3]))),
    "edge_type negative": ("edge_type", lambda: conv(bases.Edges(3))(X, EDGES, None, torch.tensor([0, 1, 2, -1]))),
    "edge_type too short": ("edge_type", lambda: conv(bases.Edges(3))(X, EDGES, None, torch.tensor([0, 1]))),
    "edge_type float": ("edge_type", lambda: conv(bases.Edges(3))(X, EDGES, None, torch.ones(4))),
    "edge_type list": ("edge_type", lambda: conv(bases.Edges(3))(X, EDGES, None, [0, 1, 2, 0])),
    "edge_type one-hot": ("edge_type", lambda: conv(bases.Edges(3))(X, EDGES, None, torch.ones(4, 3).long())),
    "edge_type elsewhere": (
        "edge_type",
        lambda: conv(bases.Edges(3))(X, EDGES, None, torch.ones(4, device="meta").long()),
    ),
    "edge_type of Edges(1)": ("edge_type", lambda: conv(bases.Edges())(X, EDGES, None, torch.ones(4).long())),
    "x of other width": ("x", lambda: conv()(torch.ones(5, 4), EDGES)),
    "x of other width, x_dst": ("x", lambda: conv(bases.Identity())((X, torch.ones(2, 4)), None)),
    "x of other width, unread x_dst": ("x", lambda: conv(bases.Identity() + bases.Adjacency())((X, X[:, :2]), EDGES)),
    "x 1d": ("x", lambda: conv()(torch.ones(3), EDGES)),
    "x integer": ("x", lambda: conv()(X.long(), EDGES)),
    "x complex": ("x", lambda: conv()(X.cfloat(), EDGES)),
    "x float64": ("x", lambda: conv()(X.double(), EDGES)),
    "x elsewhere": ("x", lambda: conv()(X.to("meta"), EDGES)),
    "x list of numbers": ("x", lambda: conv()(X.tolist(), EDGES)),
    "x numpy": ("x", lambda: conv()(X.numpy(), EDGES)),
    "x None": ("x", lambda: conv()(None, EDGES)),
    "x of three": ("x", lambda: conv()((X, X, X), EDGES)),
    "x of one": ("x", lambda: conv()((X,), EDGES)),
    "x_src None": ("x", lambda: conv()((None, X), EDGES)),
    "x_dst a number": ("x", lambda: conv()((X, 5), EDGES)),
    "x_dst 1d": ("x", lambda: conv()((X, torch.ones(3)), EDGES)),
    "x_dst of another batch": ("x", lambda: conv(bases.Identity())((X.expand(2, 5, 3), X[:2]), None)),
    "x_dst of another dtype": ("x", lambda: conv(bases.Identity())((X, X[:2].double()), None)),
    "x sparse pair": ("x", lambda: conv(bases.Identity())((X.to_sparse_csr(), X[:2].to_sparse_csr()), None)),
    "x sparse with vectors": (
        "x",
        lambda: conv()(torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.ones(2, 3), (5, 3)), EDGES),
    ),
    "x sparse BSR": ("x", lambda: BasisConv(4, 2, bases.Adjacency())(torch.ones(6, 4).to_sparse_bsr((2, 2)), EDGES)),
    "x sparse batch": ("x", lambda: conv()(X.expand(2, 5, 3).to_sparse_coo(), EDGES)),
    "size of x": ("size", lambda: conv()(X, EDGES, size=(4, 5))),
    "size of x_src": ("size", lambda: conv()((X, None), EDGES, size=(4, 5))),
    "size of x_dst": ("size", lambda: conv()((X, X), EDGES, size=(5, 4))),
    "size of three": ("size", lambda: conv()(X, EDGES, size=(5, 5, 5))),
    "size a list of words": ("size", lambda: conv()(X, EDGES, size=["5", "5"])),
    "size float": ("size", lambda: conv()(X, EDGES, size=(5, 5.0))),
    "size negative": ("size", lambda: bases.Identity().bind(size=-1)),
    "size of three, bound": ("size", lambda: bases.Adjacency().bind(EDGES, size=(4, 4, 4))),
    "size too small, bound": ("edge_index", lambda: bases.Adjacency().bind(EDGES, size=3)),
    "size missing": ("size", lambda: bases.Identity().bind()),
    "size of a target that is read": ("size", lambda: conv(bases.Identity())(X, None, size=(5, 4))),
    "batch too short": (
        "batch",
        lambda: conv(bases.Chebyshev(2))(X, EDGES, batch=torch.zeros(4).long(), lambda_max=torch.ones(2)),
    ),
    "batch float": (
        "batch",
        lambda: conv(bases.Chebyshev(2))(X, EDGES, batch=torch.zeros(5), lambda_max=torch.ones(2)),
    ),
    "batch negative": (
        "batch",
        lambda: conv(bases.Chebyshev(2))(X, EDGES, batch=torch.tensor([0, 0, 0, 0, -1]), lambda_max=torch.ones(2)),
    ),
    "batch list": ("batch", lambda: conv(bases.Chebyshev(2))(X, EDGES, batch=[0] * 5, lambda_max=torch.ones(2))),
    "lambda_max of too few graphs": (
        "lambda_max",
        lambda: conv(bases.Chebyshev(2))(X, EDGES, batch=torch.tensor([0, 0, 0, 1, 2]), lambda_max=torch.ones(2)),
    ),
    "lambda_max per graph without batch": (
        "lambda_max",
        lambda: conv(bases.Chebyshev(2))(X, EDGES, lambda_max=torch.ones(2)),
    ),
    "lambda_max nan": ("lambda_max", lambda: conv(bases.Chebyshev(2))(X, EDGES, lambda_max=float("nan"))),
    "lambda_max nan tensor": (
        "lambda_max",
        lambda: conv(bases.Chebyshev(2))(X, EDGES, lambda_max=torch.tensor([float("nan")])),
    ),
    "lambda_max zero": ("lambda_max", lambda: conv(bases.Chebyshev(2))(X, EDGES, lambda_max=0.0)),
    "lambda_max infinite": ("lambda_max", lambda: conv(bases.Chebyshev(2))(X, EDGES, lambda_max=float("inf"))),
    "lambda_max empty": ("lambda_max", lambda: conv(bases.Chebyshev(2))(X, EDGES, lambda_max=torch.ones(0))),
    "lambda_max str": ("lambda_max", lambda: conv(bases.Chebyshev(2))(X, EDGES, lambda_max="sym")),
    "lambda_max elsewhere": (
        "lambda_max",
        lambda: conv(bases.Chebyshev(2))(X, EDGES, lambda_max=torch.ones(1, device="meta")),
    ),
    "lambda_max of a basis str": ("lambda_max", lambda: bases.Chebyshev(2, "sym", "exact")),
    "graph not square, sym": ("graph", lambda: conv(bases.Adjacency("sym"))((X, None), EDGES, size=(5, 4))),
    "graph not square, loops": ("graph", lambda: conv(bases.Adjacency(None, True))((X, None), EDGES, size=(5, 4))),
    "graph not square, Laplacian": ("graph", lambda: conv(bases.Laplacian())((X, None), EDGES, size=(5, 4))),
    "graph not square, Powers": (
        "graph",
        lambda: conv(bases.Powers(2, bases.Adjacency()))((X, None), EDGES, size=(5, 4)),
    ),
    "graph not square, Diffusion": ("graph", lambda: conv(bases.Diffusion(2))((X, None), EDGES, size=(5, 4))),
    "graph not square, product": (
        "basis",
        lambda: conv(bases.Adjacency() @ bases.Adjacency())((X, None), EDGES, size=(5, 4)),
    ),
    "graph not square, sum": (
        "basis",
        lambda: conv(bases.Adjacency() + bases.Adjacency().T)((X, None), EDGES, size=(5, 4)),
    ),
    "graph not square, transposed": ("", lambda: conv(bases.Adjacency().T)((X, None), EDGES, size=(5, 4))),
    "bound of other K": ("edge_index", lambda: conv()(X, bases.Powers(2).bind(EDGES, size=5))),
    "bound of other M": ("edge_index", lambda: conv()(X, bases.Adjacency().bind(EDGES, size=4))),
    "bound of other N": ("", lambda: conv()((X, X[:4]), bases.Adjacency().bind(EDGES, size=5))),
    "bound of other N by size": ("", lambda: conv()(X, bases.Adjacency().bind(EDGES, size=5), size=(5, 4))),
    "bound of float64": ("edge_index", lambda: conv()(X, bases.Adjacency().bind(EDGES, size=5, dtype=torch.float64))),
    "bound elsewhere": ("edge_index", lambda: conv()(X, bases.Adjacency().bind(EDGES, size=5).to("meta"))),
    "bound and edge_weight": ("edge_weight", lambda: conv()(X, bases.Adjacency().bind(EDGES, size=5), torch.ones(4))),
    "bound and edge_type": (
        "edge_type",
        lambda: conv()(X, bases.Adjacency().bind(EDGES, size=5), None, torch.ones(4).long()),
    ),
    "bound and lambda_max": (
        "lambda_max",
        lambda: conv(bases.Chebyshev(2))(X, bases.Chebyshev(2).bind(EDGES, size=5), lambda_max=1.5),
    ),
    "bound dtype integer": ("dtype", lambda: bases.Adjacency().bind(EDGES, dtype=torch.int64)),
    "order unknown": ("order", lambda: conv(order="fast")),
    "order list": ("order", lambda: conv(order=["a_first"])),
    "order set later": ("order", lambda: setattr(c := conv(), "order", "fast") or c(X, EDGES)),
    "order a_first of sparse x": ("order", lambda: conv(order="a_first")(X.to_sparse_csr(), EDGES)),
    "order phi of sparse x": ("order", lambda: conv(order="phi")(X.to_sparse_csr(), EDGES)),
    "order phi too large": (
        "order",
        lambda: BasisConv(64, 64, bases.Adjacency(), order="phi")(torch.ones(2000, 64), EDGES),
    ),
    "in_channels a pair": ("in_channels", lambda: BasisConv((3, 3), 2, bases.Adjacency())),
    "in_channels float": ("in_channels", lambda: BasisConv(3.0, 2, bases.Adjacency())),
    "in_channels -2": ("in_channels", lambda: BasisConv(-2, 2, bases.Adjacency())),
    "out_channels -1": ("out_channels", lambda: BasisConv(3, -1, bases.Adjacency())),
    "out_channels float": ("out_channels", lambda: BasisConv(3, 2.0, bases.Adjacency())),
    "out_channels of heads": ("out_channels", lambda: BasisConv(3, 4, bases.Powers(3), theta.Heads())),
    "out_channels of pass": ("out_channels", lambda: BasisConv(3, 4, bases.Powers(3), theta.Pass())),
    "basis a name": ("basis", lambda: BasisConv(3, 2, "gcn")),
    "basis a class": ("basis", lambda: BasisConv(3, 2, bases.Adjacency)),
    "basis bound": ("basis", lambda: BasisConv(3, 2, bases.Adjacency().bind(EDGES))),
    "theta a name": ("theta", lambda: BasisConv(3, 2, bases.Adjacency(), "full")),
    "theta a class": ("theta", lambda: BasisConv(3, 2, bases.Adjacency(), theta.Full)),
    "theta of other sizes": ("theta", lambda: BasisConv(3, 2, bases.Adjacency(), conv(bases.Powers(2)).theta)),
    "theta combine": ("combine", lambda: theta.Heads("max")),
    "aggr mean": ("aggr", lambda: conv(aggr="mean")),
    "node_dim 0": ("node_dim", lambda: conv(node_dim=0)),
    "heads": ("heads", lambda: conv(heads=4)),
    "an argument that nobody has": ("colour", lambda: conv(colour="blue")),
    "a difference of two and three": ("basis", lambda: bases.Powers(1) - bases.Powers(2)),
    "infinitely many times a basis": ("coefficients", lambda: 1e400 * bases.Powers(2)),
    "a number too large for a basis": ("coefficients", lambda: 10**400 * bases.Powers(2)),
    "nan times a basis": ("coefficients", lambda: float("nan") * bases.Powers(2)),
    "K 0": ("K", lambda: bases.Edges(0)),
    "K negative": ("K", lambda: bases.Powers(-1)),
    "K float": ("K", lambda: bases.Chebyshev(2.0)),
    "K True": ("K", lambda: bases.Diffusion(True)),
    "norm": ("norm", lambda: bases.Adjacency("both")),
    "norm of a GCN": ("norm", lambda: bases.Adjacency("gcn")),
    "norm of Laplacian": ("norm", lambda: bases.Laplacian("mean")),
    "norm of Chebyshev": ("norm", lambda: bases.Chebyshev(2, "mean")),
    "existing": ("existing", lambda: bases.Adjacency(None, True, "drop")),
    "self_loops a word": ("self_loops", lambda: bases.Adjacency(None, "yes")),
    "self_loops nan": ("self_loops", lambda: bases.Adjacency(None, float("nan"))),
    "diagonal a word": ("diagonal", lambda: bases.Adjacency(None, diagonal="x")),
    "direction": ("direction", lambda: bases.Diffusion(2, "up")),
    "lambda_max of Chebyshev": ("lambda_max", lambda: bases.Chebyshev(2, lambda_max=-1)),
    "lambda_max of Chebyshev nan": ("lambda_max", lambda: bases.Chebyshev(2, lambda_max=float("nan"))),
    "lambda_max of Chebyshev a word": ("lambda_max", lambda: bases.Chebyshev(2, lambda_max="largest")),
    "operator a name": ("operator", lambda: bases.Powers(2, "sym")),
    "operator of K = 2": ("operator", lambda: bases.Powers(2, bases.Powers(2))),
    "coefficients of other K": ("coefficients", lambda: bases.Mix([1.0, 2.0], bases.Powers(3))),
    "coefficients nan": ("coefficients", lambda: bases.Mix([1.0, float("nan")], bases.Powers(2))),
    "coefficients ragged": ("coefficients", lambda: bases.Mix([[1.0, 2.0], [1.0]], bases.Powers(2))),
    "coefficients none": ("coefficients", lambda: bases.Mix([], bases.Powers(2))),
    "coefficients words": ("coefficients", lambda: bases.Mix(["a", "b"], bases.Powers(2))),
    "coefficients 3d": ("coefficients", lambda: bases.Mix(torch.ones(1, 1, 2), bases.Powers(2))),
    "Mix of no family": ("basis", lambda: bases.Mix([1.0], "sym")),
    "edge_attr missing": ("edge_attr", lambda: on_edges(None)),
    "edge_attr missing, bound": ("edge_attr", lambda: bases.Spline(3).bind(EDGES)),
    "edge_attr too short": ("edge_attr", lambda: on_edges(Z[:3])),
    "edge_attr too wide": ("edge_attr", lambda: on_edges(torch.ones(4, 3))),
    "edge_attr 1d": ("edge_attr", lambda: on_edges(torch.ones(4))),
    "edge_attr (M, N, D)": ("edge_attr", lambda: on_edges(torch.ones(5, 5, 2))),
    "edge_attr float64": ("edge_attr", lambda: on_edges(Z.double())),
    "edge_attr integer": ("edge_attr", lambda: on_edges(Z.long())),
    "edge_attr list": ("edge_attr", lambda: on_edges(Z.tolist())),
    "edge_attr sparse": ("edge_attr", lambda: on_edges(Z.to_sparse_coo())),
    "edge_attr elsewhere": ("edge_attr", lambda: on_edges(Z.to("meta"))),
    "edge_attr nan": ("edge_attr", lambda: on_edges(Z * float("nan"))),
    "edge_attr inf to points": ("edge_attr", lambda: on_edges(Z * float("inf"), bases.Points([[0.0, 1.0]], 1.0))),
    "edge_attr nan to a spline": ("edge_attr", lambda: on_edges(Z * float("nan"), bases.Spline((2, 2)))),
    "edge_attr above 1 to a spline": ("edge_attr", lambda: on_edges(Z + 0.1, bases.Spline((2, 2)))),
    "edge_attr below 0 to a spline": ("edge_attr", lambda: on_edges(Z - 0.1, bases.Spline((2, 2)))),
    "edge_attr of an adjacency": ("edge_attr", lambda: conv()(X, EDGES, edge_attr=Z)),
    "edge_attr of an adjacency, bound": ("edge_attr", lambda: bases.Adjacency().bind(EDGES, edge_attr=Z)),
    "edge_weight (E, 2) beside edge_attr": ("edge_weight", lambda: on_edges(Z, edge_weight=torch.ones(4, 2))),
    "mask beside edge_attr": ("mask", lambda: on_edges(Z, mask=torch.ones(5, 5).bool())),
    "valid beside edge_attr": ("valid", lambda: on_edges(Z, valid=torch.ones(5).bool())),
    "kernel_size 1, open": ("kernel_size", lambda: bases.Spline(1)),
    "kernel_size 2 of degree 2": ("kernel_size", lambda: bases.Spline((3, 2), 2)),
    "kernel_size 0, closed": ("kernel_size", lambda: bases.Spline(0, is_open=False)),
    "kernel_size of no axis": ("kernel_size", lambda: bases.Spline(())),
    "kernel_size float": ("kernel_size", lambda: bases.Spline(2.0)),
    "degree 4": ("degree", lambda: bases.Spline(9, 4)),
    "degree 0": ("degree", lambda: bases.Spline(9, 0)),
    "is_open of other length": ("is_open", lambda: bases.Spline((3, 3), is_open=(True,))),
    "is_open a number": ("is_open", lambda: bases.Spline(3, is_open=1)),
    "dim 0": ("dim", lambda: bases.Gaussians(3, 0)),
    "dim None": ("dim", lambda: bases.Gaussians(3, None)),
    "norm of edge functions": ("norm", lambda: bases.Gaussians(3, 2, norm="sym")),
    "points 1d": ("points", lambda: bases.Points([0.0, 1.0], 1.0)),
    "points ragged": ("points", lambda: bases.Points([[0.0], [1.0, 2.0]], 1.0)),
    "points nan": ("points", lambda: bases.Points([[float("nan")]], 1.0)),
    "points none": ("points", lambda: bases.Points(torch.ones(0, 2), 1.0)),
    "points of another dimension": ("edge_attr", lambda: on_edges(Z, bases.Points([[0.0, 1.0, 0.0]], 1.0))),
    "extent 0": ("extent", lambda: bases.Points([[0.0]], 0.0)),
    "influence": ("influence", lambda: bases.Points([[0.0]], 1.0, "quadratic")),
    "network a function": ("network", lambda: bases.EdgeNetwork(torch.tanh, 3)),
    "network of other width": ("network", lambda: on_edges(Z, bases.EdgeNetwork(torch.nn.Linear(2, 3), 4))),
    "network that reads another width": ("edge_attr", lambda: on_edges(torch.ones(4, 3), network())),
    "units 0": ("units", lambda: bases.EdgeNetwork(torch.nn.Tanh(), 0)),
}


def sparse(column: int) -> Tensor:
    """(5, 3), with a number in its first row."""
    ptr = torch.tensor([0, 1, 1, 1, 1, 1])
    return torch.sparse_csr_tensor(ptr, torch.tensor([column]), torch.ones(1), (5, 3), check_invariants=False)


def network() -> bases.Basis:
    return bases.EdgeNetwork(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()), 3)


# What a message says to do, of arguments in which newcomers err.
FIXES: dict[str, tuple[str, Callable[[], Any]]] = {
    "operator not called": (r"call it: Adjacency\(\)", lambda: bases.Powers(2, bases.Adjacency)),
    "basis not called": (r"call it: GCN\(\)", lambda: BasisConv(3, 2, bases.GCN)),
    "basis a list": (r"a \+ b", lambda: BasisConv(3, 2, [bases.Identity(), bases.Adjacency()])),
    "heads": (r"bases.GAT\(heads\)", lambda: conv(heads=3)),
    "dropout": (r"bases.GAT\(heads, dropout=p\)", lambda: conv(dropout=0.5)),
    "types as weights": (r"; types of edges go in edge_type=", lambda: conv()(X, EDGES, torch.zeros(4).long())),
    "scipy": ("from_scipy_sparse_matrix", lambda: conv()(X, scipy.sparse.eye(5))),
    "operator first": ("the number first", lambda: bases.Powers(bases.Adjacency(), 3)),
    "mechanism first": ("the number first", lambda: bases.Attention(mechanisms.Dot(4), 4)),
    "features in the place of weights": ("by its name", lambda: conv(bases.Gaussians(3, 2))(X, EDGES, Z)),
    "features that no score reads": (
        "edge_dim=",
        lambda: conv(bases.Attention(2, mechanisms.Dot(4), bases.Adjacency()), theta=theta.Heads())(
            X, EDGES, edge_attr=Z
        ),
    ),
    "width of a network": (r"shape \(4, 2\).*got \(4, 3\)", lambda: on_edges(torch.ones(4, 3), network())),
    "mask of integers": (
        r"\.bool\(\)",
        lambda: conv(bases.Attention(2, mechanisms.Dot(4)), theta=theta.Heads())(X, mask=torch.ones(5, 5).long()),
    ),
    "an image": ("GridConv", lambda: conv(bases.Window(None, (3, 3)))(torch.ones(2, 3, 8, 8))),
    "a window of one axis": (
        r"a grid of 1 axes, a plane takes pairs as \(3, 3\)",
        lambda: GridConv(3, 2, bases.Window(None, 3))(torch.ones(2, 3, 8, 8)),
    ),
    "types as weights of a bound basis": (
        r"; types of edges go in edge_type=",
        lambda: bases.Relations(3).bind(EDGES, torch.zeros(4).long()),
    ),
    "a knowledge graph": ("pass its edge_index", lambda: conv()(X, Data(edge_index=EDGES, x=X).stores[0])),
    "edges for bags": ("pass it by name, batch=", lambda: conv(bases.Bags())(X, EDGES)),
    "features of edges for GAT": (r"\(Additive\(projected=True\) \+ Edge\(dim\)\)", lambda: bases.GAT(2, edge_dim=3)),
    "an eigenvalue to be computed": (
        "LaplacianLambdaMax",
        lambda: conv(bases.Chebyshev(3))(X, EDGES, lambda_max="auto"),
    ),
    "build in the place of edges": ("call the method edges", lambda: conv(Building())(X, EDGES)),
    "types of another number than the weights": (
        r"edges.type: expected as many numbers as edges.weight has, got \(2,\), beside weights of \(4,\)",
        lambda: conv(Reading(lambda graph: torch.zeros(2).long()))(X, EDGES),
    ),
    "the number of bags alone": (r"size=\(M, N\)", lambda: conv(bases.Bags())(X, batch=torch.zeros(5).long(), size=2)),
    "batch_size for bags": (r"size=\(M, G\)", lambda: conv(bases.Bags())(X, batch_size=2)),
    "a window's size in the layer": (r"bases.Window\(None, \(3, 3\)", lambda: conv(bases.Bags(), padding=1)),
    "a mechanism not called": ("call it", lambda: bases.Attention(2, mechanisms.Dot)),
    "a mask not called": (r"call it: Causal\(\)", lambda: bases.Attention(2, mechanisms.Dot(4), bases.Causal)),
    "the largest of a bag": ("global_max_pool", lambda: bases.Bags("max")),
    "walks without names": ("relations=", lambda: bases.Walks(["played.in"])),
    "weights of attention, as in PyG": (
        "; return_attention=True returns",
        lambda: conv(bases.GAT(2))(X, EDGES, return_attention_weights=True),
    ),
    "mask, as in torch": (
        r"got \(5, 5\); a call has mask=, its transpose",
        lambda: conv(bases.Attention(2, mechanisms.Dot(4)))(X, attn_mask=torch.ones(5, 5).bool()),
    ),
    "mask of an image, as in torch": (
        "such argument of GridConv.forward, .* a call has mask=, its transpose",
        lambda: GridConv(3, 2, bases.Attention(2, mechanisms.Dot(4)))(torch.ones(3, 2, 2), attn_mask=torch.ones(4, 4)),
    ),
    "an argument that no call has": (r"see help\(BasisConv.forward\)", lambda: conv()(X, EDGES, colour="blue")),
    "loops of GCN": (
        r"bases.GCN, got False; the basis says whether it adds loops",
        lambda: bases.GCN(add_self_loops=False),
    ),
    "a basis in the place of a width": (
        r"the order is BasisConv\(in_channels, out",
        lambda: BasisConv(bases.GCN(), 4, 2),
    ),
    "a parameter not made": (r"theta: expected a Theta, got .*; call it: Heads\(\)", lambda: conv(theta=theta.Heads)),
    "a batch in place of edges": (
        r"edge_index: .*; the graphs of a batch are passed by name, batch=",
        lambda: conv(bases.Bags())(X, torch.zeros(5).long()),
    ),
    "edges without numbers": (
        "edge_index: expected numbers, got a tensor on 'meta', which has none",
        lambda: conv().to("meta")(X.to("meta"), EDGES.to("meta")),
    ),
    "a matrix that learns, with repeated entries": (
        "edge_index: expected a coalesced tensor, .*; coalesce",
        lambda: conv(bases.Adjacency())(X, torch.sparse_coo_tensor(EDGES, torch.ones(4), (5, 5), requires_grad=True)),
    ),
    "sparse features beyond their width": (
        r"x: expected column indices from 0 to 2, got \(7, 7\); rebuild",
        lambda: conv()(sparse(7), EDGES),
    ),
    "sparse features of negative columns": (
        r"x: expected column indices from 0 to 2, got \(-1, -1\); rebuild",
        lambda: conv()(sparse(-1), EDGES),
    ),
    "a basis that has constants": (
        "theta: expected 1 constants, .* got None; make the layer by compose",
        lambda: conv(compose(conv(bases.GCN()), BasisConv(2, 2, bases.GCN())).basis)(X, EDGES),
    ),
    "a Data": ("x: .* got Data; pass data.x, data.edge_index", lambda: conv()(Data(x=X, edge_index=EDGES))),
    "mean of heads": (r"bases.GAT, got False; .*theta.Heads\('mean'\)", lambda: bases.GAT(8, concat=False)),
    "mean of heads, v2": (r"bases.GATv2, got False; .*theta.Heads\('mean'\)", lambda: bases.GATv2(8, concat=False)),
    "edges beside all pairs": (
        "got Tensor; attend along edges by mask=bases.Adjacency",
        lambda: conv(bases.Attention(2, mechanisms.Dot(4)))(X, EDGES),
    ),
    "edges beside earlier steps": (
        "takes its pairs from elsewhere",
        lambda: conv(bases.Attention(2, mechanisms.Dot(4), bases.Causal()) + bases.Identity())(X, EDGES),
    ),
}


class Building(bases.Basis):
    """Its `build` does what `edges` is for."""

    def __init__(self) -> None:
        super().__init__(1)

    def build(self, graph: Any) -> Any:
        return bases.EdgeList(torch.zeros_like(graph.source), graph.source, graph.target, graph.weights)


class Reading(bases.Basis):
    """Its edges are what a function of the graph says."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        super().__init__(1)
        self.read = read

    def edges(self, graph: Any) -> bases.EdgeList:
        return bases.EdgeList(self.read(graph), graph.source, graph.target, graph.weights)


def test_a_graph_says_what_it_has() -> None:
    for name in ("edge_index", "edge_weight", "num_nodes", "x"):
        with pytest.raises(AttributeError, match=f"no '{name}'; it has source, target, type, weights, M, N, batch"):
            conv(Reading(lambda graph, name=name: getattr(graph, name)))(X, EDGES)
    for name in ("source", "target", "type", "weights", "M", "N", "batch", "dtype", "device"):
        conv(Reading(lambda graph, name=name: [getattr(graph, name), 0 * graph.source][1]))(X, EDGES)


def test_a_list_of_edges_is_not_printed_whole() -> None:
    with pytest.raises(ValueError, match=r"^edges.type: expected a tensor, \(E,\), got list; "):
        conv(Reading(lambda graph: [0] * graph.E))(X, EDGES)


TYPES = torch.zeros(4).long()
UNTYPED = [
    *(bases.GCN(), bases.Laplacian(), bases.Degree(), bases.Identity(), bases.Diffusion(2), bases.Chebyshev(2)),
    *(
        bases.Powers(2),
        bases.Adjacency() + bases.Identity(),
        bases.Adjacency().T,
        bases.Mix([[1.0, 2.0]], bases.Powers(2)),
    ),
    *(bases.Adjacency() @ bases.Adjacency("mean"), bases.GAT(2), bases.Complete(), bases.Shifts(None, [1])),
]


@pytest.mark.parametrize("basis", UNTYPED, ids=str)
def test_types_that_no_part_reads(basis: bases.Basis) -> None:
    edges = EDGES if basis.needs_edges else None
    with pytest.raises(ValueError, match=r"^edge_type: expected None.*a matrix for each type"):
        conv(basis)(X, edges, edge_type=TYPES)
    if not basis.reads_content:
        with pytest.raises(ValueError, match=r"^edge_type: expected None"):
            basis.bind(edges, edge_type=TYPES, size=5)


class OfType(bases.Basis):
    """The edges of type 0, by a basis of one's own."""

    def edges(self, graph: Graph) -> bases.EdgeList:
        m, n = graph.source[graph.type == 0], graph.target[graph.type == 0]
        return bases.EdgeList(torch.zeros_like(m), m, n, torch.ones(len(m)))


@pytest.mark.parametrize(
    "basis",
    [
        *(bases.Edges(2), bases.Identity() + bases.Relations(2), bases.Walks([[0, 1]], 2).T),
        *(bases.Adjacency() @ bases.Edges(2), bases.Powers(2, OfType(1)), OfType(1)),
        bases.Attention(2, mechanisms.Dot(4), OfType(1)),
    ],
    ids=str,
)
def test_types_that_a_part_reads(basis: bases.Basis) -> None:
    layer = conv(basis)
    x = torch.arange(15.0).view(5, 3)
    first, second = (layer(x, EDGES, edge_type=torch.tensor(types)) for types in ([0, 1, 0, 1], [1, 0, 1, 1]))
    assert not torch.allclose(first, second)


@pytest.mark.parametrize(("fix", "call"), FIXES.values(), ids=FIXES)
def test_the_fix_is_said(fix: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=fix):
        call()


def on_edges(z: Any, basis: bases.Basis | None = None, **more: Any) -> Any:
    return conv(bases.Gaussians(3, 2) if basis is None else basis)(X, EDGES, edge_attr=z, **more)


@pytest.mark.parametrize(("argument", "call"), CALLS.values(), ids=CALLS)
def test_refused(argument: str, call: Callable[[], Any]) -> None:
    refused(argument, call)


@pytest.mark.parametrize("wrong", [3, "a", None, torch.ones(2)], ids=["int", "str", "None", "tensor"])
def test_only_families_are_added(wrong: Any) -> None:
    with pytest.raises(TypeError):
        bases.Adjacency() + wrong
    with pytest.raises(TypeError):
        bases.Adjacency() @ wrong


def test_the_edge_is_named() -> None:
    with pytest.raises(ValueError, match=r"got \[1.0, 1.25\] of edge 2; "):
        on_edges(Z + torch.tensor([[0.0], [0.0], [0.75], [0.0]]) * torch.tensor([2 / 3, 1.0]), bases.Spline((2, 2)))


def test_refused_calls_change_nothing() -> None:
    """After a refusal the same layer and the same tensors work."""
    c, edge_index, x = conv(), EDGES.clone(), X.clone()
    edge_index[0, 0] = 7
    with pytest.raises(ValueError, match=r"^edge_index: "):
        c(x, edge_index)
    edge_index[0, 0] = 0
    torch.testing.assert_close(c(x, edge_index), c(x, EDGES))
    edge_index[0, 0] = -3
    with pytest.raises(ValueError, match=r"^edge_index: "):
        c(x, edge_index)


def test_refused_every_time() -> None:
    """What was refused once is not taken from a cache the second time."""
    c, edge_index, types = conv(bases.Edges(2)), EDGES.clone(), torch.tensor([0, 1, 2, 0])
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^edge_type: "):
            c(X, edge_index, None, types)


def test_fine_after_all() -> None:
    """Near misses that are right."""
    for basis in (bases.Adjacency(), bases.Identity(), bases.Chebyshev(2)):
        assert conv(basis)(X, EDGES[:, :0]).shape == (5, 2)
    assert conv(bases.Identity())(X).shape == (5, 2)
    assert conv()(X.expand(0, 5, 3), EDGES).shape == (0, 5, 2)
    assert conv()(X, EDGES, size=(5, 5)).shape == (5, 2)
    assert conv()(X, EDGES, size=5).shape == (5, 2)
    assert conv()(X, EDGES, size=[5, None]).shape == (5, 2)
    assert conv()([X, X[:4]], EDGES).shape == (4, 2)
    assert conv()((X, None), EDGES, size=(None, 4)).shape == (4, 2)
    assert conv()((X, None), EDGES).shape == (5, 2)
    assert conv(bases.Chebyshev(2))(X, EDGES, lambda_max=2).shape == (5, 2)
    assert conv(bases.Chebyshev(2))(X, EDGES, batch=torch.zeros(5).long()).shape == (5, 2)
    assert isinstance(read_graph(EDGES), Graph)


class Pairs(bases.Basis):
    def __init__(self) -> None:
        super().__init__(1)

    def edges(self, graph: Graph) -> Any:
        return graph.source, graph.target


def test_edges_that_are_no_list_of_edges() -> None:
    with pytest.raises(ValueError, match=r"^edges: expected an EdgeList of four tensors, got tuple; return bases"):
        BasisConv(3, 2, Pairs())(X, EDGES)


class Listed(bases.Basis):
    """Two edges, one of each type; some parts of the list replaced."""

    def __init__(self, **wrong: Any) -> None:
        super().__init__(2)
        self.wrong = wrong

    def edges(self, graph: Any) -> Any:
        ends, weight = torch.tensor([0, 1]), torch.ones(2)
        return bases.EdgeList(**{"type": ends, "source": ends, "target": ends.flip(0), "weight": weight} | self.wrong)


@pytest.mark.parametrize("part", ["type", "source", "target"])
@pytest.mark.parametrize(
    "wrong", [None, [0, 1], torch.ones(2), torch.tensor([0]), torch.tensor([-1, 0]), torch.tensor([0, 9])], ids=str
)
def test_parts_of_a_list_of_edges_that_do_not_fit(wrong: Any, part: str) -> None:
    refused(f"edges.{part}", lambda: conv(Listed(**{part: wrong}))(X, EDGES))


def test_weights_of_a_list_of_edges_in_a_column() -> None:
    with pytest.raises(ValueError, match=r"^edges.weight: expected a number for each edge, \(E,\), got \(4, 1\)"):
        conv(Listed(weight=torch.ones(4, 1)))(X, EDGES)


@pytest.mark.parametrize("wrong", [None, 1.0], ids=str)
def test_weights_of_a_list_of_edges_that_are_no_tensor(wrong: Any) -> None:
    refused("edges.weight", lambda: conv(Listed(weight=wrong))(X, EDGES))


class HalfMade(bases.Basis):
    def __init__(self) -> None:
        self.community = torch.zeros(3)


@pytest.mark.parametrize(
    "use",
    [
        lambda basis: BasisConv(3, 2, basis),
        lambda basis: basis.bind(EDGES),
        lambda basis: basis + bases.Identity(),
        lambda basis: bases.Identity() @ basis,
        lambda basis: bases.Powers(2, basis),
        lambda basis: bases.Attention(1, mechanisms.Dot(3), basis),
    ],
    ids=["layer", "bind", "sum", "product", "powers", "mask"],
)
def test_a_constructor_that_forgets_that_of_basis(use: Callable[[bases.Basis], Any]) -> None:
    with pytest.raises(ValueError, match=r"^\w+: .* a HalfMade that is half made; call super\(\).__init__\(K\) in"):
        use(HalfMade())
