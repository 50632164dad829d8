"""What attention is compared with: every entry from the definition, in float64, by plain loops over k, m and n.

Nothing here comes from the library but the numbers in the parameters of a layer. A mask is a list of entries (m, n),
and an entry that is there twice competes twice. Scores are numbers, one at a time; what is normalised is a short list.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

DOUBLE = torch.float64


class Entry(NamedTuple):
    """A place where n may look at m, with the weight and the attributes (R,) of the edge that stands there."""

    m: int
    n: int
    weight: Tensor
    z: Tensor | None = None


@dataclass
class Mechanism:
    """What was asked for, in words, beside the object that holds the parameters."""

    kind: str
    module: Any
    options: dict[str, Any] = field(default_factory=dict)
    parts: tuple["Mechanism", ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.options.get(name)

    def parameter(self, name: str) -> Tensor | None:
        """A parameter in float64; None where there is none of that name."""
        value = getattr(self.module, name, None)
        return None if value is None else value.double()

    def __add__(self, other: "Mechanism") -> "Mechanism":
        return Mechanism("sum", self.module + other.module, parts=(self, other))

    def __mul__(self, other: "Mechanism") -> "Mechanism":
        return Mechanism("product", self.module * other.module, parts=(self, other))

    def __rmul__(self, factor: float) -> "Mechanism":
        return Mechanism("scaled", factor * self.module, {"factor": factor}, (self,))

    def then(self, activation: Callable[[Tensor], Tensor]) -> "Mechanism":
        return Mechanism("then", self.module.then(activation), {"activation": activation}, (self,))


class Pair(NamedTuple):
    """The features of one m and one n, what head k makes values of them by, and the attributes between them."""

    k: int
    m: int
    n: int
    x: Tensor  # (P,)
    y: Tensor | None  # (P',)
    Theta: Tensor | None  # (P, D), of head k
    c: Tensor | None  # (D,) the bias of its values
    z: Tensor | None  # (R,)

    def projected(self, features: Tensor) -> Tensor:
        """The value of head k."""
        value = features @ self.Theta
        return value if self.c is None else value + self.c


def additive(a: Mechanism, at: Pair) -> Tensor:
    """s.x_m + t.y_n + xi, of the features or of the values."""
    score = a.parameter("source")[at.k] @ (at.projected(at.x) if a["projected"] else at.x)
    if a.options.get("target", "there") is not None:
        y = at.y
        if a["projected"]:
            y = y @ a.parameter("weight")[at.k] if a["target"] == "own" else at.projected(y)
        score = score + a.parameter("target")[at.k] @ y
    return score if not a["bias"] else score + a.parameter("bias")[at.k]


def bilinear(a: Mechanism, at: Pair) -> Tensor:
    return at.x @ a.parameter("weight")[at.k] @ at.y


def dot(a: Mechanism, at: Pair) -> Tensor:
    """k.q over sqrt(D), with the attributes of the edge in the key, in both, or in terms of their own."""
    if a["projected"]:
        key, query = at.projected(at.x), at.projected(at.y)
    else:
        key, query = at.x @ a.parameter("key")[at.k], at.y @ a.parameter("query")[at.k]
    if a["bias"]:
        key, query = key + a.parameter("key_bias")[at.k], query + a.parameter("query_bias")[at.k]
    score = key @ query
    if a["edge_dim"]:
        u = at.z @ a.parameter("key_edge")[at.k]
        if a.options.get("mix", "key") == "key":
            score = (key + u) @ query
        else:
            v = at.z @ a.parameter("query_edge")[at.k]
            score = (key + u) @ (query + v) if a["mix"] == "both" else key @ query + key @ v + query @ u
    scale = 1 / math.sqrt(key.numel()) if a["scale"] is None else a["scale"]
    return score * scale


def mlp(a: Mechanism, at: Pair) -> Tensor:
    """a.act(x W + y V + z U + b)."""
    activation, target = a.options.get("activation", torch.tanh), a.options.get("target", "own")
    hidden = at.projected(at.x) if a["projected"] else at.x @ a.parameter("source")[at.k]
    if target == "own":
        hidden = hidden + at.y @ a.parameter("target")[at.k]
    elif target == "shared":
        hidden = hidden + at.projected(at.y)
    if a["edge_dim"]:
        hidden = hidden + at.z @ a.parameter("edge")[at.k]
    if a["bias"]:
        hidden = hidden + a.parameter("bias")[at.k]
    hidden = activation(hidden)
    if a["gated"]:
        hidden = hidden * torch.sigmoid(at.x @ a.parameter("gate")[at.k])
    return a.parameter("out")[at.k] @ hidden


def cosine(a: Mechanism, at: Pair) -> Tensor:
    return (at.x @ at.y) / (at.x.norm() * at.y.norm())


def relative(a: Mechanism, at: Pair) -> Tensor:
    """A learnt number for m - n, in a window or modulo a period."""
    w, step = a.parameter("weight")[at.k], at.m - at.n
    if a["period"] is not None:
        return w[step % a["period"]]
    low, high = a["window"]
    return w[step - low] if low <= step <= high else w.new_zeros(())


def tap(a: Mechanism, at: Pair) -> Tensor:
    """y_n W_k, at the offset n - m; an offset that is not among them has no score."""
    offsets = list(a["offsets"])
    return at.y @ a.parameter("weight")[at.k][:, offsets.index(at.n - at.m)]


def edge(a: Mechanism, at: Pair) -> Tensor:
    if a["inner"]:
        return (at.z @ a.parameter("weight")[at.k]) @ a.parameter("out")[at.k]
    return at.z @ a.parameter("weight")[at.k]


def perceptron(a: Mechanism, at: Pair) -> Tensor:
    """sum_d a'_d act(sum_i a_id s_i + (z W)_d); the rows of W are below those of a."""
    weight, parts = a.parameter("weight")[at.k], len(a.parts)
    hidden = torch.stack([score(part, at) for part in a.parts]) @ weight[:parts]
    if a["edge_dim"]:
        hidden = hidden + at.z @ weight[parts:]
    return a.options.get("activation", torch.relu)(hidden) @ a.parameter("out")[at.k]


