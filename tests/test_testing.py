"""What assert_equivariant lets pass and what it does not, against moves that are written out here."""

import itertools

import pytest
import torch
from torch import nn
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from pyg_basisconv import BasisConv, GridConv, bases, theta
from pyg_basisconv.bases.group import FiniteGroup, p4, p4m
from pyg_basisconv.mechanisms import Dot
from pyg_basisconv.testing import Action, Permutation, Symmetry, Translation, Trivial, assert_equivariant

DOUBLE = torch.float64
SQUARE = bases.Window(None, (3, 3), padding=1)
GROUPS = {"p4": p4, "p4m": p4m}
ELEMENTS = [(name, g) for name, group in GROUPS.items() for g in range(group.order)]


def image(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=DOUBLE)


def moved_by_hand(x: torch.Tensor, g: int) -> torch.Tensor:
    """An image (*, H, W) moved by an element of p4m, in torch's words."""
    return torch.rot90(x.flip(-1) if g >= 4 else x, g % 4, (-2, -1))


def fails(layer, action, x, *args, **kwargs):
    """The message of the failure."""
    with pytest.raises(AssertionError) as caught:
        assert_equivariant(layer, action, x, *args, **kwargs)
    return str(caught.value)


def drawn(module: nn.Module) -> nn.Module:
    module = module.double().eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


# --- the actions themselves


def test_translation_moves_each_axis_on_a_circle():
    x = image(2, 3, 4, 5)
    moved = Translation((1, -2)).input(x)
    for i, j in itertools.product(range(4), range(5)):
        assert torch.equal(moved[..., (i + 1) % 4, (j - 2) % 5], x[..., i, j])
    assert torch.equal(Translation(1).input(x), x.roll(1, -1))


@pytest.mark.parametrize(("name", "g"), ELEMENTS)
def test_symmetry_of_images_is_as_torch_turns_them(name, g):
    x = image(2, 3, 4, 6)
    moved = moved_by_hand(x, g)
    assert torch.equal(Symmetry(name, g).input(x), moved)
    assert torch.equal(Symmetry(GROUPS[name], g).input(x), moved)


@pytest.mark.parametrize(("name", "a"), ELEMENTS)
@pytest.mark.parametrize("lifted", [False, True])
def test_symmetries_compose_as_the_group_multiplies(name, a, lifted):
    """Holds for an action from the left alone: with a wrong order of a and b, or b's inverse, it does not."""
    group = GROUPS[name]
    x = image(2, 3, *([group.order] if lifted else []), 4, 4)
    for b in range(group.order):
        twice = Symmetry(name, a, lifted).input(Symmetry(name, b, lifted).input(x))
        assert torch.equal(twice, Symmetry(name, group.table[a][b], lifted).input(x))


@pytest.mark.parametrize(("name", "g"), ELEMENTS)
def test_symmetry_of_images_over_a_group_permutes_its_axis(name, g):
    group = GROUPS[name]
    x = image(2, 3, group.order, 4, 4)
    moved = Symmetry(name, g, lifted=True).input(x)
    for h in range(group.order):
        assert torch.equal(moved[:, :, group.table[g][h]], moved_by_hand(x[:, :, h], g))


def test_symmetry_of_a_group_without_a_grid_permutes_the_last_axis():
    cyclic = FiniteGroup([[0, 1, 2], [1, 2, 0], [2, 0, 1]])
    x = image(2, 4, 3)
    assert torch.equal(Symmetry(cyclic, 1, lifted=True).input(x), x.roll(1, -1))
    conv = drawn(GridConv(4, 5, bases.Group(cyclic)))
    for g in range(3):
        assert_equivariant(conv, Symmetry(cyclic, g, lifted=True), x)


