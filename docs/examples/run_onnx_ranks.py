"""Run a folder of `shardplan export --to onnx-spmd` in ONNX Runtime, one process per rank.

    torchrun --nproc-per-node 4 run_onnx_ranks.py DIR INPUTS OUTPUTS

INPUTS/rank-0.npz and so on hold what each rank is fed, by name, OUTPUTS/rank-0.npz and so on get what it makes. ONNX
Runtime has no operators for the collectives on a CPU. So what lies between two of them is a session of its own, and
torch.distributed carries out the collectives, as docs/export.md describes them. Needs onnx, onnxruntime and torch.
"""

import os
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
import torch.distributed as dist

DOMAIN = "shardplan.spmd"
REDUCE = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN, "prod": dist.ReduceOp.PRODUCT}


def read_by(node):
    """Names that a node reads, those that its bodies read around them too."""
    names = [*node.input]
    for attribute in node.attribute:
        for body in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            own = {entry.name for entry in [*body.input, *body.initializer]}
            own |= {name for inner in body.node for name in inner.output}
            names += [name for inner in body.node for name in read_by(inner) if name not in own]
    return [name for name in names if name]


def has_collectives(node):
    """Whether its bodies hold some."""
    bodies = [body for each in node.attribute for body in ([each.g] if each.HasField("g") else each.graphs)]
    return any(inner.domain == DOMAIN or has_collectives(inner) for body in bodies for inner in body.node)


def stretches(nodes):
    """Nodes between collectives, and collectives by themselves, in order."""
    found = []
    for node in nodes:
        if has_collectives(node):
            sys.exit(f"'{node.name}' communicates in every turn of its loop: ONNX Runtime cannot be stopped in there")
        if node.domain == DOMAIN or not found or found[-1][0].domain == DOMAIN:
            found.append([])
        found[-1].append(node)
    return found


def stretch(model, nodes, wanted, weights, values):
    """Run `nodes` in one session; those of their results that are `wanted`, by name."""
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in read_by(node) if name not in made)
    fed = {name: values[name] for name in read if name not in weights}
    of_numpy, described = onnx.helper.np_dtype_to_tensor_dtype, onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "stretch", [described(name, of_numpy(array.dtype), array.shape) for name, array in fed.items()],
        [onnx.ValueInfoProto(name=name) for node in nodes for name in node.output if name in wanted],
        [weights[name] for name in read if name in weights],
    )  # fmt: skip
    imports = [entry for entry in model.opset_import if entry.domain != DOMAIN]
    part = onnx.helper.make_model(graph, opset_imports=imports, ir_version=model.ir_version)
    session = onnxruntime.InferenceSession(part.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, fed), strict=True))


def collective(node, array, made_groups):
    """What this rank gets of a collective to which it gives `array`."""
    given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    rank, tensor = dist.get_rank(), torch.from_numpy(np.ascontiguousarray(array))
    if node.op_type == "Permute":
        pairs = given["source_target_pairs"]
        everything = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(everything, tensor)
        sender = {target: source for source, target in zip(pairs[::2], pairs[1::2], strict=True)}.get(rank)
        return np.zeros_like(array) if sender is None else everything[sender].numpy()
    groups = tuple(map(tuple, np.reshape(given["groups"], (-1, given["group_size"])).tolist()))
    if groups not in made_groups:  # every rank makes all of them, in the same order
        made_groups[groups] = {member: dist.new_group(list(group)) for group in groups for member in group[:1]}
    mine = next(group for group in groups if rank in group)
    # pieces follow the order that the program lists, which need not be that of the ranks
    group, place, ordered = made_groups[groups][mine[0]], mine.index(rank), sorted(mine)
    if node.op_type in ("AllReduce", "ReduceScatter"):
        total = tensor.clone()
        dist.all_reduce(total, REDUCE[given["reduction"].decode()], group)
        scattered = node.op_type == "ReduceScatter"
        return (total.tensor_split(len(mine), given["dim"])[place] if scattered else total).numpy()
    gathered = [torch.empty_like(tensor) for _ in mine]
    dist.all_gather(gathered, tensor, group)
    of_members = [gathered[ordered.index(member)] for member in mine]
    if node.op_type == "AllGather":
        return torch.cat(of_members, given["dim"]).numpy()
    pieces = [each.tensor_split(len(mine), given["split_dim"])[place] for each in of_members]
    return torch.cat(pieces, given["concat_dim"]).numpy()


def run(model, feeds):
    """The outputs of this rank's program, by name, and how many collectives it took part in."""
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    parts = stretches(graph.node)
    outputs = [info.name for info in graph.output]
    values, groups, collectives = dict(feeds), {}, 0
    for number, nodes in enumerate(parts):
        later = {name for part in parts[number + 1 :] for node in part for name in read_by(node)}
        if nodes[0].domain == DOMAIN:
            name = nodes[0].input[0]
            array = values[name] if name in values else onnx.numpy_helper.to_array(weights[name])
            values[nodes[0].output[0]], collectives = collective(nodes[0], array, groups), collectives + 1
            continue
        values |= stretch(model, nodes, later | set(outputs), weights, values)
    return {name: values[name] for name in outputs}, collectives


def main():
    folder, inputs, outputs = map(Path, sys.argv[1:4])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    name = f"rank-{os.environ['RANK']}"
    with np.load(inputs / f"{name}.npz") as feeds:
        made, collectives = run(onnx.load(folder / name / "program.onnx"), dict(feeds))
    np.savez(outputs / f"{name}.npz", **made)
    if dist.get_rank() == 0:
        print(
            f"{dist.get_world_size()} ranks in ONNX Runtime {onnxruntime.__version__}, {collectives} collectives each"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