SCORES: dict[str, Callable[[Mechanism, Pair], Tensor]] = {
    "Additive": additive,
    "Bilinear": bilinear,
    "Dot": dot,
    "MLP": mlp,
    "Cosine": cosine,
    "Relative": relative,
    "Uniform": lambda a, at: torch.zeros((), dtype=DOUBLE),
    "Tap": tap,
    "Edge": edge,
    "Perceptron": perceptron,
    "sum": lambda a, at: score(a.parts[0], at) + score(a.parts[1], at),
    "product": lambda a, at: score(a.parts[0], at) * score(a.parts[1], at),
    "scaled": lambda a, at: a["factor"] * score(a.parts[0], at),
    "then": lambda a, at: a["activation"](score(a.parts[0], at)),
}


def score(a: Mechanism, at: Pair) -> Tensor:
    """One number."""
    return SCORES[a.kind](a, at)


def softmax(scores: list[Tensor]) -> list[Tensor]:
    """Of a list of numbers; those that are minus infinity are not there, and of none there is nothing."""
    there = [s for s in scores if s.detach() > -math.inf]
    if not there:
        return [torch.zeros((), dtype=DOUBLE) for _ in scores]
    top = max(float(s.detach()) for s in there)
    total = torch.stack([torch.exp(s - top) for s in there]).sum()
    return [torch.exp(s - top) / total if s.detach() > -math.inf else torch.zeros((), dtype=DOUBLE) for s in scores]


