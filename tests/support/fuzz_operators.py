"""Models of one operator each, of any kind that ONNX or ONNX Runtime has, with operands of any type and shape."""

from __future__ import annotations

from random import Random

import onnx
from fuzz_models import FLOATS, MICROSOFT, NUMBERS, TEXTS
from onnx import TensorProto, defs, helper

from shardplan.rules import FAMILIES

_SCHEMAS = {schema.name: schema for schema in defs.get_all_schemas() if schema.domain == ""}
DTYPES = {
    "tensor(float)": 1, "tensor(uint8)": 2, "tensor(int8)": 3, "tensor(int32)": 6, "tensor(int64)": 7,
    "tensor(string)": 8, "tensor(bool)": 9, "tensor(float16)": 10, "tensor(double)": 11, "tensor(bfloat16)": 16,
}  # fmt: skip
SIZES = (0, 1, 1, 2, 2, 3, 4, 4, 6, 8, 8, 16)
OUR_OWN = tuple(sorted(set().union(*FAMILIES.values())))


def one_operator(random: Random) -> onnx.ModelProto:
    """The types of operands are mostly those that the operator takes, the rest is chance."""
    kind = random.choice((*sorted(_SCHEMAS), *(f"com.microsoft.{name}" for name in MICROSOFT)))
    domain, _, name = kind.rpartition(".")
    schema = _SCHEMAS.get(name) if not domain else None
    shape = [random.choice(SIZES) for _ in range(random.randint(0, 5))]
    inputs, initializers, reads, types = [], [], [], dict[str, int]()
    for place in range(_count(schema, random)):
        if random.random() < 0.06:
            reads.append("")
            continue
        label, dtype = f"i{place}", _dtype(schema, place, random, types)
        dims = _near_shape(shape, random)
        reads.append(label)
        if dtype in (1, 6, 7, 11, 9) and random.random() < 0.45 and _product(dims) <= 64:
            initializers.append(_stored(label, dtype, dims, random))
        elif random.random() < 0.2:
            initializers.append(TensorProto(name=label, data_type=dtype, dims=dims))
        else:
            inputs.append(helper.make_tensor_value_info(label, dtype, dims))
    makes = [f"o{place}" for place in range(random.choice((1, 1, 1, 1, 1, 1, 2, 3)))]
    node = helper.make_node(name, reads, makes, name="n", domain=domain)
    _attributes(node, schema, random)
    outputs = [
        helper.make_tensor_value_info(made, random.choice((1, 1, 7)), None if random.random() < 0.8 else shape)
        for made in makes
    ]
    graph = helper.make_graph([node], "g", inputs, outputs, initializers)
    opsets = [
        helper.make_opsetid("", random.choice((23, 23, 23, 23, 21, 18, 13, 11, 9, 7))),
        helper.make_opsetid("com.microsoft", 1),
    ]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _count(schema: defs.OpSchema | None, random: Random) -> int:
    if schema is None or random.random() < 0.1:
        return random.randint(0, 7)
    return random.randint(schema.min_input, min(schema.max_input, schema.min_input + 4))


def _dtype(schema: defs.OpSchema | None, place: int, random: Random, types: dict[str, int]) -> int:
    """`types`: what type variables of the schema stand for so far."""
    known: list[int] = []
    if schema is not None and schema.inputs:
        formal = schema.inputs[min(place, len(schema.inputs) - 1)]
        if formal.type_str in types and random.random() < 0.95:
            return types[formal.type_str]
        known = [number for text, number in DTYPES.items() if text in formal.types]
    dtype = random.choice((1, 1, 7, 9, 10, *DTYPES.values()))
    if known and random.random() < 0.95:
        dtype = types[formal.type_str] = random.choice(known)
    return dtype


def _near_shape(shape: list[int], random: Random) -> list[int]:
    what = random.randrange(8)
    if what < 3:
        return list(shape)
    if what == 3:
        return shape[::-1]
    if what == 4:
        return shape[1:]
    if what == 5:
        return [random.randint(0, 4)]
    if what == 6:
        return [random.choice((1, size)) for size in shape]
    return [random.choice((*SIZES, 1 << 20, 1 << 40)) for _ in range(random.randint(0, 6))]


def _product(dims: list[int]) -> int:
    total = 1
    for dim in dims:
        total *= dim
    return total


def _stored(label: str, dtype: int, dims: list[int], random: Random) -> TensorProto:
    small = random.random() < 0.8
    values = [random.randint(-2, 4) if small else random.choice(NUMBERS) for _ in range(_product(dims))]
    if dtype == 6:
        values = [max(-(1 << 31), min((1 << 31) - 1, value)) for value in values]
    return helper.make_tensor(label, dtype, dims, [value > 0 for value in values] if dtype == 9 else values)


def _attributes(node: onnx.NodeProto, schema: defs.OpSchema | None, random: Random) -> None:
    for name, attribute in sorted(schema.attributes.items()) if schema else ():
        if random.random() < (0.9 if attribute.required else 0.3):
            node.attribute.append(_attribute(name, str(attribute.type).rpartition(".")[2], random))
    if random.random() < 0.15 or schema is None:
        name = random.choice(("axis", "num_heads", "kv_num_heads", "group", "epsilon", "K", "N", "bits", "block_size"))
        node.attribute.append(helper.make_attribute(name, random.choice((*NUMBERS, 4, 8, 16, 32))))


def _attribute(name: str, kind: str, random: Random) -> onnx.AttributeProto:
    integer = random.randint(-3, 8) if random.random() < 0.85 else random.choice(NUMBERS)
    if random.random() < 0.07:
        kind = random.choice(("INT", "INTS", "FLOAT", "STRING", "TENSOR", "GRAPH"))
    if kind == "INT":
        return helper.make_attribute(name, integer)
    if kind == "INTS":
        some = [random.randint(-2, 5) for _ in range(random.randint(0, 5))]
        return helper.make_attribute(name, some, attr_type=onnx.AttributeProto.INTS)
    if kind == "FLOAT":
        return helper.make_attribute(name, random.choice(FLOATS))
    if kind == "FLOATS":
        return helper.make_attribute(name, [random.choice(FLOATS)], attr_type=onnx.AttributeProto.FLOATS)
    if kind == "STRING":
        return helper.make_attribute(name, random.choice((*TEXTS, "VALID", "NOTSET", "constant", "none", "sum", "max")))
    if kind == "TENSOR":
        return helper.make_attribute(name, _stored("t", random.choice((1, 7)), [random.randint(0, 3)], random))
    if kind == "GRAPH":
        return helper.make_attribute(name, helper.make_graph([], "b", [], []))
    return helper.make_attribute(name, ["a", "b"])
