"""The kernels in Triton compile for GPUs, none of which need be there; see `make test-triton`."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch

from pyg_basisconv import backends

if find_spec("triton") is None:
    pytest.skip(f"triton: {backends()['triton']}", allow_module_level=True)

import triton
from triton import language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import JITFunction

from pyg_basisconv.kernels.triton import bind_jit, jit, typed, typed_jit
from pyg_basisconv.kernels.triton.launch import NARROW, WIDE, blocks, power_of_two
from pyg_basisconv.kernels.triton.rows_jit import SIZES

if not isinstance(jit.forward, JITFunction):
    pytest.skip("triton: interpreted in this process", allow_module_level=True)

NAMES = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.float64: "*fp64"}
TERMS, HIDDEN, PRODUCTS = ["own", "other"], ["own", "other", "entry", "vectors"], ["own", "other"]
FORMS = {  # heads, columns, numbers of a term, activation, what there is
    "GAT": (8, 8, 1, 1, ["vectors", "of_targets"]),
    "sums by vectors": (3, 5, 1, 1, ["vectors", "of_targets"]),
    "terms": (8, 8, 1, 1, TERMS),
    "GATv2": (3, 20, 20, 1, HIDDEN),
    "Transformer": (8, 8, 8, 0, PRODUCTS),
    "Transformer with features": (8, 8, 8, 0, [*PRODUCTS, "features", "asked", "summed", "passed"]),
    "GATv2 with values": (3, 20, 20, 1, [*HIDDEN, "features", "summed", "passed"]),
    "keys with features": (2, 5, 3, 0, [*PRODUCTS, "features", "asked"]),
    "gate": (33, 1, 1, 3, [*TERMS, "entry", "factor", "values"]),
    "gate, as given": (33, 1, 1, 3, [*TERMS, "entry", "entry_rows"]),
    "spmm": (1, 64, 1, 7, []),
    "wide": (1, 2000, 1, 6, [*TERMS, "factor"]),
}


def cubin(kernel: Any, types: dict[str, str], constants: dict[str, Any], capability: int) -> bytes:
    """What a GPU would run; arguments that are neither are None."""
    options = {name: constants.pop(name) for name in ("num_warps", "enable_fp_fusion")}
    constants = {name: constants.get(name) for name in kernel.arg_names if name not in types}
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=places)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["cubin"]


def arguments(form: str, dtype: torch.dtype, pieces: bool, index: str) -> tuple[dict[str, str], dict[str, Any]]:
    c, W, D, activation, there = FORMS[form]
    sums = "*fp64" if dtype == torch.float64 else "*fp32"
    types = dict.fromkeys(("z", "own_rows", "other_rows", *there), NAMES[dtype])
    types |= {name: sums for name in ("asked", "summed", "passed") if name in there}
    without = ("vectors", "of_targets", "asked", "summed", "passed", "entry_rows")
    types |= {f"{name}_stride": "i32" for name in there if name not in without}
    types |= dict.fromkeys(("z_stride", "own_rows_stride", "other_rows_stride"), "i32")
    types |= {"factor_step": "i32"} if "factor" in there else {}
    types |= {"entry_rows": index} if "entry_rows" in there else {}
    types |= {"ptr": index, "index": index, "y": sums} | dict.fromkeys(SIZES, "i32")
    normalised = form not in ("gate", "gate, as given", "spmm", "sums by vectors")
    if normalised or "of_targets" in there:
        types["stats"] = types["target_stats"] = sums
    if pieces:
        types |= dict.fromkeys(("piece_row", "piece_start"), "*i64")
    constants = {
        "c": c,
        "W": W,
        "D": D,
        "WB": power_of_two(W),
        "DB": power_of_two(D),
        "F": 5,
        "FB": 8,
        "NORMALISED": normalised,
        "PRODUCTS": there[:2] == PRODUCTS and D > 1 and "vectors" not in there,
    }
    constants |= {"ACTIVATION": activation, "SLOPE": 0.2, **blocks(WIDE, c, W, D, 5)}
    return types, constants | {"ACC": tl.float64 if dtype == torch.float64 else tl.float32}


@pytest.mark.parametrize("pieces", [False, True], ids=["short rows", "long rows"])
@pytest.mark.parametrize(("dtype", "index", "capability"), [
    (torch.float32, "*i32", 70), (torch.bfloat16, "*i64", 90), (torch.float64, "*i32", 80), (torch.float16, "*i32", 75),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.sweep(6)
def test_attention(form: str, dtype: torch.dtype, index: str, capability: int, pieces: bool) -> None:
    types, constants = arguments(form, dtype, pieces, index)
    used = {name: kind for name, kind in types.items() if name in jit.forward.arg_names}
    assert cubin(jit.forward, used, dict(constants), capability)
    c, W, D, _, there = FORMS[form]
    for by_source in (False, True):
        given = types | {"d_own": types["y"]} | ({"d_rows": types["y"], "place": index} if by_source else {})
        if not by_source:
            wanted = {"entry": "d_entry", "factor": "d_factor", "values": "d_values"}
            wanted |= {} if "of_targets" in there else {"vectors": "d_vectors"}
            given |= {wanted[name]: NAMES[dtype] for name in there if name in wanted}
            of_features = {"asked": "d_asked", "features": "d_features"}
            given |= {of_features[name]: types["y"] for name in there if name in of_features}
        given = {name: kind for name, kind in given.items() if name in jit.backward.arg_names}
        if by_source:
            given.pop("y"), given.pop("stats", None)
            given |= {"d_targets": types["target_stats"]} if "of_targets" in there else {}
        assert cubin(jit.backward, given, constants | blocks(NARROW, c, W, D, 5) | {"BY_SOURCE": by_source}, capability)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sums_of_pieces_and_sampled_products(dtype: torch.dtype, normalised: bool) -> None:
    name, ACC = NAMES[dtype], tl.float64 if dtype == torch.float64 else tl.float32
    types = {"table": name, "long_rows": "*i64", "rows": "i32"} | ({"stats": name} if normalised else {})
    assert cubin(jit.combine, types, {"c": 3, "W": 5, "WB": 8, "ACC": ACC, **blocks(WIDE, 3, 5)}, 80)
    types = dict.fromkeys(("ptr", "index"), "*i32") | dict.fromkeys(SIZES, "i32") | {"x": name, "y": name}
    options = {name: value for name, value in blocks(WIDE, 1, 128).items() if name != "HB"}
    constants = {"W": 300, "WB": 128, "ACC": ACC, **options}
    assert cubin(jit.sampled, types | {"out": name}, constants, 80)


@pytest.mark.parametrize("index", ["*i32", "*i64"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_graphs_are_bound(dtype: torch.dtype, index: str) -> None:
    sizes, options = ("entries", "groups", "steps"), {"B": 256, "num_warps": 4, "enable_fp_fusion": True}
    types = dict.fromkeys(("keys", "other", "ptr", "index", "by_group"), index) | {"order": "*i64"}
    assert cubin(bind_jit.compressed, types | dict.fromkeys(sizes, "i32"), dict(options), 70)
    types = {"source": index, "target": index} | dict.fromkeys(("entries", "sources", "targets"), "i32")
    for given in (["out", "into"], ["weight", "out", "into"], ["into"], ["weight", "out"]):
        numbers = dict.fromkeys((*given, "result"), NAMES[dtype])
        constants = {"ROOT": len(given) > 1, "ACC": tl.float64 if dtype == torch.float64 else tl.float32}
        assert cubin(bind_jit.over_degrees, types | numbers, constants | options, 80)


@pytest.mark.parametrize("pieces", [False, True], ids=["short groups", "long groups"])
@pytest.mark.parametrize(("dtype", "precision", "capability"), [
    (torch.float32, "ieee", 70), (torch.bfloat16, "ieee", 90), (torch.float64, "ieee", 80), (torch.float32, "tf32", 80),
    (torch.float16, "ieee", 75),
], ids=str)  # fmt: skip
@pytest.mark.sweep(4)
def test_products_of_groups(dtype: torch.dtype, precision: str, capability: int, pieces: bool) -> None:
    name, double = NAMES[dtype], dtype == torch.float64
    types = {"ptr": "*i64", "index": "*i64", "batch": "i32"} | dict.fromkeys(SIZES, "i32")
    types |= dict.fromkeys(("piece_row", "piece_start"), "*i64") if pieces else {}
    constants = {"G": 2, "P": 70, "Q": 5, "PRECISION": precision, "ACC": tl.float64 if double else tl.float32}
    constants |= typed.COMPILED
    given = types | dict.fromkeys(("table", "weight", "out"), name) | {f"{axis}_stride": "i32" for axis in "kgpq"}
    for gathered in (False, True):
        sizes = {"RB": 64, "PB": 128 // dtype.itemsize, "QB": 16, "GATHERED": gathered}
        assert cubin(typed_jit.multiplied, given | {"kind": "*i64"}, constants | sizes, capability)
    given = types | {"x": name, "z": name, "out": "*fp64" if double else "*fp32"}
    sizes = {"RB": 128 // dtype.itemsize, "PB": 64, "QB": 16}
    assert cubin(typed_jit.outer, given, constants | sizes, capability)
