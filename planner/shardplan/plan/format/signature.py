"""Signatures of plan files by OpenSSH: verification that an allowed signer has signed a file's content.

`ssh-keygen -Y sign -n shardplan -f KEY PLAN` writes `PLAN.sig`. A file of allowed signers, in the format of git and
`ssh-keygen`, has a name and a public key on each line.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from shardplan.errors import ShardplanError, error
from shardplan.text_files import in_shell, is_file

NAMESPACE: Final = "shardplan"
"""What a signature is for: one made for something else is none of a plan."""
_PATIENCE_S: Final = 30.0


class UnsignedError(ShardplanError):
    """No allowed signer has signed a plan."""


def signing_command(file: str) -> str:
    """The command that signs a plan with one's own key."""
    return f"ssh-keygen -Y sign -n {NAMESPACE} -f KEY {in_shell(file)}"


def signature_fault(text: str, file: str, signers: str | Path) -> str:
    """Why the text of the plan in `file` has no valid signature of one of `signers`, in a sentence; `""` if it has one.

    Raises `ShardplanError` (`no-ssh-keygen`, `unreadable-signers`) if that cannot be determined.
    """
    keygen = shutil.which("ssh-keygen")
    if keygen is None:
        hint = "install OpenSSH"
        raise ShardplanError(error("no-ssh-keygen", "there is no ssh-keygen to verify signatures with", hint=hint))
    try:
        Path(signers).read_bytes()
    except OSError as problem:
        summary = f"cannot read the allowed signers: {problem.strerror}"
        hint = "a line of that file is a name and a public key: ada@example.org ssh-ed25519 AAAA…"
        raise ShardplanError(error("unreadable-signers", summary, hint=hint, file=str(signers))) from None
    signature = f"{file}.sig"
    if not is_file(signature):
        return f"it is not signed: there is no file {signature}"
    given = ["-f", str(signers), "-n", NAMESPACE, "-s", signature]
    named = _run([keygen, "-Y", "find-principals", *given], "")
    principals = named.stdout.splitlines() if named.returncode == 0 else []
    if not principals:
        return f"nobody in {signers} has made the signature {signature}"
    for principal in principals:
        if _run([keygen, "-Y", "verify", "-I", principal, *given], text).returncode == 0:
            return ""
    return f"the signature {signature} by {principals[0]} is not one of this content, or not one for '{NAMESPACE}'"


def _run(command: list[str], text: str) -> subprocess.CompletedProcess[str]:
    """The result of ssh-keygen on `text`; a timeout counts as a refusal."""
    try:
        return subprocess.run(  # noqa: S603 - no shell, and words that we made
            command,
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", "")
