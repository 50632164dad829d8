"""The example of digits as points: what a graph of one is, that turning acts as it says, and its command line."""

import math
import re

import pytest
import torch

from examples import digits
from examples.digits import ANGLES, KERNELS, REACH, Net, as_points, images, split

PLAIN = [name for name, kernel in KERNELS.items() if not kernel.positions]


def test_points_are_joined_to_those_within_reach() -> None:
    ink = images()[0][:3]
    points = as_points(ink, torch.zeros(3))
    expected = []
    places = [(b, i // 8, i % 8) for b in range(3) for i in range(64) if ink[b, i] > 0]
    for m, (b, row, column) in enumerate(places):
        for n, (other, r, c) in enumerate(places):
            if m != n and b == other and math.hypot(row - r, column - c) < REACH:
                expected.append((m, n, (row - r) / REACH / 2 + 0.5, (column - c) / REACH / 2 + 0.5))
    found = [(*e, *z) for e, z in zip(points.edge_index.t().tolist(), points.z.tolist(), strict=True)]
    torch.testing.assert_close(torch.tensor(sorted(found)), torch.tensor(sorted(expected)))
    assert points.batch.tolist() == [b for b, _, _ in places]
    assert points.x.shape == (len(places), 1)


def test_a_turn_by_90_degrees_turns_the_image() -> None:
    """The same set of edges between rows of ink, with positions (a, b) as (-b, a), from the middle."""
    ink = images()[0][:2]
    upright, turned = (as_points(ink, torch.full((2,), angle)) for angle in (0.0, 90.0))
    assert torch.equal(upright.edge_index, turned.edge_index)
    torch.testing.assert_close(turned.z, torch.stack([1 - upright.z[:, 1], upright.z[:, 0]], 1))


@pytest.mark.parametrize("name", KERNELS)
def test_what_reads_no_positions_cannot_tell(name: str) -> None:
    ink = images()[0][:4]
    torch.manual_seed(0)
    net = Net(KERNELS[name]).eval()
    upright, turned = (net(as_points(ink, torch.full((4,), angle))) for angle in (0.0, 33.0))
    assert upright.shape == (4, 10)
    assert torch.equal(upright, turned) == (name in PLAIN)


def test_networks_are_of_about_one_size() -> None:
    sizes = [sum(p.numel() for p in Net(kernel).parameters()) for kernel in KERNELS.values()]
    assert max(sizes) < 1.15 * min(sizes)


def test_no_digit_is_in_two_parts_of_a_split() -> None:
    parts = split(3)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(images()[1])))


def test_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ink, y = images()
    monkeypatch.setattr(digits, "images", lambda: (ink[::10], y[::10]))
    monkeypatch.setattr(digits, "FIT", 90)
    monkeypatch.setattr(digits, "VALIDATE", 40)
    digits.main(["--quick"])
    said = capsys.readouterr().out
    for name in KERNELS:
        row = next(line for line in said.splitlines() if line.startswith(name))
        found = [float(number) for number in re.findall(r"\d+\.\d", row)]
        assert len(found) == len(ANGLES)
        assert all(0 <= one <= 100 for one in found)
        assert name not in PLAIN or len(set(found)) == 1
