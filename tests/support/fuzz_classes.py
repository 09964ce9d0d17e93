"""Classes of inputs that anybody may have made: each makes one from a seed, and the commands that read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from control_models import CONTROL_MODELS, TRIPS
from fuzz_models import mutated
from fuzz_operators import one_operator
from fuzz_options import any_command
from fuzz_text import changed_bytes, changed_document, changed_text
from safetensors_files import write_indexed, write_safetensors
from small_models import MODELS, proto_of

from shardplan.cli import main

Commands = list[list[str]]
SEEDS = {name: proto_of(text, opset) for name, (opset, text) in MODELS.items()} | {
    name: proto_of(text) for name, text in CONTROL_MODELS.items()
}
PLANS = {
    "training": ("mlp", "--mode", "training"),
    "inference": ("llama", "--mode", "inference"),
    "stages": ("mlp", "--stages", "2", "--microbatches", "2"),
    "remat": ("gpt", "--remat", "full", "--microbatches", "2"),
    "zero": ("mlp", "--shard-optimizer"),
    "loop": ("counted",),
    "experts": ("moe", "--mode", "inference"),
}
PROFILE = (Path(__file__).resolve().parents[2] / "cluster_profiles" / "generic.yaml").read_text()
OTHER = (Path(__file__).resolve().parents[2] / "cluster_profiles" / "gb200-nvl72.yaml").read_text()
MINE = (
    "schema: 1\nextends: builtin:h100-dgx\nname: mine\ndevice: {memory_bytes: 80 GB}\nlevels: {up: {link_gbps: 50}}\n"
)
CONSTRAINTS = """\
mesh_axis_names: [data, model]
inputs:
  x: [data]
outputs: [[data, null]]
parameters:
  "w?": [null, model]
  "b*": replicate
tensors:
  h*: [data, free]
  a: {dims: [data, null], cost: 3 us}
operators:
  "*MatMul*": {model: n}
  "*Relu*": {model: none}
axes:
  data: {inputs: 0, parameters: replicate, forbid: [all_to_all]}
