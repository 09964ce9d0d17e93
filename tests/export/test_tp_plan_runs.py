"""A tp_plan carried out as its readers do, from the exported text alone: ranks get the logits of one device."""

import json
import re

import numpy as np
import pytest
from tensor_parallel import LLAMA, QWEN, one_layer, planned

from shardplan.export.tp_plan import export_portable, export_tp_plan
from shardplan.model.read import read_model
from shardplan.program.machine.values import random_values
from shardplan.program.reference.evaluate import evaluate


class Ranks:
    """All ranks of a tensor-parallel group in lockstep. Nothing but the rules says what a rank holds and sends."""

    def __init__(self, model, rules, ways):
        self.model, self.rules, self.ways = model, rules, ways
        self.owner = {parameter.tensor: parameter for parameter in model.parameters}

    def style(self, operator):
        """The rule of the module whose matrix the operator reads; `""`: none."""
        for name in operator.inputs:
            if name in self.owner and len(self.model.tensors[name].shape) > 1:
                module = self.owner[name].name.removesuffix(".weight")
                for pattern, style in self.rules.items():
                    if re.fullmatch(re.escape(pattern).replace(r"\*", r"\d+"), module):
                        return style
        return ""

    def run(self, values):
        local = [dict(values) for _ in range(self.ways)]
        for operator in self.model.operators:
            style = self.style(operator)
            made = [self.compute(operator, style, rank, held) for rank, held in enumerate(local)]
            if style in {"rowwise", "embedding_rowwise"}:
                made = [[sum(outputs[0] for outputs in made)]] * self.ways
            if style in {"colwise_gather_output", "colwise_rep"}:
                made = [[np.concatenate([outputs[0] for outputs in made], axis=-1)]] * self.ways
            for held, outputs in zip(local, made, strict=True):
                held.update(zip(operator.outputs, outputs, strict=True))
        return [held[self.model.outputs[0]] for held in local]

    def compute(self, operator, style, rank, held):
        operands = [held[name] if name else None for name in operator.inputs]
        for place, name in enumerate(operator.inputs):
            if style and name in self.owner:
                operands[place] = self.cut(operands[place], self.owner[name].perm, style, rank)
        if style != "embedding_rowwise":
            return evaluate(operator, operator.attributes, operands)
        table, ids = operands
        mine = (ids >= rank * len(table)) & (ids < (rank + 1) * len(table))
        found = evaluate(operator, operator.attributes, [table, np.where(mine, ids - rank * len(table), 0)])
        return [np.where(mine[..., None], found[0], 0)]

    def cut(self, weight, perm, style, rank):
        """Rows of the checkpoint's [out, in] for columns, columns of it for rows."""
        dim = 1 if style == "rowwise" else 0
        return np.split(weight, self.ways, axis=perm.index(dim) if perm else dim)[rank]


@pytest.mark.parametrize("ways", [2, 4])
@pytest.mark.parametrize("export", [export_tp_plan, export_portable])
def test_logits_of_every_rank_are_those_of_one_device(tmp_path, ways, export):
    path = one_layer(QWEN, tmp_path)
    model = read_model(path)
    exported = export(planned(str(path), tmp_path, LLAMA, "--mode", "inference", mesh=f"gpu={ways}"))
    rules = json.loads(exported.text)["tp_plan"]
    values = random_values(model, seed=1)
    whole = Ranks(model, {}, 1).run(values)[0]
    for logits in Ranks(model, rules, ways).run(values):
        np.testing.assert_allclose(logits, whole, rtol=1e-9, atol=1e-9)


def test_a_wrong_rule_is_noticed(tmp_path):
    """Logits that nobody gathers, and a table that ranks hold in halves and look up as if it were whole."""
    model = read_model(one_layer(QWEN, tmp_path))
    values = random_values(model, seed=1)
    whole = Ranks(model, {}, 1).run(values)[0]
    assert Ranks(model, LLAMA | {"lm_head": "colwise"}, 2).run(values)[0].shape != whole.shape
    with pytest.raises(IndexError):
        Ranks(model, LLAMA | {"model.embed_tokens": "colwise"}, 2).run(values)