def test_permutation_renames_nodes_and_leaves_edges_where_they_are():
    order = torch.tensor([2, 0, 3, 1])
    action = Permutation(order)
    x, edge_index = image(2, 4, 3), torch.tensor([[0, 1, 3], [1, 2, 3]])
    batch, valid, mask, weight = torch.tensor([0, 0, 1, 1]), torch.rand(2, 4), torch.rand(4, 4), torch.rand(3)
    assert torch.equal(action.input(x), x[:, order])
    (ends, same), named = action.arguments((edge_index, weight), {"batch": batch, "valid": valid, "mask": mask, "n": 4})
    assert torch.equal(order[ends], edge_index)
    assert same is weight
    assert torch.equal(named["batch"], batch[order])
    assert torch.equal(named["valid"], valid[:, order])
    assert torch.equal(named["mask"], mask[order][:, order])
    assert named["n"] == 4
    adjacency = torch.sparse_coo_tensor(edge_index.flip(0), weight, (4, 4))
    for layout in (adjacency, adjacency.to_sparse_csr(), adjacency.to_sparse_csc()):
        ((found,), _) = action.arguments((layout,), {})
        assert torch.equal(found.to_dense(), adjacency.to_dense()[order][:, order])
    ((found,), _) = action.arguments((EdgeIndex(edge_index, sparse_size=(4, 4)),), {})
    assert torch.equal(found, ends)


# --- what is equivariant


@pytest.mark.parametrize("order", ["native", "a_first", "theta_first", "phi"])
def test_circular_convolutions_may_be_moved(order):
    window = bases.Window(None, (3, 2), padding="same", dilation=2, padding_mode="circular")
    assert_equivariant(drawn(GridConv(3, 4, window, order=order)), Translation((-2, 3)), image(2, 3, 5, 6))


def test_circular_volumes():
    window = bases.Window(None, (3, 3, 3), padding=1, padding_mode="circular")
    assert_equivariant(drawn(GridConv(3, 4, window)), Translation((1, 2, -1)), image(2, 3, 4, 5, 6))


def test_a_stride_divides_the_move_of_the_output():
    conv = drawn(GridConv(3, 4, bases.Window(None, (3, 3), stride=2, padding=1, padding_mode="circular")))
    x = image(2, 3, 6, 8)
    assert_equivariant(conv, Translation((2, -4)), x, output_action=Translation((1, -2)))
    assert "Translation((1, 2))" in fails(conv, Translation((1, 2)), x)
    assert "with Translation((1, 1)) on" in fails(conv, Translation((2, 4)), x, output_action=Translation((1, 1)))


@pytest.mark.parametrize(("name", "g"), ELEMENTS)
def test_group_convolutions_may_be_turned(name, g):
    lift = drawn(GridConv(3, 2, bases.Group(name, SQUARE, lift=True)))
    conv = drawn(GridConv(2, 4, bases.Group(name, SQUARE)))
    image_moved, group_moved = Symmetry(name, g), Symmetry(name, g, lifted=True)
    x = image(2, 3, 5, 5)
    assert_equivariant(lift, image_moved, x, output_action=group_moved)
    assert_equivariant(conv, group_moved, image(2, 2, GROUPS[name].order, 5, 5))
    assert_equivariant(nn.Sequential(lift, nn.ReLU(), conv), image_moved, x, output_action=group_moved)

    def pooled(x):
        return conv(lift(x).relu()).amax((-3, -2, -1))

    assert_equivariant(pooled, image_moved, x, output_action=Trivial())
    assert_equivariant(lambda x: conv(lift(x)).amax(-3), image_moved, x)


def test_oblong_images_may_be_turned_too():
    lift = drawn(GridConv(3, 2, bases.Group("p4m", SQUARE, lift=True)))
    x = image(2, 3, 4, 6)
    for g in range(8):
        assert_equivariant(lift, Symmetry("p4m", g), x, output_action=Symmetry("p4m", g, lifted=True))


