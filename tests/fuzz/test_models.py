"""Hostile model files: whatever a file holds, an answer comes soon, with a diagnostic and a known exit code.

`corpus` has files that once crashed the command or kept it busy for ever. Mutations begin with models that are planned;
fresh ones, for as long as one likes: `--hypothesis-profile=fresh`.
"""

from __future__ import annotations

import contextlib
import io
import signal
from pathlib import Path

import pytest
from control_models import CONTROL_MODELS, TRIPS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import mutated
from small_models import MODELS, proto_of

from shardplan.cli import main

CORPUS = Path(__file__).parent / "corpus"
ANSWERS = {0, 2, 3, 4}
CPU_SECONDS = 10


class TooLongError(BaseException):
    """Not caught by anybody on the way."""


@contextlib.contextmanager
def limited(seconds: float):
    """Ends what takes more processor time than `seconds`."""

    def stop(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def solved(path: Path, *options: str, seconds: float = CPU_SECONDS) -> tuple[int, str]:
    """Exit code and all that is printed."""
    out = io.StringIO()
    with limited(seconds), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(
            ["solve", str(path), "--mesh", "2x2", "-c", "generic", "-o", str(path.parent / "p.json"), "-v", *options]
        )
    return code, out.getvalue()


EXPECTED = {
    "bad_utf8": "bad-name",
    "bad_utf8b": "bad-name",
    "conv1d_1000000": "",
    "conv1d_10000000": "",
    "conv1d_2147483647": "",
    "dtype99": "unknown-type",
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
    "unknown_op": "unresolved-shape",
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
    code, said = solved(path, "--mode", "inference", seconds=5)
    assert code == {"": 0, "infeasible": 3}.get(EXPECTED[name], 2), said
    assert f"error[{EXPECTED[name]}]" in said if EXPECTED[name] else "error[" not in said
    assert not [line for line in said.splitlines() if line.startswith("::")]


SEEDS = {name: proto_of(text, opset) for name, (opset, text) in MODELS.items()} | {
    name: proto_of(text) for name, text in CONTROL_MODELS.items()
}
laws = settings(suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "m.onnx"


def assert_answered(file: Path, content: bytes, *options: str) -> None:
    file.write_bytes(content)
    code, said = solved(file, *options)
    assert code in ANSWERS, said
    assert "Traceback" not in said
    assert code == 0 or "error[" in said


@pytest.mark.parametrize("name", sorted(SEEDS))
@settings(laws, max_examples=20)
@given(data=st.data())
def test_mutated_models(name, file, data):
    model = mutated(SEEDS[name], data.draw)
    mode = data.draw(st.sampled_from(["inference", "training"]))
    trips = [f"--trip={dim.removeprefix('trip:')}={count}" for dim, count in TRIPS.get(name, {}).items()]
    assert_answered(file, model.SerializeToString(), "--mode", mode, *trips)


@pytest.mark.parametrize("name", ["gpt", "nested"])
@settings(laws, max_examples=40)
@given(data=st.data())
def test_damaged_bytes(name, file, data):
    content = bytearray(SEEDS[name].SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        what = data.draw(st.sampled_from(["set", "cut", "drop", "repeat"]))
        if what == "set":
            content[at] = data.draw(st.integers(0, 255))
        elif what == "cut":
            del content[max(1, at) :]
        elif what == "drop":
            del content[at : at + data.draw(st.integers(1, 8))]
        else:
            content[at:at] = content[at : at + data.draw(st.integers(1, 64))]
        if not content:
            break
    assert_answered(file, bytes(content), "--mode", "inference")
