"""What imports what: read from the sources, so that imports in functions and for types count as well."""

import ast
from functools import cache
from pathlib import Path

import pyg_basisconv
from pyg_basisconv import bases, mechanisms, theta
from pyg_basisconv.basis import Basis, BoundBasis
from pyg_basisconv.orders import ORDERS
from pyg_basisconv.theta import Theta

ROOT = Path(pyg_basisconv.__file__).parent
FILES = {".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in ROOT.rglob("*.py")}
NAMES = {name.removesuffix(".__init__"): path for name, path in FILES.items()}


@cache
def nodes(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def imported(name: str, path: Path) -> set[str]:
    """The files of the package that a file imports from."""
    inside = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in nodes(path):
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


@cache
def imports() -> dict[str, set[str]]:
    return {name: imported(name, path) for name, path in NAMES.items()}


def test_no_circle_of_files() -> None:
    assert circles(imports()) == set()


def test_few_places_ask_whether_values_can_be_read() -> None:
    """A function is paired with its plain form by `with_plain`, and a check of values is `any_seen`."""
    calls = [node for path in FILES.values() for node in nodes(path) if isinstance(node, ast.Call)]
    asked = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "portable"]
    assert 4 <= len(asked) < 30


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for name, path in NAMES.items():
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


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
    for node in nodes(path):
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
    assert names(ROOT / "bases" / "adjacency.py") & kinds  # they are found where they are
    assert not {name for name in imports()["pyg_basisconv.conv"] if name.split(".")[1] in ("bases", "mechanisms")}


def test_an_order_is_named_in_its_own_file_and_by_what_has_it() -> None:
    """The layers, the programs, the plan and its costs learn of no order."""
    for name in ("basis", "binding", "conv", "costs", "grid", "plan", "program"):
        assert not names(ROOT / f"{name}.py") & set(ORDERS)
    assert set(ORDERS) <= set().union(*map(names, (ROOT / "orders").glob("*.py")))


def kinds_below(base: type) -> set[type]:
    return {kind for one in base.__subclasses__() for kind in {one, *kinds_below(one)}}


def asked_elsewhere(path: Path, home: dict[str, str]) -> set[str]:
    """The kinds that a file asks for by isinstance, and that stand in another."""
    module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    asked = (n for n in nodes(path) if isinstance(n, ast.Call))
    kinds = [n.args[1] for n in asked if isinstance(n.func, ast.Name) and n.func.id in ("isinstance", "issubclass")]
    named = {n.attr if isinstance(n, ast.Attribute) else getattr(n, "id", "") for kind in kinds for n in ast.walk(kind)}
    return {name for name in named if home.get(name, module) != module}


# How many `zip`s of a file end with the shortest: a pattern that repeats, sums before each of some, or names that are
# more than what is called. All others are strict, so that nothing is left out in silence.
ENDING_WITH_THE_SHORTEST = {
    "algebra/tracing.py": 2,
    "bases/concat.py": 1,
    "bases/spline.py": 1,
    "convert/grids.py": 1,
    "convert/layers.py": 2,
    "edge_set.py": 1,
    "hetero/conv.py": 1,
    "kernels/hidden_layer.py": 1,
    "mechanisms/outer.py": 1,
    "testing.py": 1,
    "verify/recipes.py": 1,
    "walks/config.py": 1,
    "walks/report.py": 2,
}


def test_what_is_paired_is_as_long() -> None:
    found: dict[str, int] = {}
    for path in FILES.values():
        for node in nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip":
                (strict,) = [word.value for word in node.keywords if word.arg == "strict"]
                name = path.relative_to(ROOT).as_posix()
                found[name] = found.get(name, 0) + (not ast.literal_eval(strict))
    assert {name: count for name, count in found.items() if count} == ENDING_WITH_THE_SHORTEST


# A conversion reads what it made itself; the rewrites of algebra/ are a table of pairs of kinds.
ABOVE = ("algebra", "convert", "verify", "walks")


def test_families_are_asked_by_properties_and_not_for_their_types() -> None:
    kinds = {kind for base in (Basis, BoundBasis, Theta) for kind in kinds_below(base)}
    home = {kind.__name__: kind.__module__ for kind in kinds if kind.__module__.startswith("pyg_basisconv.")}
    found = {str(path.relative_to(ROOT)): asked_elsewhere(path, home) for path in FILES.values()}
    below = {name: asked for name, asked in found.items() if asked and Path(name).parts[0] not in ABOVE}
    assert below == {str(Path("bases", "group.py")): {"Window"}}  # at its door: a group moves the taps of a Window
    assert found[str(Path("algebra", "products.py"))]  # it is found where it is
