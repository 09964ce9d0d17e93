"""Plans that must be signed: by OpenSSH's own tool, as a user signs them."""

import shutil
import subprocess
from pathlib import Path

import pytest

import shardplan as package
from shardplan.errors import ShardplanError

PLAN = "plans/mlp.2x2.plan.json"
ASKED = ("--require-signature", "--allowed-signers", "signers")

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH")


def key(name: str) -> str:
    """A new key pair in the files `name` and `name.pub`; the public key."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", name], check=True)
    return Path(f"{name}.pub").read_text()


def sign(name: str, namespace: str = "shardplan", file: str = PLAN) -> None:
    Path(f"{file}.sig").unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-Y", "sign", "-n", namespace, "-f", name, file], check=True, capture_output=True)


@pytest.fixture
def signed(shardplan, mlp) -> Path:
    """A plan that ada has signed, who may; eve has a key too."""
    shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2")
    Path("signers").write_text(f"ada@example.org {key('ada')}")
    key("eve")
    sign("ada")
    return Path(PLAN)


def test_a_signed_plan(shardplan, signed):
    run = shardplan("check", PLAN, *ASKED)
    assert (run.code, run.out, run.err) == (0, f"{PLAN}  fresh\n", "")
    assert package.load(PLAN, verify=True, allowed_signers="signers").model["name"] == "mlp"


def refused(shardplan, why: str) -> None:
    run = shardplan("check", PLAN, *ASKED)
    assert (run.code, run.out) == (1, f"{PLAN}  invalid\n")
    hint = f"hint: ssh-keygen -Y sign -n shardplan -f KEY {PLAN}\n"
    assert run.err == f"{PLAN}: error[invalid-plan]: invalid: {why}\n{hint}"
    with pytest.raises(ShardplanError) as caught:
        package.load(PLAN, allowed_signers="signers")
    assert str(caught.value) == f"{PLAN}: error[unsigned-plan]: {why}\n{hint}".rstrip()


def test_no_signature(shardplan, signed):
    Path(f"{PLAN}.sig").unlink()
    refused(shardplan, f"it is not signed: there is no file {PLAN}.sig")


def test_a_signature_of_somebody_else(shardplan, signed):
    sign("eve")
    refused(shardplan, f"nobody in signers has made the signature {PLAN}.sig")


@pytest.mark.parametrize("damage", ["", "no signature at all", "-----BEGIN SSH SIGNATURE-----\n"])
def test_a_signature_that_is_none(shardplan, signed, damage):
    Path(f"{PLAN}.sig").write_text(damage)
    refused(shardplan, f"nobody in signers has made the signature {PLAN}.sig")


def test_a_signature_of_other_content_or_for_something_else(shardplan, signed):
    why = f"the signature {PLAN}.sig by ada@example.org is not one of this content, or not one for 'shardplan'"
    sign("ada", "git")
    refused(shardplan, why)
    sign("ada")
    Path(PLAN).write_text(Path(PLAN).read_text() + " ")
    refused(shardplan, why)


def test_what_cannot_be_told_is_no_yes(shardplan, signed, monkeypatch):
    run = shardplan("check", PLAN, "--require-signature", "--allowed-signers", "nobody")
    assert run.code == 2
    assert "nobody: error[unreadable-signers]: cannot read the allowed signers: No such file or directory\n" in run.err
    for half in (["--require-signature"], ["--allowed-signers", "signers"]):
        run = shardplan("check", PLAN, *half)
        assert run.code == 2
        assert "--require-signature and --allowed-signers FILE: both of them, or none" in run.err
    monkeypatch.setenv("PATH", "")
    run = shardplan("check", PLAN, *ASKED)
    assert run.code == 2
    assert "error[no-ssh-keygen]: there is no ssh-keygen to verify signatures with\nhint: install OpenSSH\n" in run.err
