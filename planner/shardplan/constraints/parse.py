"""From constraint files (YAML) and `--pin 'PATTERN=SPEC'` to constraints; all faults are collected.

```yaml
mesh_axis_names: [data, model]          # optional: other names for the mesh axes, outermost first
inputs:     {x: [data]}                 # dims beyond the last entry are not sharded
outputs:    [[data, null], replicate]   # a list: one entry for each graph output
parameters: {"*.up.weight": [null, model], "*.norm.*": replicate}
tensors:    {hidden: {dims: [data, free], cost: 3 us}}
operators:  {"*q_proj": {model: n}, "softmax*": {model: not n}}
axes:       {data: {inputs: 0, parameters: replicate, forbid: [all_to_all]}}
```
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import yaml

from shardplan.cluster.quantity import MICROSECONDS, parse_quantity
from shardplan.constraints.types import SECTIONS, AxisUse, Constraint, Dims, Section, Spec, Split
from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.layout.collective import FREE, CollectiveKind
from shardplan.layout.text import read_segments
from shardplan.text_files import read_text
from shardplan.units import whole_number
from shardplan.yaml_source import compose, is_null, mark_of

_SECTIONS: dict[str, Section] = {section: section for section in get_args(Section)}
_KINDS: dict[str, CollectiveKind] = {kind: kind for kind in get_args(CollectiveKind) if kind not in FREE}
_WHOLE, _OPEN = ("replicate", "R"), "free"
_PLACEMENT = re.compile(r"\s*S\((\d{1,3})(?:;([\dx,\s]+))?\)@([^\s@()]+(?:\s*,\s*(?!S\()[^\s@(),]+)*)\s*")
_ELSEWHERE = ("stages", "pipeline_intermediate_axes")
"""Keys that `shardplan.pipeline.manual.stages` reads."""
_AXIS_KEYS = ("inputs", "parameters", "forbid")


def read_constraints(path: str | Path) -> tuple[Constraint, ...]:
    """The constraints in a file. Raises `ShardplanError` with everything that is wrong with it."""
    try:
        text = read_text(path)
    except UnicodeDecodeError:
        raise ShardplanError(error("unreadable-constraints", "it is not UTF-8 text", file=str(path))) from None
    except OSError as fault:
        reason = fault.strerror or str(fault)
        raise ShardplanError(
            error(
                "unreadable-constraints", f"cannot read constraints: {reason[:1].lower()}{reason[1:]}", file=str(path)
            )
        ) from None
    return parse_constraints(text, str(path))


def parse_constraints(text: str, file: str) -> tuple[Constraint, ...]:
    """`read_constraints` for text; `file` is the name to show."""
    root = compose(text, file)
    found = constraints_of(root, file)
    if isinstance(root, yaml.MappingNode) and [key.value for key, _ in root.value] == ["mesh_axis_names"]:
        summary = "mesh_axis_names: there is no constraint that these names are for"
        raise ShardplanError(error("bad-constraint", summary, **mark_of(root, file).where))
    return found


def constraints_of(root: yaml.Node, file: str) -> tuple[Constraint, ...]:
    """`parse_constraints` for composed YAML."""
    parser = _Parser(file)
    found = parser.document(root)
    if parser.faults:
        raise ShardplanError(*parser.faults)
    return found


def parse_pin(text: str) -> Constraint:
    """The constraint of `--pin 'PATTERN=SPEC'`; a SPEC in braces is about operators, any other about tensors."""
    pattern, equals, spec = (part.strip() for part in text.partition("="))
    if not (pattern and equals and spec):
        hint = "write for example --pin '*.up.weight=[null, gpu]' or --pin 'embed.weight=replicate'"
        raise ShardplanError(error("bad-constraint", f"--pin '{text}' is not PATTERN=SPEC", hint=hint))
    parser = _Parser(f"--pin '{text}'")
    node = compose(spec, parser.file)
    section: Section = "operators" if isinstance(node, yaml.MappingNode) else "any"
    found = parser.constraint(section, pattern, node, spec)
    if found is None:
        raise ShardplanError(*parser.faults)
    return replace(found, is_pin=True)


def parse_recorded(text: str, file: str, aliases: tuple[str, ...] = ()) -> Constraint:
    """The constraint that was written as `str(constraint)` into the plan `file`. Raises `ShardplanError`."""
    section, _, rest = text.partition(": ")
    pattern, _, spec = (rest if section in SECTIONS else text).partition(": ")
    parser = _Parser(file)
    parser.aliases = aliases
    found = parser.constraint(_SECTIONS.get(section, "any"), pattern, compose(spec, file), spec)
    if found is None:
        raise ShardplanError(*parser.faults)
    return replace(found, is_pin=True)


class _Parser:
    """Turns composed nodes into constraints; `faults` collects what is wrong."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.faults: list[Diagnostic] = []
        self.aliases: tuple[str, ...] = ()

    def fault(self, node: yaml.Node, summary: str, hint: str = "", detail: str = "", code: str = "") -> None:
        where = mark_of(node, self.file).where
        self.faults.append(error(code or "bad-constraint", summary, hint=hint, detail=detail, **where))

    def document(self, root: yaml.Node) -> tuple[Constraint, ...]:
        sections = self.mapping(root, "a constraint file", (*SECTIONS, *_ELSEWHERE, "mesh_axis_names"))
        if "mesh_axis_names" in sections:
            self.aliases = self.names(sections["mesh_axis_names"])
            if len(set(self.aliases)) < len(self.aliases):
                self.fault(sections["mesh_axis_names"], "mesh_axis_names: a name is given twice")
        found: list[Constraint] = []
        for name, node in sections.items():
            if name not in ("mesh_axis_names", *_ELSEWHERE):
                found += self.section(_SECTIONS[name], node)
        return tuple(found)

    def section(self, name: Section, node: yaml.Node) -> list[Constraint]:
        if name in ("inputs", "outputs"):
            if isinstance(node, yaml.ScalarNode):
                return self.several(name, [("*", node)])
            if isinstance(node, yaml.SequenceNode):
                if any(_is_axis_name(entry) for entry in node.value):
                    hint = f'for every one of the {name}, write {name}: {{"*": …}}; for one, its name'
                    self.fault(node, f"{name}: a list has one entry for each of them, each a list itself", hint)
                    return []
                return self.several(name, [(f"#{number}", entry) for number, entry in enumerate(node.value)])
        return self.several(name, list(self.mapping(node, f"'{name}'", ()).items()))

    def several(self, section: Section, nodes: list[tuple[str, yaml.Node]]) -> list[Constraint]:
        made = [self.constraint(section, pattern, node, _written(node)) for pattern, node in nodes]
        return [constraint for constraint in made if constraint is not None]

    def constraint(self, section: Section, pattern: str, node: yaml.Node, text: str) -> Constraint | None:
        """One constraint, or None after noting what is wrong with it."""
        before, cost_us, about = len(self.faults), None, node
        if section != "axes" and isinstance(node, yaml.MappingNode) and _has_key(node, "cost"):
            parts = self.mapping(node, f"'{pattern}'", ("dims", "splits", "cost"))
            cost_us = self.duration(parts["cost"]) if "cost" in parts else None
            wanted = parts.get("splits" if section == "operators" else "dims")
            if wanted is None:
                self.fault(node, f"'{pattern}' has a cost but nothing that it is the cost of")
                return None
            about = wanted
        spec: Spec
        if section == "operators":
            spec = self.splits(about)
        elif section == "axes":
            spec = self.axis_use(about)
        else:
            spec = self.dims(about)
        if len(self.faults) > before:
            return None
        return Constraint(section, pattern, spec, text, mark_of(node, self.file), cost_us, self.aliases)

    def dims(self, node: yaml.Node) -> Dims:
        if is_null(node) or (isinstance(node, yaml.ScalarNode) and node.value in _WHOLE):
            return Dims(())
        if isinstance(node, yaml.SequenceNode):
            return Dims(tuple(self.axes_of_dim(entry) for entry in node.value))
        if isinstance(node, yaml.ScalarNode) and node.value == _OPEN:
            return Dims((), rest_open=True)
        if isinstance(node, yaml.ScalarNode) and (found := _named_layout(node.value)) is not None:
            return found
        hint = "write [machine, null], replicate, free, or S(0)@machine"
        self.fault(node, f"{_shown(node)} is not how a tensor is sharded", hint)
        return Dims(())

    def axes_of_dim(self, node: yaml.Node) -> tuple[str, ...] | None:
        if is_null(node):
            return ()
        if isinstance(node, yaml.ScalarNode):
            return None if node.value == _OPEN else (node.value,)
        return self.names(node)

    def splits(self, node: yaml.Node) -> tuple[Split, ...]:
        found = []
        for axis, entry in self.mapping(node, "the splits of an operator", ()).items():
            word = entry.value.split() if isinstance(entry, yaml.ScalarNode) else []
            if len(word) not in (1, 2) or (len(word) == 2 and word[0] != "not"):
                hint = "write a factor such as n, not n, or none"
                self.fault(entry, f"{_shown(entry)} is not what an axis does to an operator", hint)
            else:
                found.append(Split(axis, "" if word[-1] == "none" else word[-1], wanted=len(word) == 1))
        return tuple(found)

    def axis_use(self, node: yaml.Node) -> AxisUse:
        entries = self.mapping(node, "the use of an axis", _AXIS_KEYS)
        dim, whole, forbidden = -1, False, list[CollectiveKind]()
        if "inputs" in entries:
            entry = entries["inputs"]
            number = whole_number(entry.value) if isinstance(entry, yaml.ScalarNode) else None
            if number is not None:
                dim = number
            else:
                self.fault(entry, f"inputs: {_shown(entry)} is not a dim", "write the number of a dim, such as 0")
        if "parameters" in entries:
            entry = entries["parameters"]
            whole = isinstance(entry, yaml.ScalarNode) and entry.value in _WHOLE
            if not whole:
                self.fault(entry, f"parameters: expected replicate, found {_shown(entry)}")
        for kind in self.names(entries["forbid"]) if "forbid" in entries else ():
            if kind in _KINDS:
                forbidden.append(_KINDS[kind])
            else:
                self.fault(
                    entries["forbid"],
                    f"forbid: there is no collective '{kind}'",
                    did_you_mean(kind, _KINDS),
                    f"there are {', '.join(_KINDS)}",
                )
        return AxisUse(dim, whole, tuple(forbidden))

    def duration(self, node: yaml.Node) -> float | None:
        try:
            value = parse_quantity(node.value if isinstance(node, yaml.ScalarNode) else "", MICROSECONDS)
        except ValueError as fault:
            self.fault(node, f"cost: {fault}")
            return None
        if value < 0:
            self.fault(node, "cost: the penalty of a soft constraint is at least 0")
        return value

    def names(self, node: yaml.Node) -> tuple[str, ...]:
        entries = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for entry in entries:
            if not isinstance(entry, yaml.ScalarNode) or is_null(entry):
                self.fault(entry, f"expected a name, found {_shown(entry)}")
        return tuple(entry.value for entry in entries if isinstance(entry, yaml.ScalarNode))

    def mapping(self, node: yaml.Node, what: str, allowed: tuple[str, ...]) -> dict[str, yaml.Node]:
        """Keys and values of a mapping; faults for anything else, keys given twice, and keys not in `allowed`."""
        if not isinstance(node, yaml.MappingNode):
            self.fault(node, f"{what} is a mapping, found {_shown(node)}")
            return {}
        found: dict[str, yaml.Node] = {}
        for key_node, value in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
            if key in found:
                self.fault(key_node, f"'{key}' is given twice", code="duplicate-key")
            elif allowed and key not in allowed:
                detail = f"allowed: {', '.join(allowed)}"
                summary = f"unknown key '{key}' in {what}"
                self.fault(key_node, summary, did_you_mean(key, allowed), detail, "unknown-key")
            else:
                found[key] = value
        return found


