"""Verbs with any of their options, as the commands themselves declare them, and files of any kind in any place."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random

import click

from shardplan.cli import cli

LEFT_OUT = {"--help", "-h", "--color", "--workers", "--scheduler"}
"""What ends no command sooner: the colours of a terminal are escapes, and workers are processes of their own."""
SENSIBLE = {
    "--mesh": ("2x2", "1x4", "2x2x2", "auto", "1", "3x2", "gpu=2,machine=2"),
    "--cluster": ("generic", "h100-dgx", "tpu-v4", "gb200-nvl72", "l4-g6-48xl"),
    "--devices": ("2x2", "4"), "--pin": ("*=replicate", "w1=[null,gpu]", "w*=S(0)@gpu"), "--dim": ("batch=8",),
    "--stages": ("2", "auto", "1"), "--microbatches": ("2", "1", "4"), "--remat": ("auto", "full"),
    "--time-limit": ("1", "0.01"), "--gap": ("0.1", "0.5"), "--memory-limit": ("1GiB", "100KB", "1B"),
    "--kv-cache": ("16", "128"), "--instead": ("R", "S(0)@gpu"), "--schedule": ("1f1b", "interleaved:2"),
    "--budget": ("operators=1000", "rank=3"), "--trip": ("Loop_0=4",), "--pad": ("x[0]=8",), "--tp": ("2", "4"),
    "--pp": ("2",), "--dp": ("2",), "--fail-if": ("step>+2%", "communication>0%"), "--measured-ms": ("3",),
    "--to": ("jax", "onnx-spmd", "shardy", "tp-plan", "torchtitan", "fsdp2", "shard-info"), "--hosts": ("a,b",),
    "--for": ("torchrun", "srun", "mpirun", "jobset", "ray", "hostfile", "jax", "fsdp2", "tp-plan"),
    "--cost-model": ("alpa", "hidet"),
}  # fmt: skip
"""What an option is given where it is to go on; others get a small number or one of `WORDS`."""
WORDS = ("", "0", "1", "2", "-1", "1e400", "nan", "0.5", "1" + "0" * 30, "0x0", "40", "*=[null]", "[=x", "=", "b=1e9",
         "nope", "\x1b[2J", "::error::x", "\u202e", "日本", "1,,2", "x" * 3000, "１２", "1_0", "λ")  # fmt: skip
OUTPUTS = ("o.json", "new/o.json", "/dev/full", "-", ".", "", "no/\udcff", "x" * 300, "::error::x", "\x1b[2J")
PROGRAM = "def ends(): raise SystemExit(3)\ndef two(): return 1, 2\ndef none(): return None\nx = 5\n"
VERBS_THAT_ACT = {"launch", "init"}
"""They start a program, or write where they are called."""


def any_command(plans: dict[str, tuple[str, ...]], folder: Path, random: Random) -> list[str]:
    """`plans`: of `Workplace`, by name with the model first."""
    path, command = random.choice(_commands())
    name = random.choice(sorted(plans))
    good = {"plan": str(folder / f"{name}.plan.json"), "model": str(folder / f"{plans[name][0]}.onnx")}
    words, files = [*path], _strange(folder)
    for argument in (each for each in command.params if isinstance(each, click.Argument)):
        kind = "plan" if "plan" in str(argument.name) or argument.name in {"old", "new"} else "model"
        if (path[0], argument.name) != ("launch-env", "program"):
            words.append(good[kind] if random.random() < 0.8 else random.choice(files))
    options = [each for each in command.params if isinstance(each, click.Option) and not LEFT_OUT & set(each.opts)]
    for option in options:
        if random.random() < (0.95 if option.required else min(0.5, 2 / len(options))):
            flag = random.choice(option.opts)
            words += [flag] if option.is_flag or option.count else [flag, _value(option, files, random)]
    return [word.replace("\0", "") for word in words]


@cache
def _commands() -> tuple[tuple[tuple[str, ...], click.Command], ...]:
    def leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
        if isinstance(command, click.Group):
            for name, each in sorted(command.commands.items()):
                yield from leaves(each, (*path, name))
        else:
            yield path, command

    return tuple(found for found in leaves(cli, ()) if found[0][0] not in VERBS_THAT_ACT)


def _value(option: click.Option, files: list[str], random: Random) -> str:
    longest = max(option.opts, key=len)
    if longest in {"--output", "--html", "--junit", "--sarif", "--plot"}:
        return random.choice(OUTPUTS)
    if isinstance(option.type, click.Choice) and random.random() < 0.9:
        return random.choice([str(each) for each in option.type.choices])
    if longest in SENSIBLE and random.random() < 0.8:
        return random.choice(SENSIBLE[longest])
    return random.choice(files if random.random() < 0.4 else WORDS if random.random() < 0.6 else ("1", "2", "4"))


def _strange(folder: Path) -> list[str]:
    """Files of other kinds than their names, of odd encodings and sizes; devices; and names of functions."""
    made = folder / "strange"
    if not made.exists():
        made.mkdir()
        for name, data in _contents(folder).items():
            (made / name).write_bytes(data)
        (folder / "fuzzed_module.py").write_text(PROGRAM)
        (made / "folder.onnx").mkdir()
        (made / "circle.json").symlink_to("circle.json")
        with (made / "sparse.onnx").open("wb") as file:
            file.truncate(8 << 30)
    functions = [f"fuzzed_module:{name}" for name in ("ends", "two", "none", "x", "absent")]
    rest = ["/dev/null", "/dev/zero", "", ".", "absent", "\udcff", "x" * 300, "a/" * 2000, "a\n::error::b"]
    return [*map(str, sorted(made.iterdir())), *functions, *rest]


def _contents(folder: Path) -> dict[str, bytes]:
    plan, model = (folder / "training.plan.json").read_text(), (folder / "mlp.onnx").read_bytes()
    number = re.compile(r": \d+(?=[,}\n])")
    doubled = "".join(f"{one}: &{one} [*{last}, *{last}]\n" for last, one in pairwise("abcdefghijklmnopqrstuvwxy"))
    return {
        "utf16.plan.json": plan.encode("utf-16"), "bom.plan.json": b"\xef\xbb\xbf" + plan.encode(),
        "crlf.plan.json": plan.replace("\n", "\r\n").encode(), "deep.plan.json": b"[" * 200_000 + b"]" * 200_000,
        "twice.plan.json": plan.replace("{", '{"format_version": "1.0", ', 1).encode(),
        "infinite.plan.json": number.sub(": 1e400", plan).encode(),
        "minus0.plan.json": number.sub(": -0", plan).encode(),
        "huge.plan.json": number.sub(f": {'9' * 5000}", plan).encode(), "zip.onnx": b"PK\3\4" + bytes(99),
        "half.plan.json": plan[: len(plan) // 2].encode(), "empty": b"", "list.json": b"[]", "packed.json.gz":
        gzip.compress(plan.encode()), "itself.yaml": b"a: &a [*a]\n",
        "laughs.yaml": f"a: &a [x, x]\n{doubled}".encode(),
        "tagged.yaml": b"!!python/object/apply:os.system [touch obeyed]\n", "deep.yaml": b"[" * 3000 + b"]" * 3000,
        "extends.yaml": b"schema: 1\nextends: extends.yaml\nname: x\n", "twice.onnx": model + model,
        "zero.yaml": b"schema: 1\nextends: /dev/zero\nname: x\n",
        "trace.json": b'{"traceEvents": [{"ph": "X", "dur": 1e400}]}',
        "gemm.csv": b"m,n,k,dtype,seconds\n0,-1,1e400,zz,nan\n\x1b[2J,::error::,,,\n", "cell.csv": b"m" * 200_000,
        "config.json": b'{"model_type": ["llama"], "hidden_size": 1e400}', "half.onnx": model[: len(model) // 2],
    }  # fmt: skip
