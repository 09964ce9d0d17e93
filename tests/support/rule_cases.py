"""One operator with data, run whole by the reference evaluator, and as a model for its rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from shardplan.model.types import Model, Operator, Tensor
from shardplan.rules import expand, rule_for
from shardplan.rules.types import Option, Rule

NAMES = {
    np.dtype(np.float32): "float", np.dtype(np.float64): "double", np.dtype(np.int64): "int64",
    np.dtype(np.int32): "int32", np.dtype(np.bool_): "bool", np.dtype(np.uint8): "uint8", np.dtype(np.int8): "int8",
}  # fmt: skip
OUTPUTS = "uvwxyz"


@dataclass(frozen=True)
class Case:
    """One operator: its operands (None: absent), attributes, and which operands are known constants.

    `oracle`: computes the results where the reference evaluator is wrong or does not know the version."""

    kind: str
    operands: tuple[np.ndarray | None, ...]
    attributes: dict = field(default_factory=dict)
    constants: tuple[int, ...] = ()
    outputs: int = 1
    opset: int = 23
    oracle: Callable[..., list[np.ndarray]] | None = None

    def run(self, operands=None, attributes=None) -> list[np.ndarray]:
        """The results of the operator on these operands (default: its own)."""
        operands = self.operands if operands is None else operands
        attributes = self.attributes if attributes is None else attributes
        if self.oracle:
            return self.oracle(*operands, **attributes)
        names = [f"i{position}" if array is not None else "" for position, array in enumerate(operands)]
        outputs = list(OUTPUTS[: self.outputs])
        node = helper.make_node(self.kind, names, outputs, **attributes)
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in zip(names, operands, strict=True)
            if array is not None
        ]
        made = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs]
        graph = helper.make_graph([node], "case", inputs, made)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        feed = {name: array for name, array in zip(names, operands, strict=True) if array is not None}
        with np.errstate(all="ignore"):
            return ReferenceEvaluator(model).run(None, feed)

    @cached_property
    def whole(self) -> list[np.ndarray]:
        """The results of the unsharded operator."""
        return self.run()

    def model(self) -> Model:
        """The operator alone as a model."""
        results = self.whole
        tensors, constants, inputs = {}, {}, []
        for position, array in enumerate(self.operands):
            inputs.append("" if array is None else f"i{position}")
            if array is not None:
                role = "constant" if position in self.constants else "parameter"
                tensors[f"i{position}"] = Tensor(f"i{position}", array.shape, NAMES[array.dtype], role)
                if position in self.constants:
                    constants[f"i{position}"] = array
        for name, array in zip(OUTPUTS, results, strict=False):
            tensors[name] = Tensor(name, array.shape, NAMES[array.dtype], "activation")
        attributes = {k: tuple(v) if isinstance(v, list) else v for k, v in self.attributes.items()}
        domain, _, op_type = self.kind.rpartition(".")
        outputs = tuple(OUTPUTS[: self.outputs])
        operator = Operator("node", op_type, tuple(inputs), outputs, attributes, domain, self.opset)
        return Model("case", (operator,), tensors, (), (), (), constants)

    def rule(self) -> Rule:
        """The rule, with the options that its joins would have."""
        model = self.model()
        operator = model.operators[0]
        rule = rule_for(operator, model)
        variants = {}
        for join in rule.joins:
            names = operator.outputs if join.whole.is_result else operator.inputs
            variants[names[join.whole.position], join.whole.dim] = (join.sizes,)
        return expand(rule, operator, model, variants)

    def options(self) -> dict[str, Option]:
        rule = self.rule()
        return {option.label: option for option in (*rule.options, *rule.latent)}


RNG = np.random.default_rng(11)


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return (np.abs(f(*shape)) + 0.5).astype(np.float32)


def i(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def index(limit: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, limit, shape).astype(np.int64)


def b(*shape: int) -> np.ndarray:
    return RNG.random(shape) > 0.4


def u(*shape: int) -> np.ndarray:
    return RNG.integers(0, 200, shape).astype(np.uint8)
