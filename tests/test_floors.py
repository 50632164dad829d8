"""What imports what: read from the sources, so that imports in functions and for types count as well."""

import ast
from pathlib import Path

import pyg_basisconv
from pyg_basisconv import bases, mechanisms, theta
from pyg_basisconv.plan import ORDERS

ROOT = Path(pyg_basisconv.__file__).parent
FILES = {".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in ROOT.rglob("*.py")}
NAMES = {name.removesuffix(".__init__"): path for name, path in FILES.items()}


def imported(name: str, path: Path) -> set[str]:
    """The files of the package that a file imports from."""
    inside = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {full if (full := f"{module}.{one.name}") in NAMES else module for one in node.names}
    return (found & set(NAMES)) - {name}


def circles(graph: dict[str, set[str]]) -> set[str]:
    """What is left when files that import nothing of the rest, or that nothing of the rest imports, are taken away."""
    left = dict(graph)
    while True:
        ends = {n for n, to in left.items() if not to & left.keys() or not any(n in other for other in left.values())}
        if not ends:
            return set(left)
        left = {n: to for n, to in left.items() if n not in ends}


IMPORTS = {name: imported(name, path) for name, path in NAMES.items()}


def test_no_circle_of_files() -> None:
    assert circles(IMPORTS) == set()


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "above": {"a"}, "below": set()}) == {"a", "b", "c"}


def test_imports_in_functions_and_for_types_are_read(tmp_path: Path) -> None:
    source = (
        "if TYPE_CHECKING:\n    from .conv import A\ndef f():\n    from . import plot\n    from .bases.walks import B\n"
    )
    (tmp_path / "some.py").write_text(source)
    expected = {"pyg_basisconv.conv", "pyg_basisconv.plot", "pyg_basisconv.bases.walks"}
    assert imported("pyg_basisconv.some", tmp_path / "some.py") == expected


def names(path: Path) -> set[str]:
    """The names and the texts in the code of a file; what documents it is none of them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name | ast.alias):
            found.add(node.id if isinstance(node, ast.Name) else node.name)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def test_the_layer_names_no_kind_of_basis_theta_or_order() -> None:
    kinds = {*bases.__all__, *theta.__all__, *mechanisms.__all__, *ORDERS} - {"Basis", "BoundBasis", "Theta"}
    assert not names(ROOT / "conv.py") & kinds
    assert names(ROOT / "orders.py") & kinds  # they are found where they are
    assert not {name for name in IMPORTS["pyg_basisconv.conv"] if name.split(".")[1] in ("bases", "mechanisms")}