@pytest.mark.parametrize("named", [False, True])
def test_nodes_may_be_numbered_anew(named):
    x, edge_index, weight = image(6, 3), torch.randint(6, (2, 15)), torch.rand(15, dtype=DOUBLE)
    kinds = torch.randint(2, (15,))
    families = bases.Adjacency("sym", self_loops=True), bases.Identity() + bases.Chebyshev(3), bases.Diffusion(2)
    for layer in (*(BasisConv(3, 4, basis) for basis in families), GCNConv(3, 4)):
        for order in itertools.islice(itertools.permutations(range(6)), 1, 720, 97):
            if named:
                assert_equivariant(drawn(layer), Permutation(order), x, edge_index=edge_index, edge_weight=weight)
            else:
                assert_equivariant(drawn(layer), Permutation(order), x, edge_index, weight)
    typed = drawn(BasisConv(3, 4, bases.Edges(2)))
    assert_equivariant(typed, Permutation(range(5, -1, -1)), x, edge_index, edge_type=kinds)


def test_attention_may_be_numbered_anew():
    x, valid = image(2, 6, 4), torch.tensor([True, True, False, True, True, False])
    everyone = drawn(BasisConv(4, 4, bases.Attention(2, Dot(2)), theta.LowRank(2)))
    action = Permutation([4, 2, 0, 5, 1, 3])
    assert_equivariant(everyone, action, x)
    assert_equivariant(everyone, action, x, valid=valid.expand(2, 6), mask=torch.rand(6, 6) < 0.7)
    neighbours = drawn(BasisConv(4, 4, bases.Attention(2, Dot(2), bases.Adjacency()), theta.LowRank(2)))
    assert_equivariant(neighbours, action, x[0], torch.randint(6, (2, 15)))


def test_sources_and_targets_may_be_numbered_apart():
    conv = drawn(BasisConv(3, 4, bases.Adjacency("mean") + bases.Identity()))
    ends = torch.stack([torch.randint(5, (9,)), torch.randint(3, (9,))])
    action = Permutation([4, 2, 0, 1, 3], targets=[1, 2, 0])
    assert_equivariant(conv, action, (image(5, 3), image(3, 3)), ends)
    adjacency = torch.sparse_coo_tensor(ends.flip(0), torch.ones(9, dtype=DOUBLE), (3, 5)).coalesce()
    alone = drawn(BasisConv(3, 4, bases.Adjacency()))
    assert_equivariant(alone, action, (image(5, 3), None), adjacency)


def test_pooling_does_not_notice_the_order_of_nodes():
    pool = drawn(BasisConv(3, 4, bases.Bags("mean")))
    batch = torch.tensor([0, 0, 1, 1, 1])
    assert_equivariant(pool, Permutation([3, 1, 4, 0, 2]), image(5, 3), batch=batch, output_action=Trivial())


# --- what is not


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate"])
def test_a_border_is_seen(mode):
    conv = drawn(GridConv(3, 4, bases.Window(None, (3, 3), padding=1, padding_mode=mode)))
    message = fails(conv, Translation((0, 1)), image(2, 3, 5, 6))
    assert message.startswith("GridConv is not equivariant under Translation((0, 1)): ")


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_a_plain_network_is_not_turned(turn):
    x = image(2, 3, 5, 5)
    for conv in (drawn(nn.Conv2d(3, 4, 3, padding=1)), drawn(GridConv(3, 4, SQUARE))):
        fails(conv, Symmetry("p4", turn), x)


def test_p4_is_not_reflected():
    lift = drawn(GridConv(3, 2, bases.Group("p4", SQUARE, lift=True)))
    x = image(2, 3, 5, 5)
    fails(lambda x: lift(x).amax((-3, -2, -1)), Symmetry("p4m", 4), x, output_action=Trivial())


