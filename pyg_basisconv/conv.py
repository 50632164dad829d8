"""BasisConv: the formula."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.compiler import is_dynamo_compiling
from torch.nn.parameter import UninitializedParameter

from . import compiled
from .basis import Basis, BoundBasis, check_bases
from .binding import Binding, Reader, bind, content_of, read_alike, sources, whole
from .bound import ContentStep
from .cache import Witness, drop_oldest
from .content import Inputs
from .costs import Problem
from .errors import call_it, check_flags, check_made, refuse_arguments, reject
from .graph import Graph, Size, grid_shape, sizes
from .kernels.op import autocasting
from .messages import Messages
from .orders import LINKED, ORDERS
from .plan import Plan, check_order, measured, planned, reaches_unlinked, sparser
from .portable import fixed_mode, portable, with_kernels, with_plain
from .printing import arguments
from .program import FORMS, Call, Evaluation, Form, Program, Programs, call_key, form, witness
from .theta import Theta, default
from .theta.base import KNOWN, Step, for_batches, param
from .transient import TransientEdges

_BATCH = 1 << 16  # numbers of a batch up to which copying it costs less than evaluating the order in several steps


class BasisConv(Messages):
    r"""Convolution on any structure: :math:`y = \sum_k A_k^\top x \, \Theta_k + b`.

    The basis A says which structure, the parameter Theta what is learnt, and the plan in which order the product is
    taken (J.-M. Andreoli, Convolution, attention and structure embedding, arXiv:1905.01289, Eq. 4).

    Args:
        in_channels: P, or -1 to find it in the first call; or (P, P') where targets have features of another width.
        out_channels: Q; or -1 beside an `in_channels` of -1, with `theta.Pass` and `bias=False`, for any width.
        basis: the family A, see `pyg_basisconv.bases`.
        theta: the kind of parameter, see `pyg_basisconv.theta`; `theta.Full()` by default.
        order: 'auto', or 'a_first', 'theta_first', 'phi', 'native', 'compacted' or 'mixed', then obeyed or refused
            with a reason.
        bias: whether b is there.
        cached: keep the :math:`A_k^\top x` of an x that needs no gradient, and a sparse copy where it is mostly zeros,
            for as long as x and the graph are the same (the very same tensors, unchanged): for a first layer in
            full-batch training.
        **kwargs: of `torch_geometric.nn.MessagePassing` (`flow`, `decomposed_layers`).

    Shapes:
        - x: (\*, M, P), leading batch dimensions allowed; or (M, P) in a `torch.sparse` layout; or a pair
          `(x_src, x_dst)` of (\*, M, P) and (\*, N, P), where x_dst may be None
        - y: (\*, N, Q)

    Orders, all with the same result:
        - a_first: the :math:`A_k^\top x` at width P, and then Theta; for narrow inputs
        - theta_first: the :math:`x \Theta_k` first, and then A at width Q; for narrow outputs, and sparse x
        - phi: the operator :math:`\sum_k A_k \otimes \Theta_k` is built once; for small graphs and large batches
        - native: torch's own kernel for convolutions of grids, and for attention over all pairs
        - compacted: only the rows that a type of edges touches are multiplied; for many types
        - mixed: the A_k are mixed as `theta.Separable` says before they are applied

    Raises:
        ValueError: whatever does not fit, with the argument, what was expected, what came, and the fix.

    >>> import torch
    >>> from pyg_basisconv import BasisConv, bases
    >>> conv = BasisConv(8, 4, bases.Chebyshev(K=3))
    >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> conv(torch.randn(3, 8), edge_index).shape
    torch.Size([3, 4])
    >>> conv
    BasisConv(8, 4, Chebyshev(K=3), Full())
    """

    takes_pairs = True  # False for two layers in one, which refuse (x_src, x_dst)
    takes_sources = True  # False where the first of two reads the targets' own features, and (x, None) is refused

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        basis: Basis,
        theta: Theta | None = None,
        order: str = "auto",
        bias: bool = True,
        cached: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(in_channels, Basis):
            reject("in_channels", "a width", in_channels, "the order is BasisConv(in_channels, out_channels, basis)")
        check_bases(basis)
        if not basis.needs_edges:
            self._explain = False  # PyG's explainers have masks for the edges of a graph
        check_order(order)
        check_flags(bias=bias, cached=cached)
        widths = in_channels if isinstance(in_channels, tuple | list) else (in_channels, in_channels)
        if len(widths) != 2 or (widths is in_channels and not basis.reads_content):
            expected = "P, or (P, P') for a basis that reads sources and targets"
            reject("in_channels", expected, in_channels, "give one width, or two for bases.Attention")
        for name, size, least, open_ in (
            *(("in_channels", width, 0, True) for width in widths),  # x may have no columns
            ("out_channels", out_channels, 1, not bias),
        ):
            if isinstance(size, bool) or not isinstance(size, int) or not (size >= least or (open_ and size == -1)):
                expected = ("a positive integer" if least else "an integer from 0 on") + (", or -1" if open_ else "")
                reject(name, expected, repr(size), "give the width")
        if theta is not None and not isinstance(theta, Theta):
            reject("theta", "a Theta", repr(theta), call_it(theta, "make one, such as theta.Full()"))
        self.in_channels, self.out_channels = in_channels, out_channels
        self.target_channels = widths[1] if basis.reads_nodes else -1
        self.basis = basis
        theta = default() if theta is None else theta
        check_made("theta", "a Theta", theta)
        theta.variance_gains = basis.variance_gains
        self.theta = theta.build(basis.K, widths[0], out_channels)
        if basis.reads_content:
            basis.complete(*widths, self.theta.inner)
        self.order, self.cached = order, cached
        self.register_parameter("bias", nn.Parameter(torch.zeros(out_channels)) if bias else None)
        self.serial = compiled.serial_number(self)
        self._programs = Programs()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.serial = compiled.serial_number(self)

    def reset_parameters(self) -> None:
        """Draws Theta, and the parameters of the basis, anew and sets the bias to zero."""
        super().reset_parameters()
        self.basis.reset_parameters()
        if not self.is_lazy:  # or the first call draws it
            self.theta.reset_parameters()
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @property
    def weight(self) -> Tensor:
        """The weight of theta; (K, P, Q) where it is `theta.Full`."""
        return self.theta.weight

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor | None],
        edge_index: Any = None,
        edge_weight: Tensor | None = None,
        edge_type: Tensor | None = None,
        *,
        edge_attr: Tensor | None = None,
        size: Size = None,
        batch: Tensor | None = None,
        lambda_max: Tensor | float | None = None,
        mask: Tensor | None = None,
        valid: Tensor | None = None,
        grid: int | Sequence[int] | None = None,
        edge_values: Theta | None = None,
        return_attention: bool = False,
        **kwargs: Any,
    ) -> Any:
        r"""Applies the layer; returns y, (\*, N, Q), or (y, A) with `return_attention`.

        Args:
            x: the features, see Shapes above. The gradient of an x_dst that is `x_src[:N]` is added to that of x_src.
            edge_index: (2, E); `torch_geometric.EdgeIndex`; the transposed adjacency (N, M) as a `torch.sparse` COO,
                CSR or CSC tensor or a `torch_sparse.SparseTensor`; a bound basis; or None where the basis needs none.
            edge_weight: (E,), or (E, K) for `bases.Edges`. `bases.Attention` ignores it, unless `weighted=True`.
            edge_type: (E,) for typed edges.
            edge_attr: (E, D) for `bases.Spline`, `Gaussians`, `Points`, `EdgeNetwork` and other `bases.EdgeFunctions`;
                (E, R) for mechanisms that read edges, or (M, N, R) where all pairs are edges, or (\*, E, R) or
                (\*, M, N, R) where each graph of a batch has its own.
            size: (M, N), to be checked, or where x_dst is None.
            batch: (M,) the graph that each node of a batch belongs to.
            lambda_max: for `bases.Chebyshev`, a number or one per graph of the batch.
            mask: for attention, (M, N), (*, M, N) or (*, K, M, N): True where the target n may look at the source m, or
                numbers to be added to the scores. (torch's `attn_mask` is its transpose.)
            valid: for attention, (*, M), True for the sources that are there. (torch's `key_padding_mask` is its
                contrary.)
            grid: the shape of the grid that x is, flattened with the last axis fastest, for `bases.Window` and its like
                without a shape of their own; see also `GridConv`.
            edge_values: for `bases.Attention`, the parameter V of values that edges have, which are added to those of
                their sources: :math:`\sum_m A_{k,mn} (x_m \Theta_k + z_{mn} V_k)`, with z for `edge_attr`. It is a
                `theta.Heads` as the layer's own, built for the width R of z: `theta.Heads().build(K, R, Q)`.
            return_attention: also return the basis, bound: what a basis that is computed from content came to.
            **kwargs: refused, with what takes the place of an argument of PyG's layers or of torch's attention.
        """
        if kwargs:
            refuse_arguments(kwargs, "BasisConv.forward")
        graph = edge_index, edge_weight, edge_type, edge_attr, size, batch, lambda_max, mask, valid, grid
        return self._run(Call(x, *graph, edge_values), return_attention)

    def _run(self, call: Call, observed: bool) -> Any:
        """The result of a call, by the program of an earlier call like it, or by a new one, which is kept."""
        # With a callback set, torch.compile would trace what is called from here, as it does after a graph break.
        if is_dynamo_compiling() or get_eval_frame_callback():
            if not observed and call.edge_values is None and compiled.applies(self, call.x, call.edge_index):
                return compiled.results(self, call._asdict())[0]
            return self.evaluate(*call, observed=observed)
        key = self._observed_key(call) if observed else call_key(self, call)
        if key is None:
            return self.evaluate(*call, observed=observed)
        program = self._programs.find(key, self._modules["basis"], call)
        return self._first(key, call, observed) if program is None else program(self, call)

    def _observed_key(self, call: Call) -> Hashable | None:
        """The key of a call that returns its basis, or None if no program of it may be kept."""
        computed = self.basis.reads_content and not (call.image or isinstance(call.edge_index, BoundBasis))
        seen = call_key(self, call) if computed else None
        return None if seen is None else (seen, self.basis.training)  # a vendor's kernel does not tell what it drops

    @with_kernels  # as `call_key` gives no key to calls in the portable path
    def _first(self, key: Hashable, call: Call, observed: bool) -> Any:
        """The result of a call that no program was made for; its form may be known from a call on another graph."""
        programs, own = self._programs, self._modules["basis"]
        alike = None if observed else form(self, key, call)
        known = programs.forms.get(alike)
        program = None if known is None else self._program_like(known, key, call)
        if program is not None:
            return program(self, call)
        seen = witness(own, call)
        bound = self._bind(call, observed, seen)
        chosen = self._choose(bound.inputs, bound.family) if known is None else known.plan
        evaluation = self._evaluation(call, bound, chosen, observed)
        programs.keep(key, own, call, evaluation.program, seen)
        # Only an order that is possible on every graph may be used on others.
        always = chosen.chosen.form in ORDERS[chosen.order].always and not chosen.problem.cached
        if alike is not None and bound.graph is not None and always:
            plain = self._is_plain(call) and not autocasting(bound.inputs.x.device)
            programs.forms[alike] = Form(chosen, evaluation.build, evaluation.step) if plain else Form(chosen)
            drop_oldest(programs.forms, FORMS)
        y = evaluation.result()
        return (y, bound.family.matrices) if observed else y

    def _program_like(self, known: Form, key: Any, call: Call) -> Program | None:
        """The program of a call on another graph than that of an earlier call of its form, without a plan. It is kept
        from the second call on this graph.
        """
        if known.build is None:
            return None
        own, programs, basis = self._modules["basis"], self._programs, self._basis_for(call)
        seen = witness(own, call) if programs.asked_before(key) else None
        where, _ = key[2]  # of its edges, which are plain
        passing = None if seen is not None or known.step is None else self._transient(known.step, basis, call)
        if passing is not None:
            return passing
        read = read_alike(self, basis, call, where, seen)
        program = None if read is None else known.build(basis, *read)
        if program is not None and seen is not None:
            programs.keep(key, own, call, program, seen)
        return program

    def _transient(self, step: Step, basis: Basis, call: Call) -> Program | None:
        """The program of a call whose graph is not worth binding; None for other calls."""
        x = call.x
        reads: Reader = whole
        if not (isinstance(x, Tensor) or basis.reads_target or x[1] is None or x[0].shape[-2] != x[1].shape[-2]):
            x, reads = x[0], sources
        bare = call.edge_weight is call.edge_type is call.size is None and isinstance(x, Tensor)
        family = TransientEdges.of(basis, x, call.edge_index) if bare and self.flow == "source_to_target" else None
        return None if family is None else partial(_run_step, step, family, reads)

    @torch.compiler.disable
    @fixed_mode
    def evaluate(self, x: Any, *args: Any, observed: bool = False, **given: Any) -> Any:
        """Binds, plans and evaluates a call, without programs. With `observed`, it returns the bound basis, too.

        torch.compile does not trace it: it takes the operator of `compiled`, or breaks the graph.
        """
        call = Call(x, *args, **given)
        self.theta.prepare()
        bound = self._bind(call, observed)
        y = self._evaluation(call, bound, self._choose(bound.inputs, bound.family), observed).result()
        return (y, bound.family.matrices) if observed else y

    def _bind(self, call: Call, observed: bool = False, seen: Witness | None = None) -> Binding:
        """Checks a call, and binds the basis to it."""
        return bind(self, self._basis_for(call), call, observed, seen)

    def _is_plain(self, call: Call) -> bool:
        """Whether a call has no more than features, edges with weights, types or features, and sizes."""
        edges = call.edge_index
        plain = type(edges) is Tensor and edges.layout is torch.strided
        further = call._replace(edge_attr=None, edge_values=None, size=None)[4:-1]
        return plain and not any(t is not None for t in further) and type(self)._bind is BasisConv._bind

    def _basis_for(self, call: Call) -> Basis:
        """The basis for the graph of a call. Layers of PyG may need different ones for different layouts of edges."""
        return self._modules["basis"]

    def _edge_weight(self, call: Call) -> Tensor | None:
        """The weights of the edges of a call; some layers of PyG make them of other numbers."""
        return call.edge_weight

    def _step(self, bound: Binding, chosen: Plan) -> Step | None:
        """The chosen order as one step, if the parameter and the family have one."""
        theta, x, cached = bound.inputs.theta, bound.inputs.x, chosen.problem.cached
        known = cached and ORDERS[chosen.order].keeps_products
        step = theta.step(KNOWN if known else chosen.chosen.name)
        if bound.graph is not None and bound.graph.learns:  # its weights are read in each call, with gradients or not
            return None
        if step is None or x.layout != torch.strided or not (known or bound.family.takes_rows):
            return None
        if cached and not (known and x.dim() == 2):
            return None
        if x.dim() != 2:
            if not 0 < x.numel() <= _BATCH:
                return None
            step = for_batches(step)
        # A family that was constant in this call, but read its content, may be another in the next.
        return None if bound.graph is not None and self.basis.reads_content else step

    def _evaluation(self, call: Call, bound: Binding, chosen: Plan, observed: bool) -> Evaluation:
        """How to evaluate it. Programs are functions at the end of this file; `GridConv` has others for images."""
        inputs, family, graph, reads = bound
        kept = None if graph is None else family  # a bound family is an argument of each call
        in_steps = not (chosen.problem.messages or portable() or autocasting(inputs.x.device))
        step = self._step(bound, chosen) if in_steps else None
        if step is not None:
            result = partial(step, inputs.theta, inputs.x, param(self, "bias"), family)
            transient = self._basis_for(call).letters is not None and not ORDERS[chosen.order].measures
            passing = step if transient else None
            return Evaluation(result, partial(_run_step, step, kept, reads), partial(_build_step, step), passing)
        # The same for a family that is computed from content.
        content_step = family.content_step(self.theta, chosen.order) if in_steps and graph is not None else None
        if content_step is not None and graph is not None:
            result = partial(family.in_one_step, chosen.order, inputs, self.bias)
            program = partial(_run_content_step, content_step, graph, reads, observed)
            on = content_step.on_graph
            return Evaluation(result, program, None if on is None else partial(_build_content_step, on))
        result = partial(self._in_order, inputs, family, chosen, call)
        if graph is not None and graph.learns:
            program = partial(_run_order_anew, chosen, graph.holding_weight(None), reads, False)
            return Evaluation(result, program, partial(_build_order_anew, chosen))
        if graph is not None and self.basis.reads_content:
            return Evaluation(result, partial(_run_order_anew, chosen, graph, reads, observed))
        return Evaluation(result, partial(_run_order, chosen, kept, reads), partial(_build_order, chosen))

    def _in_order(self, inputs: Inputs, family: BoundBasis, chosen: Plan, call: Call) -> Tensor:
        """The result by the chosen order, in the dtype of autocast, and in memory of its own."""
        y = self._contracted(inputs, family.matrices, chosen)
        if family.constant_weights is not None:
            y = y + self.constant_part(family.constant_weights).to(y.dtype)
        if call.edge_values is not None:
            y = y + family.edge_sums(call.edge_values, call.edge_attr)
        if y._base is not None and not (torch.is_grad_enabled() or portable()):
            y = y.detach()  # a view that was made without gradients may not be written to with them
        return self.narrowed(y)

    def constant_part(self, constant_weights: Tensor) -> Tensor:
        """(N, Q) the sum of the constants of a `bases.Composition`, with their (J, N) weights."""
        constants = self.theta.constant_values
        if constants is None or len(constants) != len(constant_weights):
            got = None if constants is None else len(constants)
            reject("theta", f"{len(constant_weights)} constants, for {self.basis}", got, "make the layer by compose")
        return constant_weights.t().to(constants.dtype) @ constants

    @staticmethod
    def narrowed(y: Tensor) -> Tensor:
        """The result in the dtype of autocast, whatever the order; not in double precision."""
        plain = y.dtype == torch.float64 or not autocasting(y.device)
        return y if plain else y.to(torch.get_autocast_dtype(y.device.type))

    @property
    def is_lazy(self) -> bool:
        """Whether the width of the parameter is not known before the first call."""
        return isinstance(self.theta.reference, UninitializedParameter)

    def laid_out(self, y: Tensor, given: dict[str, Any]) -> Tensor:
        """The result of a call, in the memory format of `fake_result`."""
        return y.contiguous()

    def fake_result(self, given: dict[str, Any], unknown: Callable[[], int]) -> Tensor:
        r"""An empty tensor of the shape, (\*, N, Q), dtype and device of a call's result; reads no numbers.

        given: the arguments of the call; for a bound basis `onto`, the grid of its targets or N; unknown: makes a
        symbol for a number of targets that depends on the numbers in `batch`.
        """
        x = given["x"]
        source, target = x if isinstance(x, tuple | list) else (x, None)
        onto, basis = given.get("onto"), self.basis
        if onto is not None:
            N: int | None = prod(onto)
        elif target is not None:
            N = target.shape[-2]
        else:
            N = sizes(given.get("size"))[1]
            if N is None and "batch" in given and basis.counts_batch:
                N = unknown()
            elif N is None:
                with unset_fake_temporarily():  # it may read tensors of the basis
                    N = basis.sized(source.shape[-2], None, None, grid_shape(given.get("grid")))[1]
            if N is None:
                N = source.shape[-2]
        return source.new_empty(*source.shape[:-2], N, self.theta.outputs(source.shape[-1]))

    def _contracted(self, inputs: Inputs, family: BoundBasis, chosen: Plan) -> Tensor:
        theta, bias, problem = self.theta, self.bias, chosen.problem
        if problem.messages:
            family = self.with_messages(family)
        found = ORDERS[chosen.order].run(family, inputs, bias, chosen.chosen.form, problem.cached)
        if found is None:
            return self._contracted(inputs, family, self._choose(inputs, family))
        y, kept, biased = found
        if biased:
            return y
        if self.order == "auto" and reaches_unlinked(chosen, y):
            return self._contracted(inputs, family, self._choose(inputs, family, LINKED))
        if bias is None:
            return y.clone() if any(_same_memory(y, t) for t in (inputs.x, *kept)) else y
        # The bias is added in place to a result in memory that nothing else shares: one array less to write.
        own = theta.makes_results and not (theta.sums and self.basis.reads_content)
        own = own and y._base is None and y.dtype == bias.dtype and y.is_contiguous() and not problem.messages
        return _add_in_place(y, bias) if own else y + bias.to(y.dtype)

    @fixed_mode
    def plan(self, x: Tensor | tuple[Tensor, Tensor | None], edge_index: Any = None, *args: Any, **kwargs: Any) -> Plan:
        """The cost of each order for a call with its gradients, and which one is taken; called as the layer is."""
        self.theta.prepare()
        call = Call(x, edge_index, *args, **kwargs)
        inputs, family, *_ = self._bind(call)
        taken, exact = self._choose(inputs, family), planned(self._problem(inputs, family), self.order)
        if exact.order != taken.order:
            exact = replace(
                exact, order=taken.order, why=f"taken for all sizes about these, for which it is {taken.why}"
            )
        return replace(exact, hint=sparser(exact, call.x))

    @property
    def _fused(self) -> bool:
        """Whether no messages are asked for, see `Messages`."""
        if not self.fuse or self._decomposed_layers != 1 or any(self._observers):
            return False
        return not (self._explain and self._explained_otherwise)

    def _choose(self, inputs: Inputs, family: BoundBasis, order: str | None = None) -> Plan:
        """The plan for a call; calls of about the same sizes share one, which is cached."""
        problem, order = self._problem(inputs, family), self.order if order is None else order
        return planned(problem.coarse if order == "auto" and not portable() else problem, order)

    def _problem(self, inputs: Inputs, family: BoundBasis) -> Problem:
        """The sizes of a call."""
        x, family, messages = inputs.x, family.matrices, not self._fused
        fixed = not (x.requires_grad or family.requires_grad or self.basis.reads_content)
        fixed = fixed and not inputs.theta.lifts  # by a column of ones, which makes a new x in each call
        cached = self.cached and x.layout == torch.strided and fixed and not messages and not portable()
        return measured(inputs, family, self.order, cached, messages)

    def __repr__(self) -> str:
        first: list[Any] = [self.in_channels, self.out_channels, self.basis, self.theta]
        first += [f"order={self.order!r}"] if self.order != "auto" else []
        first += ["bias=False"] if self.bias is None else []
        return f"{type(self).__name__}({arguments(self, *first, cached=False, flow='source_to_target')})"


@with_plain(torch.add)
def _add_in_place(y: Tensor, bias: Tensor) -> Tensor:
    return y.add_(bias)


@with_plain(lambda y, t: y is t)
def _same_memory(y: Tensor, t: Tensor) -> bool:
    """Whether two tensors share memory."""
    if y is t:
        return True
    if y.layout != torch.strided or t.layout != torch.strided:
        return False
    return y.untyped_storage()._cdata == t.untyped_storage()._cdata


# The programs, whose first arguments are kept from the first call. `family` is None if a bound family is an argument of
# each call; `observed` is True if the call returns the family. They run by kernels, as the first call did.


def _run_step(
    step: Step, family: BoundBasis | TransientEdges | None, reads: Reader, layer: BasisConv, call: Call
) -> Tensor:
    """An order in one step, with a family that is the same in each call."""
    A = call.edge_index if family is None else family
    x = call.x if reads is whole else reads(call.x)
    return step(layer._modules["theta"], x, param(layer, "bias"), A)


@with_kernels
def _run_order(chosen: Plan, family: BoundBasis | None, reads: Reader, layer: BasisConv, call: Call) -> Tensor:
    """Any order, with a family that is the same in each call."""
    A = layer.basis.accept(call.edge_index) if family is None else family
    return layer._in_order(Inputs(reads(call.x), layer.theta), A, chosen, call)


@with_kernels
def _run_order_anew(chosen: Plan, graph: Graph, reads: Reader, observed: bool, layer: BasisConv, call: Call) -> Any:
    """Any order, with a family that is bound in each call: to the weights of the call, or to its content."""
    inputs, basis = Inputs(reads(call.x), layer.theta), layer._basis_for(call)
    if graph.learns:
        graph = graph.holding_weight(layer._edge_weight(call))
    else:
        graph = graph.holding(content_of(layer, call, graph, inputs, observed))
    family = basis.on(graph) if observed else basis.build(graph)  # `on` records the origin, which the caller may read
    y = layer._in_order(inputs, family, chosen, call)
    return (y, family.matrices) if observed else y


@with_kernels
def _run_content_step(
    step: ContentStep, graph: Graph, reads: Reader, observed: bool, layer: BasisConv, call: Call
) -> Any:
    """An order in one step, with a family that is computed from the content of the call."""
    modules, x, bias = layer._modules, reads(call.x), param(layer, "bias")
    basis, theta = modules["basis"], modules["theta"]
    if step.replay is not None:
        y = step.replay(basis, theta, x, bias, call)
        if y is not None:
            return y
    found: Any = None
    if step.run is not None:
        content = content_of(layer, call, graph, Inputs(x, theta), observed)
        found = step.run(basis, content, bias)
    if found is None:
        return layer.evaluate(*call, observed=observed)
    if observed:
        found[1].origin = basis, graph.holding(content)
    return found


# Programs for another graph: what builds them has its first argument from the first call, too.


def _build_step(step: Step, basis: Basis, graph: Graph, reads: Reader) -> Program | None:
    family = basis.on(graph)
    return partial(_run_step, step, family, reads) if family.takes_rows and family.M == graph.M else None


def _build_order(chosen: Plan, basis: Basis, graph: Graph, reads: Reader) -> Program | None:
    family = basis.on(graph)
    return partial(_run_order, chosen, family, reads) if family.M == graph.M else None


def _build_order_anew(chosen: Plan, basis: Basis, graph: Graph, reads: Reader) -> Program | None:
    square = graph.M == graph.N
    return partial(_run_order_anew, chosen, graph.holding_weight(None), reads, False) if square else None


def _build_content_step(
    on: Callable[[Basis, Graph], ContentStep | None], basis: Basis, graph: Graph, reads: Reader
) -> Program | None:
    step = on(basis, graph)
    return None if step is None else partial(_run_content_step, step, graph, reads, False)
