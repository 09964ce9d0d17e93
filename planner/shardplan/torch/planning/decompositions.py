"""Stand-ins for matrix decompositions, which ONNX lacks: matrix products of the same sizes and cost.

Each form has the operands and the shapes of the decomposition and not its values, which no plan needs. Programs run
torch's, on every process whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

_INT32 = 6
"""ONNX's number of the type."""


def decompositions(op: Any) -> Mapping[Callable[..., Any], Callable[..., Any]]:
    """Forms for the translation table of `torch.onnx.export`."""
    forms: Mapping[str, Callable[..., Any]] = {
        "linalg_matrix_exp": _squared,
        "linalg_cholesky_ex": _cholesky,
        "linalg_inv_ex": _inverse,
        "cholesky_solve": lambda op, b, a, **_: op.MatMul(a, b),
        "_linalg_solve_ex": _solved,
        "linalg_solve_triangular": _substituted,
        "linalg_householder_product": _reflected,
        "linalg_qr": _orthogonal,
        "_linalg_svd": _singular,
        "_linalg_eigh": _eigen,
        "_linalg_det": _determinant,
        "_linalg_slogdet": _logarithm,
    }
    return {getattr(torch.ops.aten, name).default: functools.partial(form, op) for name, form in forms.items()}


def _squared(op: Any, a: Any) -> Any:
    """A square matrix of all entries of one."""
    return op.Add(op.MatMul(a, a), a)


def _cholesky(op: Any, a: Any, **_: Any) -> tuple[Any, Any]:
    return op.Trilu(_squared(op, a), upper=0), _numbers(op, a, 2)


def _inverse(op: Any, a: Any, **_: Any) -> tuple[Any, Any]:
    return _squared(op, a), _numbers(op, a, 2)


def _solved(op: Any, a: Any, b: Any, *, left: bool = True, **_: Any) -> tuple[Any, Any, Any, Any]:
    made = _substituted(op, a, b, left=left)
    return made, op.Identity(a), _numbers(op, a, 1), _numbers(op, a, 2)


def _substituted(op: Any, a: Any, b: Any, *, left: bool = True, **_: Any) -> Any:
    return op.MatMul(a, b) if left else op.MatMul(b, a)


def _reflected(op: Any, a: Any, tau: Any) -> Any:
    return op.Mul(_alike(op, a), op.Unsqueeze(tau, op.Constant(value_ints=[-2])))


def _orthogonal(op: Any, a: Any, mode: str = "reduced") -> tuple[Any, Any]:
    rows, columns = (int(size) for size in a.shape[-2:])
    if mode != "reduced" and rows != columns:
        raise NotImplementedError("a complete decomposition of a matrix that is not square")
    if rows >= columns:
        return _alike(op, a), op.MatMul(_turned(op, a), a)
    return op.MatMul(a, _turned(op, a)), _alike(op, a)


def _singular(op: Any, a: Any, full_matrices: bool = False, **_: Any) -> tuple[Any, Any, Any]:
    rows, columns = (int(size) for size in a.shape[-2:])
    if full_matrices and rows != columns:
        raise NotImplementedError("all singular vectors of a matrix that is not square")
    left, right = _orthogonal(op, a)
    return left, _by_row(op, right if rows >= columns else left), right


def _eigen(op: Any, a: Any, **_: Any) -> tuple[Any, Any]:
    made = _squared(op, a)
    return _by_row(op, made), made


def _determinant(op: Any, a: Any) -> tuple[Any, Any, Any]:
    return _of_matrix(op, a), op.Identity(a), _numbers(op, a, 1)


def _logarithm(op: Any, a: Any) -> tuple[Any, Any, Any, Any]:
    made = _of_matrix(op, a)
    return op.Sign(made), made, op.Identity(a), _numbers(op, a, 1)


def _alike(op: Any, a: Any) -> Any:
    """As many rows and columns as `a` has."""
    return op.MatMul(a, op.MatMul(_turned(op, a), a))


def _turned(op: Any, a: Any) -> Any:
    rank = len(a.shape)
    return op.Transpose(a, perm=[*range(rank - 2), rank - 1, rank - 2])


def _by_row(op: Any, a: Any) -> Any:
    return op.ReduceMean(a, op.Constant(value_ints=[-1]), keepdims=0)


def _of_matrix(op: Any, a: Any) -> Any:
    return op.ReduceMean(_squared(op, a), op.Constant(value_ints=[-2, -1]), keepdims=0)


def _numbers(op: Any, a: Any, fewer: int) -> Any:
    """Whole numbers, in a shape without so many of the last dims."""
    shape = [int(size) for size in a.shape[: len(a.shape) - fewer]]
    zero = op.Cast(op.Constant(value_int=0), to=_INT32)
    return op.Expand(zero, op.Constant(value_ints=shape)) if shape else zero