def _named_layout(text: str) -> Dims | None:
    """`S(0)@machine, S(1;3x768)@gpu` as dims."""
    axes: dict[int, tuple[str, ...]] = {}
    segments: dict[int, tuple[int, ...]] = {}
    for piece in re.split(r",\s*(?=S\()", text):
        match = _PLACEMENT.fullmatch(piece)
        if match is None or int(match[1]) in axes:
            return None
        axes[int(match[1])] = tuple(name.strip() for name in match[3].split(","))
        if match[2]:
            try:
                segments[int(match[1])] = read_segments(match[2], text)
            except ShardplanError:
                return None
    dims = range(max(axes) + 1)
    pieces = tuple(segments.get(dim, ()) for dim in dims) if segments else ()
    return Dims(tuple(axes.get(dim, ()) for dim in dims), segments=pieces)


def _is_axis_name(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and not is_null(node) and node.value not in (*_WHOLE, _OPEN)


def _has_key(node: yaml.MappingNode, name: str) -> bool:
    return any(isinstance(key, yaml.ScalarNode) and key.value == name for key, _ in node.value)


def _shown(node: yaml.Node) -> str:
    if is_null(node):
        return "nothing"
    return f"'{_written(node)}'"


def _written(node: yaml.Node) -> str:
    """A node as one line of flow-style YAML."""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value) or "null"
    if isinstance(node, yaml.SequenceNode):
        return "[" + ", ".join(_written(entry) for entry in node.value) + "]"
    return "{" + ", ".join(f"{_written(key)}: {_written(value)}" for key, value in node.value) + "}"