def normalised(scores: dict[tuple[int, int], Tensor], entries: list[Entry], how: str | None) -> dict:
    """What is given to each (k, i), i the number of an entry, beside those that it competes with."""
    pointwise = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, None: lambda s: s}
    if how in pointwise:
        return {place: pointwise[how](s) for place, s in scores.items()}
    group = {
        "source": lambda k, i: (k, entries[i].n),
        "target": lambda k, i: (k, entries[i].m),
        "heads": lambda k, i: (i,),
    }[how]
    groups: dict[tuple, list[tuple[int, int]]] = {}
    for place in scores:
        groups.setdefault(group(*place), []).append(place)
    weights = {}
    for places in groups.values():
        weights |= dict(zip(places, softmax([scores[place] for place in places]), strict=True))
    return weights


def weights(
    a: Mechanism,
    heads: int,
    x: Tensor,
    y: Tensor | None,
    entries: list[Entry],
    normalize: str | None = "source",
    weighted: bool = False,
    Theta: Tensor | None = None,
    c: Tensor | None = None,
    allowed: Tensor | None = None,
    added: Tensor | None = None,
) -> dict[tuple[int, int], Tensor]:
    """The weight of head k at entry i, for one x (M, P) and one y' (N, P').

    Theta: (K, P, D), c: (K, D), for mechanisms that score values; allowed, added: (K, M, N), of the call.
    """
    scores: dict[tuple[int, int], Tensor] = {}
    for k in range(heads):
        for i, (m, n, _, z) in enumerate(entries):
            if allowed is not None and not allowed[k, m, n]:
                continue
            of_head = (None if t is None else t[k] for t in (Theta, c))
            at = Pair(k, m, n, x[m], None if y is None else y[n], *of_head, z)
            scores[k, i] = score(a, at)
            if added is not None:
                scores[k, i] = scores[k, i] + added[k, m, n]
    found = normalised(scores, entries, normalize)
    return {(k, i): w * entries[i].weight if weighted else w for (k, i), w in found.items()}


def family(
    a: Mechanism, heads: int, x: Tensor, y: Tensor | None, N: int, entries: list[Entry], *how: Any, **more: Any
) -> Tensor:
    """A, (K, M, N): the sum of the weights of the entries that stand at each place. Arguments as above."""
    K, M = heads, x.shape[0]
    A = [[[torch.zeros((), dtype=DOUBLE)] * N for _ in range(M)] for _ in range(K)]
    for (k, i), weight in weights(a, heads, x, y, entries, *how, **more).items():
        m, n, *_ = entries[i]
        A[k][m][n] = A[k][m][n] + weight
    flat = [v for rows in A for row in rows for v in row]
    return (torch.stack(flat) if flat else torch.zeros(0, dtype=DOUBLE)).reshape(K, M, N)


