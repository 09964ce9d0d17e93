"""Errors of exports that fail, with the reason and what helps."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

from shardplan.errors import Diagnostic, error

_OPERATOR = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.]+)'")
_DENSE = "(Hugging Face: model.set_experts_implementation('batched_mm'))"
_STATIC = (
    "write it with shapes that do not: torch.where in place of `if`, masks in place of indices; experts as batched "
)
_STATIC += f"products {_DENSE}; sizes that it reads from tensors (int(...), tolist()) as numbers that the module keeps"
_DATA = r"data-dependent|unhashable type: .*SymInt|GuardOnDataDependent|Could not guard on|[uU]nbacked|SymbolicDim"
_OF_DATA = "a shape or a branch of it depends on the values of tensors"
_COMPLEX = r"complex-valued|complex dtype|[cC]omplex(64|128|Float|Double)"
_CAUSES: tuple[tuple[str, str, str], ...] = (
    (
        _DATA,
        _OF_DATA,
        _STATIC,
    ),
    (
        _COMPLEX,
        "it computes with complex numbers in a way that has no form of real ones here",
        "compute with real and imaginary parts, as torch.view_as_real(...) gives them",
    ),
    (
        r"entirely functional graph, but found",
        "it changes a view in place in a way that torch cannot write as a function",
        "give the changed tensor a name of its own: torch.diagonal_scatter, slice_scatter, torch.where",
    ),
    (
        r"linalg_|cholesky|matrix_exp|triangular_solve|aten\.(_?lu|qr|svd)",
        "it decomposes matrices, which ONNX has no operators for",
        "compute that before the model is called, and give it what comes of it",
    ),
    (
        r"ctc_loss",
        "ONNX has no connectionist (CTC) loss",
        "let the model return its scores, and compute the loss outside: functional.ctc_loss(scores.full_tensor(), ...)",
    ),
    (r"grouped_mm", "it uses a kernel of grouped experts", f"let experts be batched products {_DENSE}"),
    (
        r"flex_attention|flash_attn|_flash_attention",
        "it uses an attention kernel of its own",
        "use eager or scaled dot-product attention (Hugging Face: attn_implementation='eager' or 'sdpa')",
    ),
    (
        r"constant's list",
        "it makes tensors that no graph sees (tensor.data)",
        "read and change tensors themselves, under torch.no_grad() where gradients are to leave them out",
    ),
    (
        r"no attribute 'constant'",
        "it makes tensors inside of torch.vmap or another transform of torch.func, which no graph keeps",
        "make them before, or write it without the transform: torch.einsum, a batched product",
    ),
    (
        r"meta tensor|from data|data is not allocated",
        "it reads values of tensors while it runs",
        "keep what it reads as numbers",
    ),
    (
        r"Unsupported input type|not a known type",
        "it is called with objects that torch cannot look into",
        "register a dataclass where it is defined: torch.export.register_dataclass(Batch); or use a dict",
    ),
    (
        r"cast NotImplemented",
        "it computes with tensors of a class of its own",
        "give it plain ones: tensor.as_subclass(torch.Tensor)",
    ),
    (r"[sS]parse|compressed tensor", "it uses sparse tensors", "use dense ones"),
)
SHAPES_OF_DATA = error("cannot-export", f"torch cannot export this module: {_OF_DATA}", hint=_STATIC)
"""Of a module whose graph has sizes that nobody knows."""
FORWARD = "flat"
"""The function that calls a module's own forward while it is exported."""
_OURS, _TORCH = str(Path(__file__).parents[2]), str(Path(torch.__file__).parent)
_LIBRARIES = (_OURS, _TORCH, str(Path(_TORCH).parent / "onnxscript"))
_ELSE = "see that torch.onnx.export(model, inputs, dynamo=True, optimize=False) succeeds; or write the part that fails "
_ELSE += "with other functions of torch"


def refusal(problem: BaseException) -> Diagnostic:
    """Why a module cannot be exported, and what helps."""
    said = [text for each in _chain(problem) if (text := str(each).strip())]
    everything = "\n".join(said)
    operator = _OPERATOR.search(everything)
    last = _first_line(said[-1]) if said else type(problem).__name__
    detail = f"torch has no ONNX form of {operator[1]}" if operator else last
    detail = "\n".join((detail, *place_of(problem)))
    found = cause_of(f"{operator[0]} {last}" if operator else last)
    if found is None:
        return error("cannot-export", "torch cannot export this module", detail=detail, hint=_ELSE)
    why, hint = found
    return error("cannot-export", f"torch cannot export this module: {why}", detail=detail, hint=hint)


def place_of(problem: BaseException) -> Iterator[str]:
    """Where in the program torch has met a problem: the innermost line that is neither torch's nor ours, of those that
    the module's forward has led to."""
    for each in reversed(list(_chain(problem))):
        frames = traceback.extract_tb(each.__traceback__)
        inside = [at for at, frame in enumerate(frames) if frame.name == FORWARD and _is_ours(frame)]
        own = [frame for frame in frames[inside[0] :] if not frame.filename.startswith(_LIBRARIES)] if inside else []
        if own:
            place = f"{Path(own[-1].filename).name}, line {own[-1].lineno}"
            yield f"at {place}: {own[-1].line}" if own[-1].line else f"at {place}"
            return


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_OURS)


def is_of_a_check(problem: BaseException) -> bool:
    """Whether a program has found something wrong with what it is given."""
    return any(isinstance(each, (AssertionError, ValueError)) for each in _chain(problem))


def cause_of(said: str) -> tuple[str, str] | None:
    """What a program does that torch says `said` of, and what helps; None where that is not known."""
    return next(((why, hint) for pattern, why, hint in _CAUSES if re.search(pattern, said)), None)


def is_of_complex_numbers(problem: BaseException) -> bool:
    """Whether a module could not be exported because it computes with complex numbers."""
    return any(re.search(_COMPLEX, str(each)) for each in _chain(problem))


def is_of_data(problem: BaseException) -> bool:
    """Whether a module could not be exported because a shape or a branch depends on data."""
    return any(re.search(_DATA, f"{type(each).__name__} {each}") for each in _chain(problem))


def is_of_tracing(problem: BaseException) -> bool:
    """Whether torch could not trace a module as a graph of its own, before the conversion to ONNX, or has written
    operators of backward into it."""
    found = (_OPERATOR.search(str(each)) for each in _chain(problem))
    is_backward = any(operator is not None and "_backward" in operator[1] for operator in found)
    return is_backward or any(type(each).__name__ == "TorchExportError" for each in _chain(problem))


def said_of(problem: BaseException) -> Iterator[str]:
    """What is said of a problem and of its causes."""
    return (str(each) for each in _chain(problem))


def _chain(problem: BaseException | None) -> Iterator[BaseException]:
    while problem is not None:
        yield problem
        problem = problem.__cause__


def _first_line(text: str) -> str:
    return next(line.strip() for line in text.splitlines() if line.strip())
