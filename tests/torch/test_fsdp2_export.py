"""`--to fsdp2`: the exported program, run by torch alone on four ranks, gives what one process gives."""

import ast
import functools

import fsdp2_ranks
import numpy as np
import pytest

from shardplan import make_plan
from shardplan.export.fsdp2 import export_fsdp2
from shardplan.torch.planning.plan import read_module


@functools.cache
def read(*, tied, norms):
    return read_module(fsdp2_ranks.made(tied, norms), (fsdp2_ranks.ids(),))


def exported(mesh, *, tied=False, norms=False, **asked):
    made = export_fsdp2(make_plan(read(tied=tied, norms=norms), mesh, target="fsdp2", **asked))
    assert [each for each in made.refused if each.severity == "error"] == []
    ast.parse(made.text)
    return made.text


COLUMNS = ["embed={gpu: v}", "*.q={gpu: n}", "*.k={gpu: n}", "*.v={gpu: n}", "*.o={gpu: k}", "*.up={gpu: n}"]
ROWS = [*COLUMNS, "*.down={gpu: k}", "head={gpu: n}"]


@pytest.mark.parametrize(
    ("mesh", "asked"),
    [
        ("gpu=4", {"pins": ["ids=[gpu]", "*.weight=replicate"]}),
        ("machine=2,gpu=2", {"pins": ["ids=[machine]", *ROWS]}),
        ("machine=2,gpu=2", {"pins": ["ids=[machine]", *ROWS], "norms": True}),
        ("machine=2,gpu=2", {"pins": ["ids=[machine]", "layers.0.up.weight=[[machine, gpu], null]", *ROWS]}),
        ("machine=2,gpu=2", {"pins": ["ids=[[machine, gpu]]", "layers.0.up.weight=[gpu, null]"]}),
        ("machine=2,gpu=2", {"pins": ["ids=[machine]", *ROWS], "tied": True}),
    ],
    ids=["replicas", "tensor", "norms of heads", "pieces and tensor", "hybrid", "tied"],
)
def test_four_ranks_give_what_one_process_gives(four, mesh, asked):
    form = {name: asked.get(name, False) for name in ("tied", "norms")}
    text = exported(mesh, **asked)
    logits, gradients = fsdp2_ranks.alone(**form)
    found = four.run("fsdp2_ranks", "exported", text, form["tied"], form["norms"])
    rows = {made[0].shape[0] for made in found}
    parts = len(logits) // rows.pop()
    for rank, (own, grads) in enumerate(found):
        part = rank * parts // len(found)
        np.testing.assert_allclose(
            own, np.split(logits, parts)[part], rtol=1e-6, atol=2e-6
        )  # of eight units in the last place
        assert grads.keys() == gradients.keys()
        for name, gradient in gradients.items():
            np.testing.assert_allclose(grads[name], gradient, rtol=1e-6, atol=2e-6, err_msg=name)
