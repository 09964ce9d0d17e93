"""Hostile model files: whatever a file holds, an answer comes soon, with a diagnostic and a known exit code.

`corpus` has files that once crashed the command or kept it busy for ever.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz_run import answer

CORPUS = Path(__file__).parent / "corpus"
EXPECTED = {
    "attribute_dims": "cannot-plan-node",
    "bad_utf8": "bad-name",
    "bad_utf8b": "bad-name",
    "constant_of_nothing": "unresolved-shape",
    "conv1d_1000000": "",
    "conv1d_10000000": "",
    "conv1d_2147483647": "",
    "dtype99": "unknown-type",
    "einsum_letter": "invalid-node",
    "if_no_cond": "invalid-node",
    "if_outputs_differ": "invalid-node",
    "laughs18": "too-many-operators",
    "laughs30": "too-many-operators",
    "loop_body_inputs": "invalid-node",
    "negdim2": "bad-tensor",
    "negdim_mul": "bad-tensor",
    "negdim_plain": "bad-tensor",
    "negdim_reshape_hang": "bad-tensor",
    "opset_0": "bad-opset",
    "opset_2147483648": "bad-opset",
    "opset_4611686018427387904": "bad-opset",
    "opset_minus_1": "bad-opset",
    "rank32": "too-large",
    "reshape_big2": "",
    "reshape_flat": "",
    "reshape_prime": "infeasible",
    "scan_missing_input": "invalid-node",
    "scan_num_inputs_neg": "invalid-node",
    "scan_ok": "",
    "softmax_scalar": "incompatible-dims",
    "split_outputs": "invalid-node",
    "twice_in_body": "duplicate-value",
    "unknown_op": "unresolved-shape",
    "unsqueeze_grows": "cannot-plan-node",
    "vocab_tokens": "",
    "workflow_command_injection": "bad-name",
}
"""File -> the code of the diagnostic with which it is refused, nothing where it is planned."""


def test_every_file_of_the_corpus_has_its_answer():
    assert sorted(EXPECTED) == sorted(path.stem for path in CORPUS.iterdir())


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_what_once_went_wrong(name, tmp_path):
    path = tmp_path / f"{name}.onnx"
    path.write_bytes((CORPUS / path.name).read_bytes())
    where = ("--mesh", "2x2", "-c", "generic", "--mode", "inference", "-o", str(tmp_path / "p.json"))
    found = answer(("solve", str(path), *where), seconds=5)
    assert not found.fault, found.said
    assert found.code == {"": 0, "infeasible": 3}.get(EXPECTED[name], 2), found.said
    assert f"error[{EXPECTED[name]}]" in found.said if EXPECTED[name] else "error[" not in found.said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("layers=4000000000", "layers is 4000000000, it must be at most 4096"),
        ("layers=1,capacity=nan", "capacity is nan, it must be positive"),
        (f"layers=1,seq={'9' * 5000}", "seq is a whole number without a sign, of at most 18 digits"),
        (
            "layers=1,hidden=1000000000000,heads=1",
            "elements (--budget elements=N or SHARDPLAN_MAX_ELEMENTS=N allows more)",
        ),
    ],
)
def test_descriptions_of_what_nobody_has(words, why, tmp_path):
    where = ("--mesh", "2x2", "-c", "generic", "-o", str(tmp_path / "p.json"))
    found = answer(("solve", f"transformer:style=gpt,{words}", *where), seconds=5)
    assert (found.code, found.fault) == (2, ""), found.said
    assert why in found.said