def test_the_axis_of_the_group_has_to_move_in_the_right_way():
    lift = drawn(GridConv(3, 2, bases.Group("p4", SQUARE, lift=True)))
    x = image(2, 3, 4, 4)
    fails(lift, Symmetry("p4", 1), x)  # not at all: the axis is taken for one more of channels
    fails(lift, Symmetry("p4", 1), x, output_action=Symmetry("p4", 3, lifted=True))  # backwards

    class Other(Action):
        """The axis moves as it should, in the wrong place; or multiplied from the right."""

        def __init__(self, axis, order):
            self.axis, self.order = axis, order

        def input(self, y):
            return y.rot90(1, (-2, -1)).index_select(self.axis, torch.tensor(self.order))

    fails(lift, Symmetry("p4", 1), x, output_action=Other(-2, [3, 0, 1, 2]))
    fails(lift, Symmetry("p4", 1), x, output_action=Other(-3, [1, 2, 3, 0]))
    assert_equivariant(lift, Symmetry("p4", 1), x, output_action=Other(-3, [3, 0, 1, 2]))


def test_multiplying_from_the_right_is_another_thing():
    """p4m does not commute, so that g h and h g differ."""
    g = 1
    conv = drawn(GridConv(2, 2, bases.Group("p4m", SQUARE)))
    x = image(1, 2, 8, 4, 4)

    class FromTheRight(Action):
        def input(self, y):
            order = [p4m.table[h][p4m.inverse[g]] for h in range(8)]
            return y.rot90(g, (-2, -1))[:, :, order]

    fails(conv, FromTheRight(), x)


def test_positions_are_seen():
    class Placed(nn.Module):
        """Attention with an encoding of positions."""

        def __init__(self):
            super().__init__()
            self.conv = BasisConv(4, 4, bases.Attention(2, Dot(2)), theta.LowRank(2))
            self.place = nn.Parameter(torch.randn(6, 4))

        def forward(self, x):
            return self.conv(x + self.place)

    fails(drawn(Placed()), Permutation([1, 2, 3, 4, 5, 0]), image(2, 6, 4))
    causal = drawn(BasisConv(4, 4, bases.Attention(2, Dot(2), bases.Causal()), theta.LowRank(2)))
    fails(causal, Permutation([1, 2, 3, 4, 5, 0]), image(2, 6, 4))
    fails(drawn(BasisConv(4, 4, bases.Shifts(None, [1]))), Permutation([1, 2, 3, 4, 5, 0]), image(2, 6, 4))


def test_numbers_of_nodes_are_named():
    x, edge_index, batch = image(4, 3), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), torch.tensor([0, 0, 1, 1])
    action = Permutation([2, 0, 3, 1])
    assert_equivariant(lambda x, edge_index, batch: x + batch[:, None], action, x, edge_index, batch=batch)
    for args in ((edge_index, batch), (batch,), (None, batch.int())):
        with pytest.raises(ValueError, match=r"^args: expected .* got \(4,\) by place; pass it as batch="):
            assert_equivariant(lambda x, *args: x + args[-1][:, None], action, x, *args)
    assert_equivariant(lambda x, *args: x * args[1].sum(), action, x, edge_index, torch.rand(4, dtype=DOUBLE))
    assert_equivariant(lambda x, *args: x * args[1].sum(), action, x, edge_index, torch.arange(5))
    typed = drawn(BasisConv(3, 4, bases.Edges(2)))
    assert_equivariant(typed, action, x, edge_index, edge_type=batch)


def test_edges_that_are_not_renamed_are_seen():
    conv, edge_index = drawn(BasisConv(3, 4, bases.Adjacency())), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])

    class NodesAlone(Permutation):
        def arguments(self, args, kwargs):
            return args, kwargs

    fails(conv, NodesAlone([1, 0, 2, 3]), image(4, 3), edge_index)


