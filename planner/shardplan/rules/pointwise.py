"""Operators that work on each element by itself; operands broadcast as in numpy.

What backward saves is what training frameworks save: the result where the derivative follows from it (`Tanh`), the
operand otherwise (`Gelu`), nothing for linear operators. `work` counts operations per element, a transcendental as 4.
"""

from __future__ import annotations

from shardplan.rules.row import Entry, Row, by, row
from shardplan.rules.signature import Signature

ONE = "x*, ... -> x*"
"""Any number of broadcast operands, one result."""
WITH_SCALARS = "x*, _*, ... -> x*"
"""One tensor; what follows are scalars."""


def jointly_linear(signature: Signature) -> Row:
    """`Sum`, `Mean` of any number of tensors."""
    return Row(ONE, linear=(tuple(range(len(signature.operands))),), work=len(signature.operands))


def product(signature: Signature) -> Row:
    """`Mul`: the gradient of one operand needs the other; a constant operand takes none, so the other is not saved."""
    saved = (str(i) for i, other in ((0, 1), (1, 0)) if not signature.operand(other).is_constant)
    return Row(ONE, linear=((0,), (1,)), saves=" ".join(saved))


def quotient(signature: Signature) -> Row:
    """`Div` by a constant saves only the constant."""
    return Row(ONE, linear=((0,),), saves="1" if signature.operand(1).is_constant else "0 1")


def power(signature: Signature) -> Row:
    """`Pow`: with a constant exponent only the base is saved."""
    return Row(ONE, saves="0" if signature.operand(1).is_constant else "0 1 r0", work=4)


def extremum(signature: Signature) -> Row:
    """`Max`, `Min`: backward asks which operand won."""
    return Row(ONE, saves=" ".join(str(i) for i in range(len(signature.operands))))


def cast(signature: Signature) -> Row:
    """`Cast`, `CastLike`: partial sums pass between float types."""
    return Row(WITH_SCALARS, linear=((0,),) if signature.operand(0).is_float else ())


def dropout(signature: Signature) -> Row:
    """`Dropout`: the identity in inference; in training (third operand true; before opset 7 unless `is_test`) it draws
    and keeps a mask."""
    is_training = signature.version < 7 and not signature.integer("is_test")
    if is_training or (signature.version >= 12 and signature.constant(2) == (1,)):
        return Row("x*, _*, _* -> x*, x*", saves="r1" if signature.made(1) else "r0", work=4)
    return Row("x*, _*, _* -> x*, x*", cost="pointwise" if signature.made(1) else "view", linear=((0,),))


OPTIMIZED = {"Adagrad": 3, "Momentum": 3, "Adam": 4}
"""What an optimizer reads of each tensor: the tensor, its gradient, and its states."""


def optimizer(signature: Signature) -> Row | None:
    """`Adagrad`, `Momentum`, `Adam`: rate and step, then all tensors, all gradients, all states; each element apart."""
    kinds = OPTIMIZED[signature.kind.rpartition(".")[2]]
    count, left = divmod(len(signature.operands) - 2, kinds)
    if left or not count:
        return None
    dims = [" ".join(f"t{tensor}d{dim}" for dim in range(signature.rank(2 + tensor))) for tensor in range(count)]
    operands = ", ".join(["_*", "_*", *dims * kinds])
    results = ", ".join(f"={text}" for text in dims)  # one tensor has nothing to do with the dims of another
    return Row(f"{operands} -> {', '.join([results] * (kinds - 1))}", work=4.0 * kinds)


TABLE: tuple[Entry, ...] = (
    row("Add Sub", ONE, linear=((0, 1),)),
    by("Sum Mean", jointly_linear),
    by("Mul", product),
    by("Div", quotient),
    by("Pow", power),
    by("Max Min", extremum),
    row("Where", "x*, x*, x* -> x*", linear=((1, 2),), saves="0"),
    row("And Or Xor Not Equal Greater GreaterOrEqual Less LessOrEqual", ONE),
    row("BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot Mod BitCast", ONE),
    row("PRelu", ONE, saves="0 1", work=2),
    row("SwiGLU", ONE, saves="0 1", work=6),
    row("Neg", ONE, linear=((0,),)),
    row("Identity", ONE, cost="view", linear=((0,),)),
    by("Cast CastLike", cast),
    by("Dropout", dropout, reads=(2,)),
    row("Ceil Floor Round Sign IsInf IsNaN", ONE),
    row("Relu LeakyRelu ThresholdedRelu", ONE, saves="r0"),
    row("Sigmoid Tanh Exp Softsign", ONE, saves="r0", work=4),
    row("Sqrt Reciprocal", ONE, saves="r0", work=2),
    row("Gelu Swish Mish Erf Softplus", ONE, saves="0", work=8),
    row("Log Sin Cos Tan Sinh Cosh Asin Acos Atan Asinh Acosh Atanh Elu Selu Celu", ONE, saves="0", work=4),
    row("Abs HardSigmoid HardSwish Shrink", ONE, saves="0", work=2),
    row("Clip", WITH_SCALARS, saves="0"),
    row("ai.onnx.ml.Binarizer ai.onnx.ml.LabelEncoder", ONE),
    by("ai.onnx.preview.training.Adagrad ai.onnx.preview.training.Momentum", optimizer),
    by("ai.onnx.preview.training.Adam", optimizer),
)