"""
STAGES = "stages:\n  - {blocks: 0-1, mesh: 1x2}\n  - {blocks: 2-3, mesh: 1x2, parameters: {w1: replicate}}\n"
SETTINGS = '[solve]\ncluster = "generic"\nmesh = "2x2"\nmode = "inference"\ntime-limit = 3\n'
PROBLEM = Path(__file__).resolve().parents[1] / "solve" / "example.json"
DESCRIPTIONS = ("transformer:style=llama,layers=2,hidden=64,heads=4,vocab=96,seq=16,batch=4", "transformer:llama3-8b")
ON = ("--mesh", "2x2", "-c", "generic")
TARGETS = ("onnx", "onnx-spmd", "shard-info", "jax", "shardy", "tp-plan", "tp-plan-portable", "deepspeed", "torchtitan")


@dataclass
class Workplace:
    """A folder with what mutations begin with. `plans`: the documents; `models`: of which model each is."""

    folder: Path
    plans: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, model in SEEDS.items():
            onnx.save(model, self.path(f"{name}.onnx"))
        for name, (model, *options) in PLANS.items():
            path = self.path(f"{name}.plan.json")
            code = main(["solve", self.path(f"{model}.onnx"), *ON, *options, "--effort", "quick", "-o", path, "-q"])
            assert code == 0, name
            self.plans[name] = json.loads(Path(path).read_text())
        rng = np.random.default_rng(0)
        shapes = {"w1": (32, 64), "b1": (64,), "w2": (64, 16), "b2": (16,)}
        weights = {name: rng.random(shape, np.float32) for name, shape in shapes.items()}
        write_safetensors(self.folder / "one.safetensors", weights)
        halves = {
            "a.safetensors": {k: weights[k] for k in ("w1", "b1")},
            "b.safetensors": {k: weights[k] for k in ("w2", "b2")},
        }
        write_indexed(self.folder / "two", halves)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def write(self, name: str, content: bytes | str) -> str:
        """The path of a file of that content; what no encoding can write is written as it would be read."""
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        return str(path)


def _solve(place: Workplace, model: onnx.ModelProto | bytes, random: Random, *options: str) -> Commands:
    path = place.write("m.onnx", model if isinstance(model, bytes) else model.SerializeToString())
    mode = random.choice(("inference", "training"))
    command = ["solve", path, *ON, "--mode", mode, "-o", place.path("m.plan.json"), *options]
    if random.random() < 0.1:
        return [command, ["inspect", path, random.choice(("--json", "-q"))]]
    return [command]


def onnx_bytes(place: Workplace, random: Random) -> Commands:
    """The bytes of a file."""
    name = random.choice(sorted(SEEDS))
    return _solve(place, changed_bytes(SEEDS[name].SerializeToString(), random), random)


def onnx_structure(place: Workplace, random: Random) -> Commands:
    """Arities, attributes, dims, types and operators of a model."""
    name = random.choice(sorted(SEEDS))
    trips = [f"--trip={dim.removeprefix('trip:')}={count}" for dim, count in TRIPS.get(name, {}).items()]
    return _solve(place, mutated(SEEDS[name], random), random, *trips)


def onnx_operators(place: Workplace, random: Random) -> Commands:
    """One operator of any kind."""
    return _solve(place, one_operator(random), random)


def read_plan(place: Workplace, name: str, plan: str, random: Random) -> Commands:
    """Commands that read a plan which was made of the one called `name`."""
    model, other = place.path(f"{PLANS[name][0]}.onnx"), place.path(f"{random.choice(sorted(PLANS))}.plan.json")
    target, out = random.choice(TARGETS), place.path("out")
    forms = ("text", "markdown", "github", "json")
    commands = (
        ["show", plan, "--format", random.choice(("text", "dot", "graphml", "slapo"))],
        ["show", plan, random.choice(("--json", "--all"))],
        ["diff", other, plan, "--format", random.choice(forms)],
        ["diff", plan, other, "--all", "--format", random.choice(forms)],
        ["check", plan, "--model", model, *(["--json"] if random.random() < 0.3 else [])],
        ["check", plan],
        ["explain", plan],
        ["timeline", plan, "-o", "-"],
        ["timeline", plan, "--json"],
        [
            "export",
            plan,
            *([model] if target.startswith("onnx") else []),
            "--to",
            target,
            "-o",
            out if target == "onnx-spmd" else f"{out}.txt",
        ],
        ["evaluate", model, "--fix", plan],
        ["verify", model, plan],
        ["split", place.path("one.safetensors"), plan, "-o", place.path("ranks")],
        ["solve", model, *ON, "--constraints", plan, "-o", place.path("m.plan.json")],
        ["calibrate", "step", plan, "--measured-ms", "3"],
    )
    return random.sample(commands, 2)


def plans(place: Workplace, random: Random) -> Commands:
    """Entries of a plan, and its text."""
    name = random.choice(sorted(PLANS))
    if random.random() < 0.85:
        text = json.dumps(
            changed_document(place.plans[name], random, list(place.plans.values())), indent=random.choice((None, 1))
        )
    else:
        text = changed_bytes(json.dumps(place.plans[name]).encode(), random)
    return read_plan(place, name, place.write("p.plan.json", text), random)


def yaml_documents(place: Workplace, random: Random) -> Commands:
    """Profiles, constraints and stages."""
    donors = (PROFILE, OTHER, CONSTRAINTS, STAGES, MINE)
    if random.random() < 0.5:
        path = place.write("p.yaml", changed_text(random.choice((PROFILE, OTHER, MINE)), random, donors))
        use = ["solve", place.path("mlp.onnx"), "--mesh", "2x2", "-c", path, "-o", place.path("m.plan.json")]
        return [["profiles", "check", path], random.choice((use, ["profiles", "show", path]))]
    path = place.write("c.yaml", changed_text(random.choice((CONSTRAINTS, STAGES)), random, donors))
    verb = random.choice(("solve", "evaluate"))
    options = ["-o", place.path("m.plan.json"), "--constraints", path] if verb == "solve" else ["--fix", path]
    return [[verb, place.path("mlp.onnx"), *ON, *options]]


def checkpoints(place: Workplace, random: Random) -> Commands:
    """Headers, indexes and data of safetensors."""
    data = (place.folder / "one.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, rest = data[8 : 8 + length], data[8 + length :]
    what = random.random()
    if what < 0.5:
        text = json.dumps(changed_document(json.loads(header), random)).encode("utf-8", "surrogatepass")
        given = place.write("c/m.safetensors", len(text).to_bytes(8, "little") + text + rest)
    elif what < 0.75:
        given = place.write("c/m.safetensors", changed_bytes(data[: length + 64], random) + rest)
    else:
        index = json.loads((place.folder / "two" / "model.safetensors.index.json").read_text())
        text = json.dumps(changed_document(index, random, [index]))
        given = place.write("two/i.safetensors.index.json", text)
    plan = place.path(f"{random.choice(('training', 'zero'))}.plan.json")
    return [["split", given, plan, "-o", place.path("ranks"), *random.choice(((), ("--once",), ("--json",)))]]


def _word(text: str, random: Random) -> str:
    """As a word of a command line, in which no system has zero bytes."""
    return changed_text(text, random).replace("\0", "")


def settings(place: Workplace, random: Random) -> Commands:
    """What stands in `shardplan.toml`, which holds for every verb."""
    place.write("shardplan.toml", changed_text(SETTINGS, random, (SETTINGS,)))
    return [["solve", place.path("mlp.onnx"), "-o", place.path("m.plan.json")]]


def others(place: Workplace, random: Random) -> Commands:
    """Instances of the solver, descriptions of models, settings and what is written on the command line."""
    what = random.randrange(4)
    if what == 3:
        return settings(place, random)
    if what == 0:
        document = changed_document(json.loads(PROBLEM.read_text()), random)
        path = place.write("i.json", json.dumps(document))
        return [["solve-problem", path, "-o", place.path("s.json")], ["evaluate-problem", path, place.path("s.json")]]
    if what == 1:
        return [
            [
                "solve",
                _word(random.choice(DESCRIPTIONS), random).strip("-"),
                *ON,
                "-o",
                place.path("m.plan.json"),
            ]
        ]
    words = [
        "2x2",
        "x=S(0)@gpu",
        "w1=[null, gpu]",
        "batch=8",
        "40 GiB",
        "auto",
        "1f1b",
        "interleaved:2",
        "alpa:beta=1x0.01",
    ]
    flag = random.choice(
        (
            "--mesh",
            "--pin",
            "--dim",
            "--memory-limit",
            "--stages",
            "--schedule",
            "--trip",
            "--kv-cache",
            "--gap",
            "--devices",
            "--optimizer",
            "--microbatches",
        )
    )
    return [
        [
            "solve",
            place.path("mlp.onnx"),
            "-c",
            "generic",
            "-o",
            place.path("m.plan.json"),
            f"{flag}={_word(random.choice(words), random)}",
        ]
    ]


def any_options(place: Workplace, random: Random) -> Commands:
    """A verb with any of its options, and files of any kind in any place."""
    return [any_command(PLANS, place.folder, random)]


def made(name: str, place: Workplace, random: Random, classes: Classes | None = None) -> Commands:
    """An input of the class called `name`, written to `place`, and the commands that read it."""
    (place.folder / "shardplan.toml").unlink(missing_ok=True)  # else it holds for all that follow
    return (classes or CLASSES)[name](place, random)


Classes = dict[str, Callable[[Workplace, Random], Commands]]
CLASSES: Classes = {
    "onnx-bytes": onnx_bytes,
    "onnx-structure": onnx_structure,
    "onnx-operators": onnx_operators,
    "plans": plans,
    "yaml": yaml_documents,
    "checkpoints": checkpoints,
    "others": others,
    "options": any_options,
}
