"""Recurrent layers: batch is free; hidden units split at the price of gathering the state at every time step."""

from __future__ import annotations

import math

from shardplan.rules.equation import listed
from shardplan.rules.row import Entry, Row, by
from shardplan.rules.signature import Signature
from shardplan.rules.types import Gemm, InnerCollective

GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}


def recurrent(signature: Signature) -> Row:
    """`RNN`, `LSTM`, `GRU`: weights [directions, gates * hidden, ...] are split inside each gate.

    `t` time, `b` batch, `i` input, `h` hidden units made, `j` hidden units read (all of them, at each step). Each step
    gathers the new state of one direction in forward and reduces its gradient in backward.
    """
    gates, batch_first = GATES[signature.kind], bool(signature.integer("layout"))
    state = "b !d h" if batch_first else "!d b h"
    data, made = ("b !t !i", "b !t !d h") if batch_first else ("!t b !i", "!t !d b h")
    operands = [data, "!d (!gates h) !i", "!d (!gates h) !j", "!d (!biases h)", "b", state, state, "!d (!peepholes h)"]
    results = [made, state, state]
    hidden = signature.shape(2)[-1]
    steps, batch = (signature.shape()[dim] for dim in ((1, 0) if batch_first else (0, 1)))
    directions = signature.shape(1)[0]
    cells = steps * batch * directions * gates * hidden
    gathers = steps * directions * (2 if _resets_first(signature) else 1)
    gathered = math.ceil(batch * hidden * signature.operand(0).item_bytes)
    return Row(
        f"{listed(operands, signature.operands)} -> {listed(results, signature.results)}",
        cost="gemm",
        saves="0 1 2 3 5 6 7 r0",
        flops=2.0 * cells * (signature.shape()[-1] + hidden),
        sizes={"h": hidden, "j": hidden, "gates": gates, "biases": 2 * gates, "peepholes": 3},
        inner={
            "h": (
                InnerCollective("all_gather", gathered, "forward", count=gathers),
                InnerCollective("reduce_scatter", gathered, "backward", count=gathers),
            )
        },
        gemm=Gemm(m=("b",), n=("h", "gates"), k=("i",), repeats=("t",)),
        temporary_bytes=math.ceil(cells * signature.operand(0).item_bytes),
        segmented=True,
    )


def _resets_first(signature: Signature) -> bool:
    """Whether the reset gate is applied to the state before its product: the gated state is then gathered as well."""
    return signature.kind == "GRU" and not signature.integer("linear_before_reset")


TABLE: tuple[Entry, ...] = (by("RNN LSTM GRU", recurrent),)
