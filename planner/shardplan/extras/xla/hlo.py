"""Parser of HLO text: computations, instructions, shapes, as far as reading collectives needs them.

The text is what `compiled.as_text()` gives after partitioning: one instruction a line, `name = shape opcode(operands),
attributes`, in computations between braces. Both spellings of names are read, with and without `%`.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_HEAD = re.compile(r"^(?!HloModule)(ENTRY )?%?([\w.\-]+) .*\{\s*$")
_LINE = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"\b([a-z]+[a-z0-9]*)\[([\d,<=]*)\]")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\s*\{\s*"n":\s*"?(\d+)')
_COMMENT = re.compile(r"/\*.*?\*/")
_BITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Shape:
    """One array: element type as HLO writes it (`f32`, `bf16`, `pred`) and dims."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def size_bytes(self) -> int:
        """Bytes; element types smaller than a byte are packed."""
        if self.dtype in {"token", "opaque"}:
            return 0
        bits = _BITS.search(self.dtype)
        return -(-self.elements * (int(bits[1]) if bits else 8) // 8)


@dataclass(frozen=True, slots=True)
class Instruction:
    """`shapes`: of the result, a tuple's elements one after the other. `attributes`: what follows the operands."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    attributes: str
    is_root: bool = False

    @property
    def calls(self) -> tuple[str, ...]:
        """Names of the computations that it runs."""
        branches = _BRANCHES.search(self.attributes)
        listed = [name.strip().lstrip("%") for name in branches[1].split(",")] if branches else []
        return (*_CALLED.findall(self.attributes), *listed)

    @property
    def trips(self) -> int | None:
        """The trip count of a `while`, where the compiler knows it."""
        found = _TRIPS.search(self.attributes)
        return int(found[1]) if found else None

    @property
    def number(self) -> int:
        """Which parameter, or which element of a tuple."""
        if self.opcode == "parameter":
            return int(self.operands[0])
        found = re.search(r"\bindex=(\d+)", self.attributes)
        assert found is not None, self
        return int(found[1])

    @property
    def op_name(self) -> str:
        """Where it comes from: `jit(loss)/transpose(jvp())/dot_general`."""
        found = re.search(r'\bop_name="([^"]*)"', self.attributes)
        return found[1] if found else ""


@dataclass(frozen=True)
class Computation:
    name: str
    instructions: Mapping[str, Instruction]

    @functools.cached_property
    def users(self) -> Mapping[str, tuple[Instruction, ...]]:
        """Instructions that read each value."""
        found: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                if operand in found:
                    found[operand].append(instruction)
        return {name: tuple(readers) for name, readers in found.items()}

    @functools.cached_property
    def root(self) -> Instruction:
        return next(i for i in self.instructions.values() if i.is_root)

    def parameter(self, number: int) -> Instruction:
        return next(i for i in self.instructions.values() if i.opcode == "parameter" and i.number == number)


@dataclass(frozen=True)
class Module:
    computations: Mapping[str, Computation]
    entry: str

    def instructions(self) -> Iterator[tuple[Computation, Instruction]]:
        """All instructions of all computations, in the order of the text."""
        for computation in self.computations.values():
            for instruction in computation.instructions.values():
                yield computation, instruction

    @functools.cached_property
    def callers(self) -> Mapping[str, tuple[tuple[Computation, Instruction], ...]]:
        """Computation -> the instructions that run it."""
        found: dict[str, list[tuple[Computation, Instruction]]] = {name: [] for name in self.computations}
        for computation, instruction in self.instructions():
            for name in dict.fromkeys(instruction.calls):
                found.setdefault(name, []).append((computation, instruction))
        return {name: tuple(places) for name, places in found.items()}

    @functools.cached_property
    def runs(self) -> Mapping[str, int]:
        """How often each computation runs when the entry runs once. A loop of unknown length counts once."""
        known: dict[str, int] = {}

        def count(name: str) -> int:
            if name not in known:
                callers = self.callers[name]
                known[name] = int(name == self.entry) + sum(
                    count(computation.name) * (instruction.trips or 1) for computation, instruction in callers
                )
            return known[name]

        return {name: count(name) for name in self.computations}


def parse_module(text: str) -> Module:
    """The module that `text` prints. `ValueError` where there is no entry computation or a line is not HLO."""
    computations: dict[str, Computation] = {}
    entry, name = "", ""
    current: dict[str, Instruction] = {}
    for line in _COMMENT.sub("", text).splitlines():
        if line.startswith("}"):
            computations[name] = Computation(name, current)
        elif head := _HEAD.match(line):
            name, current = head[2], {}
            entry = name if head[1] else entry
        elif name and (found := _LINE.match(line)):
            current[found[2]] = _instruction(found[2], found[3], is_root=bool(found[1]))
    if entry not in computations:
        raise ValueError("this is not the text of an HLO module: it has no entry computation")
    return Module(computations, entry)


def _instruction(name: str, text: str, *, is_root: bool) -> Instruction:
    end = _closing(text, 0) + 1 if text.startswith("(") else text.find(" ")
    shapes = tuple(
        Shape(dtype, tuple(int(size.lstrip("<=")) for size in dims.split(",") if size))
        for dtype, dims in _ARRAY.findall(text[:end])
    )
    opcode = _OPCODE.match(text, end)
    if opcode is None:
        raise ValueError(f"this is not an HLO instruction: {name} = {text[:120]}")
    close = _closing(text, opcode.end() - 1)
    operands = _pieces(text[opcode.end() : close])
    return Instruction(name, opcode[1], shapes, operands, text[close + 1 :], is_root)


def _closing(text: str, start: int) -> int:
    """Where the parenthesis at `start` is closed."""
    depth = 0
    for place in range(start, len(text)):
        if text[place] in "({[":
            depth += 1
        elif text[place] in ")}]":
            depth -= 1
            if depth == 0:
                return place
    raise ValueError(f"unbalanced parentheses in HLO: {text[:120]}")


def _pieces(text: str) -> tuple[str, ...]:
    """Names of the operands: the last word of each piece between commas outside of all brackets."""
    pieces, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "({[") - (character in ")}]")
        if character == "," and depth == 0:
            pieces.append(text[start:place])
            start = place + 1
    pieces.append(text[start:])
    return tuple(piece.split()[-1].lstrip("%") for piece in pieces if piece.strip())
