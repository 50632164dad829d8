"""A parameter: K matrices Theta_k, P x Q, their products from both sides, and their storage."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from ..errors import reject
from ..kernels import Affine, a_first, a_first_nonzero, matmul, theta_first, times_theta
from ..kernels.contract import Copies, Rows, side_by_side
from ..kernels.multihead import to_rows
from ..sparse_input import sparse_matmul

Members = Tensor | Sequence[Tensor]  # (K, *, M, D), or K times (*, M, D)


Step = Callable[["Theta", Tensor, Tensor | None, Rows], Tensor]


class Blocks(NamedTuple):
    """Block-diagonal matrices, the form of grouped convolutions, followed by one matrix that all share.

    weight: (K, g, P / g, D / g); then: (D, Q), or None for the identity.

    >>> from pyg_basisconv import theta
    >>> theta.Grouped(2).build(3, 4, 8).blocks(4).weight.shape
    torch.Size([3, 2, 2, 4])
    """

    weight: Tensor
    then: Tensor | None = None


class Theta(nn.Module):
    """A parameter of a convolution. The constructor chooses its form; the layer gives it its sizes by `build`.

    A subclass defines `reset_parameters`, `project`, `contract`, `dense`, and `shape(K, P, Q)` of its weight.

    >>> from pyg_basisconv import theta
    >>> full = theta.Full().build(2, 3, 4)  # what a layer does
    >>> full.project(torch.ones(5, 3)).shape, full.dense().shape
    (torch.Size([2, 5, 4]), torch.Size([2, 3, 4]))
    """

    weight: nn.Parameter | UninitializedParameter
    variance_gains: Sequence[float] = (1,)  # for all members, or one for each; see `Basis`
    makes_results = False  # True if `contract` and `gather` return new tensors, to which a bias can be added in place
    sums_runs = False  # True if `contract` can sum products of some targets at a time, as `kernels.shared` makes them
    of_types = False  # True if its matrices may belong to edge types, see `HeteroBasisConv`
    constant_values: Tensor | None = None  # (J, Q) the values of constants, see `bases.Composition`
    K: int
    P: int
    Q: int

    def build(self, K: int, P: int, Q: int) -> "Theta":
        """Creates the parameters for K matrices P x Q; P = -1 leaves them uninitialised until `complete`."""
        if self.built(K, P, Q):
            return self
        if Q < 1:
            reject("out_channels", "a positive integer", Q, "only theta.Pass takes any width")
        self.K, self.P, self.Q = K, P, Q
        if P < 0:
            self.weight = UninitializedParameter()
        else:
            self.weight = nn.Parameter(torch.empty(self.shape(K, P, Q)))
            self.reset_parameters()
        return self

    def built(self, K: int, P: int, Q: int) -> bool:
        """Whether it was built; rejects sizes other than those that it was built for."""
        if "weight" not in self._parameters:
            return False
        if (self.K, self.P, self.Q) != (K, P, Q):
            reject("theta", f"sizes K, P, Q = {(K, P, Q)}", (self.K, self.P, self.Q), "give each layer its own")
        return True

    def takes_edge_values(self, values: "Theta") -> bool:
        """Whether the values of edges may be computed by another parameter, see `BasisConv.forward`."""
        return False

    def complete(self, P: int) -> None:
        """Initialises lazy parameters, now that P is known."""
        assert isinstance(self.weight, UninitializedParameter)
        shape = self.shape(self.K, P, self.Q)
        self.P = P
        self.weight.materialize(shape)
        self.reset_parameters()

    @property
    def _waits(self) -> bool:
        """Whether its weight waits for P; not where it was not built, as a module of one's own may keep it."""
        return isinstance(self._parameters.get("weight"), UninitializedParameter)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if self._waits:
            destination[prefix + "weight"] = self.weight
        else:
            super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = state_dict.get(prefix + "weight")
        if self._waits:
            if isinstance(saved, UninitializedParameter):
                return
            if saved is not None:
                self.complete(self.width(saved))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def width(self, weight: Tensor) -> int:
        """P, inferred from a weight."""
        return weight.shape[1]

    def shape(self, K: int, P: int, Q: int) -> tuple[int, ...]:
        """The shape of the weight, (K, P, ...)."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draws the parameters anew."""
        raise NotImplementedError

    @property
    def reference(self) -> Tensor | None:
        """A parameter from which to read dtype, device and requires_grad; None if there is none."""
        weight = self._parameters.get("weight")
        return self.weight if weight is None else weight

    @property
    def has_constants(self) -> bool:
        """Whether it has `constant_values`, without computing them."""
        return self.constant_values is not None

    @property
    def lifts(self) -> bool:
        """Whether `lift` appends a column of ones."""
        return False

    def lift(self, x: Tensor) -> Tensor:
        """The input of `contract` and `dense`: x, with a column of ones if the values have a bias."""
        return x

    def project(self, x: Tensor) -> Members:
        r""":math:`x \Theta_k`: (*, M, P) -> K times (*, M, D); D is Q if the members are summed."""
        raise NotImplementedError

    def contract(self, u: Iterable[Tensor]) -> Tensor:
        r""":math:`\sum_k u_k \Theta_k`: an iterable of K tensors (*, N, P) -> (*, N, Q)."""
        raise NotImplementedError

    def gather(self, family: Any, z: Members) -> Tensor:
        """Applies a `BoundBasis` to projected inputs, and sums the members or puts them side by side: (*, N, Q)."""
        return family.combine(z) if self.sums else self.join(to_rows(family.each(stacked(z))))

    @property
    def by_rows(self) -> bool:
        """Whether it has the node-major forms of `project` and `gather`, `rows` and `join`."""
        return False

    @property
    def affine(self) -> Affine | None:
        """`rows` as an affine map, which may be computed in one product with others; None if it is not one."""
        return None

    def rows(self, x: Tensor) -> Tensor:
        """The K projected members side by side: (*, M, P) -> (*, M, K D)."""
        raise NotImplementedError

    def join(self, y: Tensor, bias: Tensor | None = None) -> Tensor:
        """The output from the family's products side by side, (*, N, K D) -> (*, N, Q), plus the bias, (Q,)."""
        if self.sums and self.K > 1:
            y = y.unflatten(-1, (self.K, self.inner)).sum(-2)
        return add_bias(y, bias)

    def step(self, order: str) -> "Step | None":
        """An order with its form, or `KNOWN`, as one function of this parameter, x (M, P), the bias or None, and a
        family with `takes_rows`, to y (N, Q); None if it has no such form.
        """
        return STEPS[order] if order == AT_ONCE and self.of_types else None

    def prepare(self) -> None:
        """Runs the forward pre-hooks, by which pruning and weight norms compute the weight."""
        for hook in self._forward_pre_hooks.values():
            hook(self, ())

    def dense(self, width: int = -1) -> Tensor:
        """(K, P, Q) the matrices written out; `width` is P, for parameters that take any."""
        raise NotImplementedError

    def outputs(self, P: int) -> int:
        """Q, for an input of width P."""
        return self.Q

    def inputs(self, Q: int) -> int:
        """P, for a result of width Q."""
        return self.P

    def blocks(self, width: int) -> Blocks | None:
        """The matrices as blocks on their diagonals, for inputs of some width; None if most blocks would be zeros."""
        return None

    def kernel(self, width: int) -> Tensor:
        """(Q, P / g, K), or (Q, P / g, *kernel), the blocks as weights of torch's convolutions; for `blocks` without a
        `then`.
        """
        blocks = cast(Blocks, self.blocks(width)).weight
        return blocks.permute(1, 3, 2, 0).flatten(0, 1)

    def diagonal(self, width: int) -> Tensor:
        """(K, g, P / g, Q / g) blocks that are large enough for dense products."""
        return self.dense(width).unsqueeze(1)

    @property
    def tap_groups(self) -> int | None:
        """H, if the matrices are diagonal with one number for each of H groups of channels."""
        return None

    def taps(self) -> Tensor:
        """(K, H) the numbers of `tap_groups`."""
        raise NotImplementedError

    @property
    def common_scale(self) -> float | None:
        """The number s if all matrices are s times the identity; None otherwise."""
        return None

    @property
    def mixtures(self) -> int | None:
        """H, if the K matrices are mixtures of H."""
        return None

    def unmixed(self) -> "tuple[Tensor, Theta]":
        """The coefficients (H, K) and the H matrices of `mixtures`."""
        raise NotImplementedError

    @property
    def sums(self) -> bool:
        """True if `gather` uses `combine`, False if it uses `each`."""
        return True

    @property
    def inner(self) -> int:
        """D, the width of one projected member."""
        return self.Q

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


