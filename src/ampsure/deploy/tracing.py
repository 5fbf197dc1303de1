"""Torch code as an ONNX graph: the code runs once, and every operation on what depends on the input becomes a node.

Made for the code of surrogates: tensors whose sizes are fixed but for one, the batch, and constants that keep their
precision. What does not depend on the input is a constant of the graph; equal nodes are one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ampsure.errors import AmpsureError

from .float64 import DECOMPOSITIONS

if TYPE_CHECKING:
    from onnx import GraphProto

__all__ = ["BATCH", "trace"]

BATCH = 499
"""Events in a trace: a prime, so that a size of a tensor is either fixed or this one."""


def trace(
    function: Callable[[Tensor], Sequence[Tensor]], example: Tensor, input_name: str, output_names: Sequence[str]
) -> GraphProto:
    """The graph of a function of one tensor.

    Args:
        function: tensor (N, ...) -> tensors (N, ...).
        example: with N = `BATCH`.
    """
    from onnx import helper

    tracer = _Tracer()
    example = example.clone()
    setattr(example, _NAME, input_name)
    with torch.no_grad(), tracer:
        outputs = function(example)
    for tensor, name in zip(outputs, output_names, strict=True):
        if not _name(tensor):
            raise AmpsureError(f"The output {name!r} does not follow from its input by operations of torch.")
        tracer.nodes.append(helper.make_node("Identity", [tracer.ref(tensor)], [name]))

    def described(name: str, tensor: Tensor) -> Any:
        shape = ["N" if size == BATCH else size for size in tensor.shape]
        return helper.make_tensor_value_info(name, _onnx_type(tensor.dtype), shape)

    nodes, used = [], set(output_names)
    for node in reversed(tracer.nodes):  # what no output needs is left out
        if used.intersection(node.output):
            nodes.append(node)
            used.update(node.input)
    return helper.make_graph(
        nodes[::-1],
        "ampsure",
        [described(input_name, example)],
        [described(name, tensor) for name, tensor in zip(output_names, outputs, strict=True)],
        [constant for constant in tracer.constants.values() if constant.name in used],
    )


class _Tracer(TorchDispatchMode):
    """Turns what torch does into nodes.

    Tensors that depend on the input carry their name in the graph.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[Any] = []
        self.constants: dict[Any, Any] = {}
        self._known: dict[Any, list[str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(_name(tensor) for tensor in _tensors((args, kwargs))):
            return func(*args, **kwargs)
        if func in DECOMPOSITIONS:
            with self:
                replaced = DECOMPOSITIONS[func](*args, **kwargs)
            if replaced is not NotImplemented:
                return replaced
        operation, out = str(func.overloadpacket.__name__), func(*args, **kwargs)
        try:
            if func._schema.is_mutable:
                raise TypeError
            results = _HANDLERS[operation](self, out, *args, **kwargs)
        except (KeyError, TypeError) as error:  # unknown, with options that are, or in place
            raise AmpsureError(
                f"The operation {operation!r} of torch cannot be exported as it is used: write features without it."
            ) from error
        several = isinstance(out, tuple | list)
        for tensor, name in zip(out if several else [out], results if several else [results], strict=False):
            setattr(tensor, _NAME, name)
        return out

    def ref(self, value: Any, dtype: torch.dtype | None = None) -> str:
        """The name of a tensor or number, as a constant if it does not depend on the input, in the given precision."""
        if isinstance(value, Tensor) and (name := _name(value)):
            return name if dtype in (None, value.dtype) else self.node("Cast", name, to=_onnx_type(dtype))
        with torch.utils._python_dispatch._disable_current_modes():
            array = np.array(torch.as_tensor(value, dtype=dtype).cpu().numpy())  # a copy: views are not contiguous
        return self.constant(array)

    def constant(self, array: np.ndarray[Any, Any]) -> str:
        """The name of an array in the graph."""
        from onnx import numpy_helper

        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = numpy_helper.from_array(array, f"c{len(self.constants)}")
        return str(self.constants[key].name)

    def ints(self, values: Iterable[int]) -> str:
        """The name of a list of integers."""
        return self.constant(np.array(list(values), dtype=np.int64))

    def node(self, operation: str, *inputs: str, **attributes: Any) -> str:
        """The output of a new node, or of an equal one."""
        return self.outputs(operation, 1, *inputs, **attributes)[0]

    def outputs(self, operation: str, n: int, *inputs: str, **attributes: Any) -> list[str]:
        """All n outputs of a new node, or of an equal one."""
        from onnx import helper

        key = (operation, inputs, tuple(sorted(attributes.items())))
        if key not in self._known:
            names = [f"v{len(self.nodes)}_{k}" for k in range(n)]
            self.nodes.append(helper.make_node(operation, inputs, names, **attributes))
            self._known[key] = names
        return self._known[key]


_NAME = "_name_in_graph"


def _name(tensor: Tensor) -> str | None:
    return getattr(tensor, _NAME, None)


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


def _onnx_type(dtype: torch.dtype | None) -> int:
    from onnx import TensorProto

    types = {
        torch.float64: TensorProto.DOUBLE,
        torch.float32: TensorProto.FLOAT,
        torch.int64: TensorProto.INT64,
        torch.bool: TensorProto.BOOL,
    }
    if dtype not in types:
        raise AmpsureError(f"Tensors of {dtype} cannot be exported: use float64 or float32.")
    return int(types[dtype])


# One handler an operation: (tracer, what torch computed, arguments as torch gives them) -> name, or names.
_Handler = Callable[..., Any]


def _unary(operation: str) -> _Handler:
    return lambda t, out, x: t.node(operation, t.ref(x))


def _binary(operation: str) -> _Handler:
    def handler(t: _Tracer, out: Tensor, a: Any, b: Any, alpha: float = 1) -> str:
        if alpha != 1:
            b = b * alpha
        if operation == "Mul" and isinstance(b, int | float) and b == 1:
            return t.ref(a, out.dtype)
        dtype = torch.result_type(a, b)
        return t.node(operation, t.ref(a, dtype), t.ref(b, dtype))

    return handler


def _reduction(operation: str) -> _Handler:
    def handler(t: _Tracer, out: Tensor, x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> str:
        dims = range(x.ndim) if dim in (None, []) else [dim] if isinstance(dim, int) else dim
        return t.node(operation, t.ref(x, out.dtype), t.ints(d % x.ndim for d in dims), keepdims=int(keepdim))

    return handler


def _same(t: _Tracer, out: Tensor, x: Tensor, *_: Any, **__: Any) -> str:
    return t.ref(x, out.dtype)


def _softmax(operation: str) -> _Handler:
    return lambda t, out, x, dim, _: t.node(operation, t.ref(x), axis=dim)


def _filled(value: float | None) -> _Handler:
    """A tensor of the shape of another one, with one value everywhere."""

    def handler(t: _Tracer, out: Tensor, x: Tensor, *given: Any, **_: Any) -> str:
        if out.shape != x.shape:
            raise AmpsureError("Only tensors of the shape of another one can be filled in an exported graph.")
        return t.node("Expand", t.ref(given[0] if value is None else value, out.dtype), t.node("Shape", t.ref(x)))

    return handler


def _pow(t: _Tracer, out: Tensor, x: Any, exponent: Any) -> str:
    if exponent == 2:
        return t.node("Mul", t.ref(x), t.ref(x))
    if exponent == 0.5:
        return t.node("Sqrt", t.ref(x))
    return t.node("Pow", t.ref(x, out.dtype), t.ref(exponent, out.dtype))


def _clamp(t: _Tracer, out: Tensor, x: Tensor, low: Any = None, high: Any = None) -> str:
    name = t.ref(x)
    for operation, limit, none in (("Max", low, -inf), ("Min", high, inf)):
        if isinstance(limit, Tensor) or limit not in (None, none):
            name = t.node(operation, name, t.ref(limit, out.dtype))
    return name


def _where(t: _Tracer, out: Tensor, condition: Tensor, a: Any, b: Any) -> str:
    return t.node("Where", t.ref(condition), t.ref(a, out.dtype), t.ref(b, out.dtype))


def _nan_to_num(t: _Tracer, out: Tensor, x: Tensor, nan: float | None = None, *limits: float | None) -> str:
    if any(limit is not None for limit in limits):
        raise AmpsureError("nan_to_num can be exported without limits alone.")
    number = t.node("Where", t.node("IsNaN", t.ref(x)), t.ref(nan or 0.0, x.dtype), t.ref(x))
    edge = torch.finfo(x.dtype).max
    return t.node("Min", t.node("Max", number, t.ref(-edge, x.dtype)), t.ref(edge, x.dtype))


def _select(t: _Tracer, out: Tensor, x: Tensor, dim: int, index: int) -> str:
    return t.node("Gather", t.ref(x), t.ref(index, torch.int64), axis=dim)


def _unbind(t: _Tracer, out: Sequence[Tensor], x: Tensor, dim: int = 0) -> list[str]:
    return [_select(t, part, x, dim, k) for k, part in enumerate(out)]


def _slice(
    t: _Tracer, out: Tensor, x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> str:
    if out.shape == x.shape:
        return t.ref(x)
    return t.node("Slice", t.ref(x), *(t.ints([k]) for k in (start or 0, 2**63 - 1 if end is None else end, dim, step)))


def _index(t: _Tracer, out: Tensor, x: Tensor, indices: list[Tensor | None]) -> str:
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(given) != 1 or given[0][1].dtype == torch.bool:
        raise AmpsureError("Only indices along one dimension can be exported.")
    [(dim, index)] = given
    if not _name(index) and index.tolist() == list(range(x.shape[dim])):
        return t.ref(x)
    return t.node("Gather", t.ref(x), t.ref(index), axis=dim)


def _expand(t: _Tracer, out: Tensor, x: Tensor, *_: Any, **__: Any) -> str:
    sizes = [1 if size == BATCH else size for size in out.shape]  # Expand goes both ways: 1 keeps what is there
    return t.ref(x) if out.shape == x.shape else t.node("Expand", t.ref(x), t.ints(sizes))


def _view(t: _Tracer, out: Tensor, x: Tensor, *_: Any) -> str:
    for place, size in enumerate(out.shape):
        if size == BATCH and (place >= x.ndim or x.shape[place] != BATCH):
            raise AmpsureError("Only a reshape that leaves the batch in its place can be exported.")
    return t.node("Reshape", t.ref(x), t.ints(0 if size == BATCH else size for size in out.shape))


def _permute(t: _Tracer, out: Tensor, x: Tensor, dims: list[int]) -> str:
    return t.node("Transpose", t.ref(x), perm=tuple(d % x.ndim for d in dims))


def _transpose(t: _Tracer, out: Tensor, x: Tensor, a: int = 0, b: int = 1) -> str:
    order = list(range(x.ndim))
    order[a], order[b] = order[b], order[a]
    return _permute(t, out, x, order)


def _cat(t: _Tracer, out: Tensor, tensors: list[Tensor], dim: int = 0) -> str:
    return t.node("Concat", *(t.ref(x, out.dtype) for x in tensors), axis=dim)


def _stack(t: _Tracer, out: Tensor, tensors: list[Tensor], dim: int = 0) -> str:
    place = t.ints([dim % out.ndim])
    return t.node("Concat", *(t.node("Unsqueeze", t.ref(x, out.dtype), place) for x in tensors), axis=dim % out.ndim)


def _with_axes(operation: str) -> _Handler:
    def handler(t: _Tracer, out: Tensor, x: Tensor, dim: int | list[int]) -> str:
        return t.node(operation, t.ref(x), t.ints([dim] if isinstance(dim, int) else dim))

    return handler


def _sort(t: _Tracer, out: Sequence[Tensor], x: Tensor, dim: int = -1, descending: bool = False, **_: Any) -> list[str]:
    """By TopK, which gives the first of equal values first."""
    return _topk(t, out, x, x.shape[dim], dim, descending)


def _topk(
    t: _Tracer, out: Sequence[Tensor], x: Tensor, k: int, dim: int = -1, largest: bool = True, *_: Any, **__: Any
) -> list[str]:
    return t.outputs("TopK", 2, t.ref(x), t.ints([k]), axis=dim, largest=int(largest))


def _argmax(t: _Tracer, out: Tensor, x: Tensor, dim: int, keepdim: bool = False) -> str:
    """By TopK: onnxruntime's ArgMax gives an empty batch a wrong shape."""
    index = t.outputs("TopK", 2, t.ref(x), t.ints([1]), axis=dim)[1]
    return index if keepdim else t.node("Squeeze", index, t.ints([dim]))


def _gather(t: _Tracer, out: Tensor, x: Tensor, dim: int, index: Tensor) -> str:
    return t.node("GatherElements", t.ref(x), t.ref(index), axis=dim)


def _norm(t: _Tracer, out: Tensor, x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False) -> str:
    if order != 2:
        raise AmpsureError("Of all norms only the Euclidean one can be exported.")
    return str(_reduction("ReduceL2")(t, out, x, dim, keepdim))


def _affine(t: _Tracer, out: Tensor, bias: Tensor, x: Tensor, weights: Tensor, **factors: float) -> str:
    if any(factor != 1 for factor in factors.values()):
        raise AmpsureError("Products of matrices can be exported without factors alone.")
    if weights.ndim == 3 and len(weights) == 1 and not _name(weights):
        weights = weights[0]  # onnxruntime packs a matrix once, a stack of them in every run
    return t.node("Add", t.node("MatMul", t.ref(x), t.ref(weights)), t.ref(bias))


def _rsub(t: _Tracer, out: Tensor, x: Tensor, other: Any, alpha: float = 1) -> str:
    scaled = t.ref(x, out.dtype)
    if alpha != 1:
        scaled = t.node("Mul", scaled, t.ref(alpha, out.dtype))
    return t.node("Sub", t.ref(other, out.dtype), scaled)


def _addcmul(t: _Tracer, out: Tensor, x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> str:
    product = t.node("Mul", t.ref(a), t.ref(b))
    if value != 1:
        product = t.node("Mul", product, t.ref(value, out.dtype))
    return t.node("Add", t.ref(x), product)


_HANDLERS: dict[str, _Handler] = {
    **{
        name: _unary(operation)
        for name, operation in {
            "abs": "Abs", "neg": "Neg", "sign": "Sign", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "sin": "Sin",
            "cos": "Cos", "tanh": "Tanh", "sigmoid": "Sigmoid", "relu": "Relu", "reciprocal": "Reciprocal",
            "floor": "Floor", "ceil": "Ceil", "isnan": "IsNaN", "bitwise_not": "Not", "logical_not": "Not",
            "erf": "Erf", "asinh": "Asinh", "sinh": "Sinh", "cosh": "Cosh", "atan": "Atan",
        }.items()
    },
    **{
        name: _binary(operation)
        for name, operation in {
            "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "maximum": "Max", "minimum": "Min",
            "gt": "Greater", "ge": "GreaterOrEqual", "lt": "Less", "le": "LessOrEqual", "eq": "Equal",
            "bitwise_and": "And", "bitwise_or": "Or", "logical_and": "And", "logical_or": "Or",
            "__and__": "And", "__or__": "Or", "bmm": "MatMul", "mm": "MatMul",
        }.items()
    },
    **dict.fromkeys(("detach", "alias", "clone", "lift_fresh", "_to_copy"), _same),
    **dict.fromkeys(("clamp", "clamp_min"), _clamp),
    **dict.fromkeys(("addmm", "baddbmm"), _affine),
    **dict.fromkeys(("view", "_unsafe_view"), _view),
    "rsub": _rsub,
    "addcmul": _addcmul,
    "clamp_max": lambda t, out, x, high: _clamp(t, out, x, None, high),
    "gelu": lambda t, out, x, approximate="none": t.node("Gelu", t.ref(x), approximate=approximate),
    "pow": _pow,
    "where": _where,
    "masked_fill": lambda t, out, x, mask, value: _where(t, out, mask, value, x),
    "nan_to_num": _nan_to_num,
    "sum": _reduction("ReduceSum"),
    "mean": _reduction("ReduceMean"),
    "amax": _reduction("ReduceMax"),
    "amin": _reduction("ReduceMin"),
    "logsumexp": _reduction("ReduceLogSumExp"),
    "linalg_vector_norm": _norm,
    "all": _reduction("ReduceMin"),
    "any": _reduction("ReduceMax"),
    "_softmax": _softmax("Softmax"),
    "_log_softmax": _softmax("LogSoftmax"),
    "zeros_like": _filled(0.0),
    "ones_like": _filled(1.0),
    "full_like": _filled(None),
    "select": _select,
    "unbind": _unbind,
    "slice": _slice,
    "index": _index,
    "expand": _expand,
    "permute": _permute,
    "transpose": _transpose,
    "t": _transpose,
    "cat": _cat,
    "stack": _stack,
    "unsqueeze": _with_axes("Unsqueeze"),
    "squeeze": _with_axes("Squeeze"),
    "sort": _sort,
    "topk": _topk,
    "argmax": _argmax,
    "gather": _gather,
}  # fmt: skip
"""Operations of torch by name."""
