"""Traces of `torch.profiler` of runs that take as long as a profile says, or so many times as long."""

import numpy as np

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cost.collectives import CollectiveModel
from shardplan.cost.compute import ComputeModel
from shardplan.extras.calibration.traced_attention import OPERATORS

BASE = load_profile("h100-dgx")
CLUSTER = make_cluster(BASE)
BF16 = "c10::BFloat16"
FLASH = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64> >(flash::Flash_fwd_params)"


def kernel(seconds, external=None, called="some_kernel", **args):
    args |= {} if external is None else {"External id": external}
    return {"ph": "X", "cat": "kernel", "name": called, "ts": 1, "dur": seconds * 1e6, "args": args}


def operator(name, external, dims, types=(BF16, BF16), **more):
    args = {"External id": external, "Input Dims": dims, "Input type": list(types), **more}
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": 0, "dur": 5, "args": args}


def collective(name, seconds, elements, ranks, gathered=1):
    return kernel(
        seconds,
        **{
            "Collective name": name, "In msg nelems": elements, "Out msg nelems": elements * gathered,
            "dtype": "BFloat16", "Group size": len(ranks), "Process Group Ranks": str(list(ranks)),
        },
    )  # fmt: skip


def attended(name, external, seconds, shape, causal, arguments=20):
    """An attention of torch as a trace has it: operands, then arguments without a shape."""
    at = OPERATORS[name].causal
    operands = 4 if OPERATORS[name].is_backward else 3
    told = {"Concrete Inputs": ["" if place != at else causal for place in range(arguments)]}
    dims = [list(shape)] * operands + [[]] * (arguments - operands)
    types = [BF16] * operands + ["Scalar"] * (arguments - operands)
    return [operator(name, external, dims, types, **told), kernel(seconds, external, called=FLASH)]


def attention(compute, batch, heads, queries, size, factors):
    """Forward and backward of causal attention, on a machine that takes `factors` times what the profile says."""
    found = []
    for number, (name, work) in enumerate((("forward", 4.0), ("backward", 10.0))):
        flops = work * batch * heads * queries * (queries // 2) * size
        seconds = compute.seconds("attention", "bfloat16", flops, 0.0, queries, queries / 2, np.float64(size))
        at = 3000 + 10 * queries + batch * 2 + number
        shape = (batch, queries, heads, size)
        found += attended(f"aten::_flash_attention_{name}", at, float(seconds) * factors[number], shape, "True")
    return found


def made(*, products=1.0, memory=1.0, sent=1.0, noise=0.0, seed=0, cluster=CLUSTER, attending=None):
    """A trace of a machine on which everything takes so many times what `cluster` says. `attending`: the same of
    attention, forward and backward."""
    rng, events = np.random.default_rng(seed), []
    compute, links = ComputeModel(cluster), CollectiveModel(make_cluster(BASE, "8"))

    def off():
        return float(np.exp(rng.normal(0, noise)))

    for number, size in enumerate((2048, 4096, 6144, 8192) * 8):
        moved = 2.0 * 3 * size * size
        seconds = float(compute.seconds("gemm", "bfloat16", 2.0 * size**3, moved, size, size, size))
        events += [operator("aten::mm", number, [[size, size], [size, size]])]
        half = seconds * products * off() / 2
        events += [kernel(half, number), kernel(half, number)]
    for number, size in enumerate((1 << 26, 1 << 27) * 8, start=1000):
        seconds = float(compute.seconds("elementwise", "bfloat16", 0.0, 2.0 * 3 * size))
        events += [operator("aten::add", number, [[size], [size]]), kernel(seconds * memory * off(), number)]
    for batch in range(1, 5) if attending else ():
        events += attention(compute, batch, 32, 4096, 128, attending)
    for elements in (1 << 24, 1 << 25, 1 << 26):
        seconds = links.seconds("all_reduce", (0,), 2.0 * elements)
        late = (1.0, 1.0, 1.4, 2.0)  # ranks that come late make the others wait
        events += [collective("allreduce", seconds * sent * wait, elements, range(8)) for wait in late]
    return {"traceEvents": one_by_one(events)}


def one_by_one(events):
    """The kernels one after the other."""
    start = 0.0
    for event in events:
        if event["cat"] == "kernel":
            event["ts"], start = start, start + event["dur"] + 1
    return events
