"""`python -m pyg_basisconv plan`: the plan of a layer on sizes alone is that of a layer on data."""

import pytest
import torch

from pyg_basisconv import BasisConv, bases, theta
from pyg_basisconv.__main__ import main

SIZES = ("--nodes", "300", "--edges", "900")


def said(capsys, *arguments: str) -> list[str]:
    assert main(["plan", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("layer", "basis", "parameter"),
    [
        ("GCNConv", bases.GCN(), None),
        ("GCNConv(improved=True)", bases.Adjacency("sym", self_loops=2.0), None),
        ("Identity() + Chebyshev(3)", bases.Identity() + bases.Chebyshev(3), None),
        ("SAGEConv", bases.Adjacency("mean") + bases.Identity(), None),
        ("Adjacency()", bases.Adjacency(), theta.Grouped(4)),
    ],
)
def test_it_is_the_plan_of_the_layer(capsys, layer: str, basis: bases.Basis, parameter) -> None:
    found = said(capsys, layer, "64", "8", *SIZES, *(() if parameter is None else ("--theta", "Grouped(4)")))
    conv = BasisConv(64, 8, basis, parameter)
    generated = torch.randint(300, (2, 900))
    expected = conv.plan(torch.ones(300, 64), generated)
    assert found[0] == str(conv)
    assert found[1] == str(expected).splitlines()[0]
    assert found[-1].startswith(expected.order)


def test_attention_types_and_zeros(capsys) -> None:
    assert "Attention(8, " in said(capsys, "GATConv(heads=8)", "64", "8", *SIZES)[0]
    assert said(capsys, "RGCNConv(num_relations=5)", "6", "8", *SIZES, "--types", "5")[1].startswith("K=6 ")
    assert "x sparse (600 numbers)" in said(capsys, "GCNConv", "100", "8", *SIZES, "--zeros", "0.98")[1]


def test_nothing_is_computed(capsys, monkeypatch) -> None:
    monkeypatch.setattr(BasisConv, "_run", None)
    said(capsys, "GATConv(heads=8)", "64", "8", *SIZES)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("GCNCnv", "8", "8"), "did you mean 'GCNConv'"),
        (("EdgeConv", "8", "8"), "layer: expected a layer of the form, got EdgeConv; its messages are a network"),
        (
            ("SAGEConv(aggr='max')", "8", "8"),
            "layer: expected a layer of the form, got SAGEConv(aggr='max'); SAGEConv: aggr",
        ),
        (("Conv2d", "8", "8"), "Conv2d(): expected a basis"),
        (("bases.GCN()", "8", "8"), "bases.GCN(): expected a name without its module, got bases.GCN; write GCN(...)"),
        (("GCNConv(8)", "8", "8"), "layer: expected arguments by name"),
        (("GCNConv(improved=torch)", "8", "8"), "torch: expected a class with its arguments, or a literal"),
        (("GCNConv(", "8", "8"), "'(' was never closed"),
        (("GCNConv(heads=2)", "8", "8"), "unexpected keyword argument 'heads'"),
        (("RGCNConv", "8", "8"), "missing 1 required positional argument: 'num_relations'"),
        (("Chebishev(3)", "8", "8"), "did you mean 'Chebyshev'?"),
        (("Full()", "8", "8"), "layer: expected a layer of PyG, or a basis, got Full()"),
        (("GCNConv", "8", "8", "--theta", "Full()"), "--theta: expected a basis beside it"),
        (("GCNConv", "8", "0"), "Q: expected an integer from 1 on, got 0"),
        (("Relations(3)", "8", "8", "--types", "0"), "types: expected an integer from 1 on, got 0"),
        (("GCNConv", "8", "8", "--zeros", "1.5"), "zeros: expected a number from 0 to below 1, got 1.5"),
        (("Relations(3)", "8", "8"), "--types: expected the number of types of edges"),
        (("Relations(3)", "8", "8", "--types", "4"), "edge_type: expected"),
        (("GCNConv", "8", "8", "--types", "3"), "--types: expected a layer that reads types of edges, got GCNConv"),
        (("RGATConv(num_relations=3)", "8", "8"), "--types: expected the number of types of edges"),
        (("DenseGCNConv", "8", "8"), "layer: expected one that is called with x and edges, got DenseGCNConv"),
        (("ChebConv(K=0)", "8", "8"), "layer: expected arguments that ChebConv can be made with, got AssertionError"),
        (("GATConv(heads=-1)", "8", "8"), "layer: expected arguments that GATConv can be made with"),
        (("GCNConv", "8", f"{1 << 40}"), f"Q: expected an integer from 1 to {1 << 31}, got {1 << 40}"),
        (("GCN()", f"{1 << 31}", f"{1 << 31}"), "P, Q: expected widths whose parameters fit into memory"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments: tuple[str, ...], expected: str) -> None:
    assert main(["plan", *arguments, *SIZES]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("python -m pyg_basisconv plan: error: ")
    assert expected in error


def test_a_graph_that_is_too_large_is_said_so(capsys) -> None:
    large = ["--nodes", f"{1 << 31}", "--edges", "1", "--zeros", "0.5"]
    assert main(["plan", "GCNConv", f"{1 << 20}", "8", *large]) == 2
    assert "--nodes, --edges: expected a graph that fits into memory, got 2147483648, 1; " in capsys.readouterr().err
