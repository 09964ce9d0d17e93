"""The networks of Alpa's solver tests: products one after the other, with or without biases."""

from __future__ import annotations

from shardplan.model.types import Model, Operator, Parameter, Tensor


def mlp(layers: int, batch: int, hidden: int, *, bias: bool = False) -> Model:
    """x @ w0 (+ b0) @ w1 (+ b1) ..., all weights trained, x an input without gradient."""
    tensors = {"h0": Tensor("h0", (batch, hidden), "float", "input")}
    operators, parameters = [], []
    previous = "h0"
    for layer in range(layers):
        weight, product, out = f"w{layer}", f"p{layer}", f"h{layer + 1}"
        tensors[weight] = Tensor(weight, (hidden, hidden), "float", "parameter")
        parameters.append(Parameter(weight, weight, weight))
        made = product if bias else out
        tensors[made] = Tensor(made, (batch, hidden), "float", "activation")
        operators.append(Operator(f"dot{layer}", "MatMul", (previous, weight), (made,), version=21))
        if bias:
            tensors[f"b{layer}"] = Tensor(f"b{layer}", (hidden,), "float", "parameter")
            parameters.append(Parameter(f"b{layer}", f"b{layer}", f"b{layer}"))
            tensors[out] = Tensor(out, (batch, hidden), "float", "activation")
            operators.append(Operator(f"add{layer}", "Add", (product, f"b{layer}"), (out,), version=21))
        previous = out
    return Model("mlp", tuple(operators), tensors, tuple(parameters), ("h0",), (previous,), {}, opset=21)