def apply(A: Tensor, x: Tensor, Theta: Tensor, value_bias: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """y_n = sum_k sum_m A[k, m, n] (x_m Theta_k + c_k) + b.  A: (K, M, N), x: (M, P), Theta: (K, P, Q), c: (K, Q)."""
    y = torch.einsum("kmn,mp,kpq->nq", A, x.double(), Theta)
    if value_bias is not None:
        y = y + torch.einsum("kmn,kq->nq", A, value_bias)
    return y if bias is None else y + bias.double()


class Theta(NamedTuple):
    """Of a parameter: (K, P, Q) the matrices, (K, Q) what goes through the sum beside them; the same for values."""

    matrices: Tensor
    bias: Tensor | None
    values: Tensor | None = None  # (K, P, D)
    value_bias: Tensor | None = None  # (K, D)


def theta(kind: str, K: int, P: int, Q: int, module: Any) -> Theta:
    """Whatever the kind of parameter."""
    name, *options = kind.split("+")
    if name == "Pass":
        every = torch.eye(P, dtype=DOUBLE).repeat(K, 1, 1)
        return Theta(every, None, every)
    if name == "Split":
        masks = [[float(p // (P // K) == k) for p in range(P)] for k in range(K)]
        groups = torch.eye(P, dtype=DOUBLE).reshape(P, K, P // K).transpose(0, 1)
        return Theta(torch.diag_embed(torch.tensor(masks, dtype=DOUBLE)), None, groups)
    weight = module.weight.double()
    if name == "Full":
        return Theta(weight, None, weight)
    if name == "Depthwise":
        taps = softmax_over_k(weight) if "softmax" in options else weight  # (K, H)
        per_channel = torch.stack([taps[:, p // (P // taps.shape[1])] for p in range(P)], 1)
        return Theta(torch.diag_embed(per_channel), None, torch.diag_embed(per_channel))
    c = module.value_bias.double() if "bias" in options else None
    if name == "LowRank":
        output = list(module.output.double())
    elif name == "Heads(mean)":
        output = [torch.eye(Q, dtype=DOUBLE) / K] * K
    else:
        places = torch.eye(Q, dtype=DOUBLE)
        output = [places[k * (Q // K) : (k + 1) * (Q // K)] for k in range(K)]
    through = [torch.stack([row @ o for row, o in zip(t, output, strict=True)]) for t in (weight, c) if t is not None]
    return Theta(through[0], None if c is None else through[1], weight, c)


def softmax_over_k(weight: Tensor) -> Tensor:
    """(K, H) -> (K, H)"""
    columns = [torch.stack(softmax([weight[k, h] for k in range(weight.shape[0])])) for h in range(weight.shape[1])]
    return torch.stack(columns, 1)


def batches(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All indices of leading dimensions."""
    return itertools.product(*map(range, shape))


def everywhere(M: int, N: int) -> list[Entry]:
    """All pairs."""
    return [Entry(m, n, torch.ones((), dtype=DOUBLE)) for m in range(M) for n in range(N)]


def causal(M: int, N: int, align: str | None = None) -> list[Entry]:
    """Each sees itself and those before, counted from the start or from the end."""
    shift = M - N if align == "end" else 0
    return [entry for entry in everywhere(M, N) if entry.m <= entry.n + shift]


def band(M: int, N: int, offsets: list[int]) -> list[Entry]:
    return [entry for entry in everywhere(M, N) if entry.n - entry.m in offsets]


def bags(batch: list[int]) -> list[Entry]:
    return [Entry(m, g, torch.ones((), dtype=DOUBLE)) for m, g in enumerate(batch)]


def graph(edges: list[tuple[int, int]], weight: Tensor | None = None, z: Tensor | None = None) -> list[Entry]:
    """Each edge is an entry; z: (E, R)."""
    one = torch.ones((), dtype=DOUBLE)
    return [
        Entry(m, n, one if weight is None else weight[e].double(), None if z is None else z[e])
        for e, (m, n) in enumerate(edges)
    ]


def with_loops(entries: list[Entry], N: int, fill: float = 1.0, existing: str = "keep", R: int = 0) -> list[Entry]:
    """One loop per node: in place of those that are there, or the last of them, or with their sum; its R attributes are
    zeros.
    """
    plain = [entry for entry in entries if entry.m != entry.n]
    loops = []
    for node in range(N):
        there = [entry for entry in entries if entry.m == entry.n == node]
        if there and existing == "keep":
            loops.append(there[-1])
            continue
        weight = torch.tensor(fill, dtype=DOUBLE)
        if there and existing == "add":
            weight = weight + torch.stack([entry.weight for entry in there]).sum()
        loops.append(Entry(node, node, weight, torch.zeros(R, dtype=DOUBLE) if R else None))
    return plain + loops


def symmetric(entries: list[Entry], N: int) -> list[Entry]:
    """The weights over the roots of the weights into both ends."""
    into = [sum((e.weight for e in entries if e.n == node), torch.zeros((), dtype=DOUBLE)) for node in range(N)]
    return [e._replace(weight=e.weight / (into[e.m] * into[e.n]).sqrt()) for e in entries]
