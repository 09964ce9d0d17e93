"""Mutations that the project was not mended for when they were written: they show what the others miss.

Whatever they find is to be reported with the numbers of the run, not only mended.
"""

from __future__ import annotations

import json
import struct
from random import Random

import onnx
from fuzz_classes import CONSTRAINTS, MINE, ON, PLANS, PROFILE, SEEDS, Classes, Commands, Workplace, read_plan
from fuzz_operators import one_operator
from fuzz_text import at, places
from onnx import TensorProto, compose, helper


def spliced(place: Workplace, random: Random) -> Commands:
    """The front of one model's bytes and the back of another's."""
    one, other = (SEEDS[random.choice(sorted(SEEDS))].SerializeToString() for _ in range(2))
    content = one[: random.randrange(len(one))] + other[random.randrange(len(other)) :]
    path = place.write("m.onnx", content)
    return [["solve", path, *ON, "--mode", "inference", "-o", place.path("m.plan.json")]]


def varints(place: Workplace, random: Random) -> Commands:
    """Lengths and numbers in the bytes of a model that are one more, one less or very large."""
    content = bytearray(SEEDS[random.choice(sorted(SEEDS))].SerializeToString())
    for _ in range(random.randint(1, 6)):
        at_ = random.randrange(len(content))
        content[at_] = max(0, min(255, content[at_] + random.choice((-1, 1, 128, -128, 8, -8))))
    path = place.write("m.onnx", bytes(content))
    return [["inspect", path, "--json"], ["solve", path, *ON, "-o", place.path("m.plan.json")]]


def wrapped(place: Workplace, random: Random) -> Commands:
    """A model, or an operator, inside of a branch or a loop whose border is wrong."""
    inner = one_operator(random) if random.random() < 0.6 else SEEDS[random.choice(("mlp", "conv", "views"))]
    graph = onnx.GraphProto()
    graph.CopyFrom(inner.graph)
    taken = [value.name for value in graph.input]
    makes = [value.name for value in graph.output]
    outer = [value for value in inner.graph.input if random.random() < 0.9]
    if random.random() < 0.5:
        del graph.input[:]
        condition = helper.make_tensor("c", TensorProto.BOOL, [] if random.random() < 0.8 else [1], [True])
        other = onnx.GraphProto()
        other.CopyFrom(graph)
        for node in other.node:
            node.name = f"e{node.name}"
            if random.random() < 0.3:
                node.op_type = "Identity"
        nodes = [helper.make_node("If", ["c"], [f"{name}_" for name in makes], then_branch=graph, else_branch=other)]
        stored = [condition]
    else:
        for name in ("it", "go"):
            graph.input.insert(0, helper.make_tensor_value_info(name, TensorProto.INT64, []))
        graph.input[0].type.tensor_type.elem_type = TensorProto.BOOL if random.random() < 0.5 else TensorProto.INT64
        graph.node.append(helper.make_node("Identity", ["go"], ["go_"]))
        graph.output.insert(0, helper.make_tensor_value_info("go_", TensorProto.BOOL, []))
        count = random.choice((0, 1, 4, -1, 1 << 40))
        stored = [helper.make_tensor("n", TensorProto.INT64, [], [count]), helper.make_tensor("b", 9, [], [True])]
        reads = ["n", "b", *taken] if random.random() < 0.9 else ["n", "b"]
        nodes = [helper.make_node("Loop", reads, [f"{name}_" for name in makes], body=graph)]
    results = [helper.make_tensor_value_info(f"{name}_", 1, None) for name in makes]
    model = helper.make_model(
        helper.make_graph(nodes, "g", outer, results, stored), opset_imports=inner.opset_import, ir_version=10
    )
    path = place.write("m.onnx", model.SerializeToString())
    mode = random.choice(("inference", "training"))
    return [["solve", path, *ON, "--mode", mode, "-o", place.path("m.plan.json")]]


def merged(place: Workplace, random: Random) -> Commands:
    """One operator after another: what the first makes is what the second reads."""
    first, second = one_operator(random), one_operator(random)
    second = compose.add_prefix(second, "s_")
    if second.graph.input and first.graph.node:
        old = second.graph.input[0].name
        del second.graph.input[0]
        for node in second.graph.node:
            for place_, name in enumerate(node.input):
                if name == old:
                    node.input[place_] = first.graph.node[0].output[0]
    first.graph.node.extend(second.graph.node)
    first.graph.input.extend(second.graph.input)
    first.graph.initializer.extend(second.graph.initializer)
    del first.graph.output[:]
    first.graph.output.extend(second.graph.output)
    path = place.write("m.onnx", first.SerializeToString())
    mode = random.choice(("inference", "training"))
    return [["solve", path, *ON, "--mode", mode, "-o", place.path("m.plan.json")]]