def test_the_message_says_how_much_and_where():
    weights = torch.zeros(3, 4, dtype=DOUBLE)
    weights[1, 2] = 0.5

    def layer(x):
        return x + weights

    message = fails(layer, Translation(1), torch.ones(3, 4, dtype=DOUBLE))
    assert "layer is not equivariant under Translation(1)" in message
    assert "Mismatched elements: 2 / 12" in message
    assert "Greatest absolute difference: 0.5 at index (1, 2)" in message


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float16, torch.complex128])
def test_infinities_and_what_is_not_a_number(dtype):
    """An infinity is equal to itself and to nothing else; what is not a number is wrong."""
    x = (torch.rand(2, 6) + 1).to(dtype)
    signs = torch.where(torch.arange(6) > 2, 1, -1)
    assert_equivariant(lambda x: x * torch.inf, Trivial(), x.real)
    fails(lambda x: torch.inf * signs * x.real**2, Translation(1), x)
    there = torch.arange(6) == 0
    fails(lambda x: x.masked_fill(there, torch.inf), Translation(1), torch.ones_like(x), rtol=10, atol=10)
    fails(lambda x: x / 0 * 0, Trivial(), x, rtol=10, atol=10)


def test_what_a_layer_writes_to_is_a_copy():
    x, edge_index = image(6, 3), torch.randint(6, (2, 9))
    before = x.clone(), edge_index.clone()
    assert_equivariant(nn.LeakyReLU(inplace=True), Translation(1), x)
    assert_equivariant(nn.LeakyReLU(inplace=True), Trivial(), x)

    def writes(pair, edges, batch):
        y = pair[0].mul_(2) + batch[:, None] + edges.sum()
        edges.zero_(), batch.zero_()
        return y

    batch = torch.arange(6)
    assert_equivariant(
        lambda x, **named: writes((x,), **named), Permutation(range(6)), x, edges=edge_index, batch=batch
    )
    assert_equivariant(writes, Trivial(), [x], edge_index, batch, output_action=Trivial())
    data = Data(x=x, edge_index=edge_index)
    assert_equivariant(lambda data: data.x.mul_(2), Trivial(), data)
    assert torch.equal(x, before[0])
    assert torch.equal(edge_index, before[1])
    assert torch.equal(batch, torch.arange(6))


def test_an_output_that_is_written_to_again_is_not_compared_with_itself():
    buffer = torch.zeros(6, dtype=DOUBLE)
    fails(lambda x: buffer.copy_(x * torch.arange(6)), Translation(1), image(6), output_action=Trivial())


def test_nothing_proves_nothing():
    message = fails(lambda x: x[:0], Translation(1), image(4, 3))
    assert message == "<lambda> under Translation(1): its output is empty, (0, 3), so that nothing is compared"


def test_integers_and_booleans_have_to_be_equal():
    x = image(2, 6)
    assert_equivariant(lambda x: x > 0, Translation(1), x)
    fails(lambda x: torch.arange(12).view(2, 6) == 7, Translation(1), x)
    for dtype in (torch.uint8, torch.int64):
        assert_equivariant(lambda x, dtype=dtype: (x > 0).to(dtype), Translation(1), x)
        numbers = torch.tensor([250, 5, 5, 5]).to(dtype)
        fails(lambda x, numbers=numbers: numbers, Translation(1), x[0, :4])
    large = torch.tensor([2**60, 2**60 + 1])  # the same in floating point
    fails(lambda x: large, Translation(1), x[0, :2])


def test_another_shape_is_wrong():
    assert "torch.Size([3, 2]) != torch.Size([2, 3])" in fails(
        lambda x: x, Symmetry("p4", 1), image(2, 3), output_action=Trivial()
    )