def stacked(z: Members) -> Tensor:
    """(K, *, M, D); a view if all members are the same tensor."""
    if isinstance(z, Tensor):
        return z
    return z[0].expand(len(z), *z[0].shape) if all(z_k is z[0] for z_k in z) else torch.stack([*z])


def add_bias(y: Tensor, bias: Tensor | None) -> Tensor:
    """The output plus the bias, in the output's dtype."""
    return y if bias is None else y + bias.to(y.dtype)


def param(module: nn.Module, name: str) -> Any:
    """A parameter by name, without `nn.Module.__getattr__`, which is slow, unless it is parametrized or normed."""
    own = module._parameters
    return own[name] if name in own else getattr(module, name)


KNOWN = "known"  # the name of the step that multiplies kept A^T x by Theta
AT_ONCE = "compacted, at once"  # the order whose step takes the matrices of any parameter, written out
# See `Theta.step`; the others take a parameter whose weight is (K, P, Q).
STEPS: dict[str, Step] = {
    "a_first": lambda theta, x, bias, A: a_first(x, param(theta, "weight"), bias, A),
    "theta_first": lambda theta, x, bias, A: theta_first(x, param(theta, "weight"), bias, A),
    AT_ONCE: lambda theta, x, bias, A: a_first_nonzero(x, theta.dense(x.shape[1]), bias, A),
    KNOWN: lambda theta, x, bias, A: times_theta(A.known_rows(x), param(theta, "weight"), bias),  # type: ignore[attr-defined]
}