def sizes(place: Workplace, random: Random) -> Commands:
    """A model in which one size is everywhere another, so that it stays consistent: 0, 1, a prime, 2^31."""
    model = onnx.ModelProto()
    model.CopyFrom(SEEDS[random.choice(sorted(SEEDS))])
    old, new = random.choice((8, 16, 32, 64, 4, 2)), random.choice((0, 1, 3, 7, 1009, 1 << 16, 1 << 31, 1 << 45))
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_value = new if dim.dim_value == old else dim.dim_value
    for tensor in model.graph.initializer:
        tensor.dims[:] = [new if dim == old else dim for dim in tensor.dims]
    path = place.write("m.onnx", model.SerializeToString())
    options = random.choice(((), ("--stages", "2"), ("--remat", "auto"), ("--microbatches", "2"), ("--mesh", "auto")))
    mode = random.choice(("inference", "training"))
    trips = ("--trip", "Loop_0=4") if random.random() < 0.3 else ()
    return [["solve", path, *ON, "--mode", mode, *options, *trips, "-o", place.path("m.plan.json")]]


def two_of_a_plan(place: Workplace, random: Random) -> Commands:
    """Whole sections of a plan from another one."""
    name, other = random.choice(sorted(PLANS)), random.choice(sorted(PLANS))
    document = dict(place.plans[name])
    for key in random.sample(sorted(document), random.randint(1, 3)):
        document[key] = place.plans[other].get(key)
    return read_plan(place, name, place.write("p.plan.json", json.dumps(document)), random)


def numbers_of_a_plan(place: Workplace, random: Random) -> Commands:
    """All numbers under one key of a plan scaled, which keeps every type."""
    name = random.choice(sorted(PLANS))
    document = json.loads(json.dumps(place.plans[name]))
    keys = sorted(
        {path[-1] for path in places(document) if path and isinstance(at(document, path), int | float)}, key=str
    )
    key, factor = random.choice(keys), random.choice((0, 2, -1, 0.5, 1e6, 1e-6, 10**12))
    for path in places(document):
        if path and path[-1] == key and isinstance(value := at(document, path), int | float):
            at(document, path[:-1])[key] = type(value)(value * factor)
    return read_plan(place, name, place.write("p.plan.json", json.dumps(document)), random)


def texts_of_a_plan(place: Workplace, random: Random) -> Commands:
    """One name everywhere another: empty, long, a pattern, a path, of another script."""
    name = random.choice(sorted(PLANS))
    text = json.dumps(place.plans[name])
    old = random.choice(
        [value for path in places(place.plans[name]) if isinstance(value := at(place.plans[name], path), str) and value]
    )
    new = random.choice(
        (
            "",
            "x" * 5000,
            "*",
            "[",
            "../../etc",
            "名前",
            "a b",
            "$(id)",
            "%s{0}",
            "--help",
            "\u0000",
            "\u200b",
            "S(0)@gpu",
        )
    )
    text = text.replace(json.dumps(old), json.dumps(new))
    return read_plan(place, name, place.write("p.plan.json", text), random)


def units(place: Workplace, random: Random) -> Commands:
    """Scalars of YAML exchanged for those of other keys."""
    text = random.choice((PROFILE, MINE, CONSTRAINTS))
    lines = text.splitlines()
    values = [line.partition(": ")[2] for line in lines if ": " in line]
    for _ in range(random.randint(1, 3)):
        at_ = random.randrange(len(lines))
        key, colon, _rest = lines[at_].partition(": ")
        if colon:
            lines[at_] = f"{key}: {random.choice(values)}"
    path = place.write("d.yaml", "\n".join(lines) + "\n")
    if text is CONSTRAINTS:
        return [["solve", place.path("mlp.onnx"), *ON, "--constraints", path, "-o", place.path("m.plan.json")]]
    return [["sweep", place.path("mlp.onnx"), "-c", path, "-m", "2x2", "-q"], ["profiles", "show", path, "--json"]]


def offsets(place: Workplace, random: Random) -> Commands:
    """A safetensors file whose header says something else of the same data, consistently or nearly so."""
    data = (place.folder / "one.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for name in random.sample(sorted(header), random.randint(1, len(header))):
        entry = header[name]
        what = random.randrange(5)
        if what == 0:
            entry["shape"] = entry["shape"][::-1]
        elif what == 1:
            entry["dtype"] = random.choice(("F16", "F64", "I8", "BF16", "F8_E4M3", "BOOL", "F4", ""))
        elif what == 2:
            entry["data_offsets"] = [offset + random.choice((0, 4, -4, 1 << 62)) for offset in entry["data_offsets"]]
        elif what == 3:
            header[random.choice(("w1", "b1", "x" * 1000, ""))] = dict(entry)
        else:
            entry["shape"] = [*entry["shape"], random.choice((0, 1, -1, 1 << 62))]
    text = json.dumps(header).encode()
    size = len(text) if random.random() < 0.8 else random.choice((0, 1, len(text) + 1, (1 << 63) - 1))
    path = place.write("c/m.safetensors", struct.pack("<Q", size) + text + data[8 + length :])
    return [["split", path, place.path("training.plan.json"), "-o", place.path("ranks")]]


HELD_OUT: Classes = {
    "held-bytes-spliced": spliced,
    "held-bytes-varints": varints,
    "held-onnx-wrapped": wrapped,
    "held-onnx-merged": merged,
    "held-onnx-sizes": sizes,
    "held-plans-sections": two_of_a_plan,
    "held-plans-numbers": numbers_of_a_plan,
    "held-plans-texts": texts_of_a_plan,
    "held-yaml-units": units,
    "held-checkpoints-offsets": offsets,
}