@pytest.mark.parametrize(
    ("dtype", "allowed"), [(DOUBLE, 1e-10), (torch.float32, 1e-4), (torch.float16, 1e-2), (torch.bfloat16, 5e-2)]
)
def test_what_is_allowed_goes_with_the_dtype(dtype, allowed):
    def off_by(error):
        return lambda x: x + error * (torch.arange(4) == 0).to(x)

    x = torch.zeros(4, dtype=dtype)
    assert_equivariant(off_by(0.5 * allowed), Translation(1), x)
    fails(off_by(2 * allowed), Translation(1), x)
    assert_equivariant(off_by(1.0), Translation(1), x, atol=1.5)
    fails(off_by(0.5 * allowed), Translation(1), x, atol=0.1 * allowed)
    assert_equivariant(lambda x: 1 + off_by(1.0)(x), Translation(1), x, rtol=1.01)
    assert_equivariant(lambda x: x.long(), Translation(1), x)
    fails(lambda x: torch.arange(4), Translation(1), x)


def test_no_graph_of_gradients_is_kept():
    conv, seen = drawn(GridConv(3, 4, SQUARE)), []
    conv.register_forward_hook(lambda module, args, y: seen.append(y.requires_grad))
    assert_equivariant(conv, Trivial(), image(1, 3, 4, 4))
    assert seen == [False, False]


BAD = [
    (lambda: Translation(1.5), "shifts: expected an integer"),
    (lambda: Translation(()), "shifts: expected"),
    (lambda: Translation((1, True)), "shifts: expected"),
    (lambda: Symmetry("p5", 1), "group: expected 'p4'"),
    (lambda: Symmetry("p4", 4), "element: expected an element of the group, 0 to 3"),
    (lambda: Symmetry("p4", -1), "element: expected"),
    (lambda: Permutation([0, 2]), "order: expected each number"),
    (lambda: Permutation(torch.tensor([0, 0])), "order: expected"),
    (lambda: Permutation([0], targets=[1]), "targets: expected"),
    (lambda: Permutation(3), "order: expected"),
    (lambda: Permutation(None), "order: expected"),
    (lambda: assert_equivariant(nn.ReLU(), torch.rot90, image(3)), "action: expected an Action"),
    (lambda: assert_equivariant(nn.ReLU(), Trivial(), image(3), output_action=1), "output_action: expected"),
    (lambda: assert_equivariant(3, Trivial(), image(3)), "layer: expected a module or a function"),
    (lambda: assert_equivariant(lambda x: (x, x), Trivial(), image(3)), "layer: expected a tensor"),
    (lambda: Translation((1, 2)).input(image(3)), "x: expected a dense tensor with at least 2 axes"),
    (lambda: Translation(1).input("x"), "x: expected a dense tensor"),
    (lambda: Symmetry("p4", 1, lifted=True).input(image(3, 4, 4)), "x: expected an axis of the 4 elements"),
    (lambda: Permutation([1, 0]).input(image(3, 2)), "order: expected a tensor with 2 nodes along axis -2"),
    (lambda: Permutation([1, 0]).input(image(2)), "order: expected a tensor with 2 nodes"),
    (lambda: Permutation([1, 0]).arguments((torch.tensor([[0], [2]]),), {}), "edge_index: expected edges from 2"),
    (lambda: Permutation([1, 0]).arguments((torch.tensor([[-1], [0]]),), {}), "edge_index: expected edges"),
    (lambda: Permutation([1, 0]).arguments((torch.eye(3).to_sparse(),), {}), "edge_index: expected the transposed"),
    (lambda: Permutation([1, 0]).arguments((bases.Identity().bind(size=2),), {}), "edge_index: expected (2, E)"),
]


@pytest.mark.parametrize(("make", "said"), BAD)
def test_bad_input_is_named(make, said):
    with pytest.raises(ValueError, match="^" + said.replace("(", r"\(").replace(")", r"\)")):
        make()


def test_actions_are_printed_as_they_are_made():
    for action in (
        Translation(1),
        Translation((1, 2)),
        Symmetry("p4", 1),
        Symmetry("p4m", 5, lifted=True),
        Permutation([1, 0], targets=[0]),
        Trivial(),
    ):
        assert repr(eval(repr(action))) == repr(action)