def for_batches(step: Step) -> Step:
    r"""The same step for x with leading batch dimensions: (\*, M, P) -> (\*, N, Q), in one product of each kind.

    It copies x and the result, which only pays while they are small.
    """

    def run(theta: Theta, x: Tensor, bias: Tensor | None, A: Rows) -> Tensor:
        *batch, M, P = x.shape
        copies = math.prod(batch)
        # Node by node, and side by side the copies of each; contiguous, where x is expanded from less.
        rows = x.movedim(-2, 0).reshape(M * copies, P).contiguous()
        y = step(theta, rows, bias, Copies(A, copies))  # (N B, Q)
        return y.view(y.shape[0] // copies, *batch, y.shape[1]).movedim(0, -2).contiguous()

    return run


def glorot(weight: Tensor, P: int, Q: int, variance_gains: Sequence[float] = (1,)) -> None:
    """Initialises uniformly as Glorot and Bengio, for sums of so many products: of all members, or of each."""
    draw_uniform(weight, 6 / max(1, P + Q), variance_gains)


def draw_uniform(weight: Tensor, square: float, gains: Sequence[float]) -> None:
    """Draws uniform numbers up to the root of `square` divided by a gain: that of all rows, or of each."""
    gains = gains[:1] if len(set(gains)) == 1 else gains
    with torch.no_grad():
        for rows, gain in zip(weight.chunk(len(gains)), gains, strict=True):
            bound = math.sqrt(square / gain)
            rows.uniform_(-bound, bound)


def project(x: Tensor, weight: Tensor) -> Tensor:
    """All x Theta_k, with Theta the weight, in one product that reads x once: (*, M, P), (K, P, Q) -> (K, *, M, Q).

    >>> project(torch.ones(5, 3), torch.ones(2, 3, 4)).shape
    torch.Size([2, 5, 4])
    """
    K, _, Q = weight.shape
    flat = side_by_side(weight)
    z = matmul(x, flat) if x.layout == torch.strided else sparse_matmul(x, flat)  # (*, M, K Q)
    return z.unsqueeze(0) if K == 1 else z.unflatten(-1, (K, Q)).movedim(-2, 0)
