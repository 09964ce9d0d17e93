"""Dataflow of a collective's result in HLO: is it only sliced by device, or only read by another collective?

XLA on CPU (and wherever no pass rewrites it) emits a reduce-scatter as an all-reduce whose result is then cut. Such an
all-reduce is recognised by following its result: through operators that work on each element or only rearrange, into
and out of fusions, until every way has met a `dynamic-slice` at a place that depends on the device.

It also sums over two mesh axes in two all-reduces, one after the other, where the axes shard different dims; and XLA
everywhere gathers what is split by two axes in two dims over one axis after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardplan.extras.xla.hlo import Computation, Instruction, Module

_PASSES = frozenset(
    (
        "bitcast", "copy", "copy-start", "copy-done", "reshape", "transpose", "convert", "opt-barrier", "abs", "add",
        "and", "atan2", "cbrt", "ceil", "clamp", "compare", "cosine", "divide", "exponential",
        "exponential-minus-one", "erf", "floor", "is-finite", "log", "log-plus-one", "logistic", "maximum", "minimum",
        "multiply", "negate", "not", "or", "power", "reduce-precision", "remainder", "round-nearest-afz",
        "round-nearest-even", "rsqrt", "select", "sign", "sine", "sqrt", "subtract", "tan", "tanh", "xor",
        "all-reduce-done",
    )
)  # fmt: skip
"""Operators that could as well run on the parts: elementwise ones, and those that only rearrange."""
_SAME = frozenset(
    {"bitcast", "copy", "copy-start", "copy-done", "reshape", "transpose", "all-reduce-done", "all-gather-done"}
)
"""Operators whose result has the same numbers."""
_ON_THE_WAY = {"all-reduce": _SAME, "all-gather": _SAME | {"convert"}}
"""What may lie between two collectives of a kind that run one after the other as well before both or after both."""
_DEVICE = frozenset({"partition-id", "replica-id"})
_HANDS_ON = frozenset({"fusion", "call", "while"})
"""What hands its operands to a computation, in order."""


def times_cut(module: Module, computation: Computation, value: Instruction, element: int) -> int:
    """Into how many parts every device cuts element `element` of `value` (0 where it is no tuple) on every way to its
    readers, to keep one of them; the fewest where ways differ, 1 where a reader takes it whole or nobody reads it."""
    whole = value.shapes[element].elements
    walk = _Walk(module)
    reached = walk.readers(computation, value, element if len(value.shapes) > 1 else None)
    return whole // walk.largest if reached and walk.largest else 1


def sent_on(module: Module, computation: Computation, value: Instruction, element: int) -> tuple[str, int] | None:
    """The collective of the same kind that alone reads element `element` of `value` (0 where it is no tuple), and as
    which operand."""
    kind = value.opcode.removesuffix("-start")
    wanted = element if len(value.shapes) > 1 else None
    while not value.is_root:
        users = [
            user
            for user in computation.users[value.name]
            if user.opcode != "get-tuple-element" or user.number == (wanted or 0)
        ]
        if len(users) != 1:
            return None
        (user,) = users
        if wanted is None and user.opcode.removesuffix("-start") == kind and user.operands.count(value.name) == 1:
            return user.name, user.operands.index(value.name)
        if user.opcode == "get-tuple-element":
            wanted = None
        elif user.opcode == "all-gather-done":
            wanted = element if len(user.shapes) > 1 else None
        elif user.opcode not in _ON_THE_WAY[kind] and not _consists_of(module, user, _ON_THE_WAY[kind]):
            return None
        value = user
    return None


def _consists_of(module: Module, fusion: Instruction, opcodes: frozenset[str]) -> bool:
    """Whether it is a fusion that applies some of these operators to its one operand."""
    if fusion.opcode != "fusion" or len(fusion.operands) != 1 or len(fusion.shapes) != 1:
        return False
    inside = module.computations[fusion.calls[0]]
    value = inside.root
    while value.opcode in opcodes:
        value = inside.instructions[value.operands[0]]
    return value.opcode == "parameter"


@dataclass
class _Walk:
    """`largest`: how many elements the largest of the slices that were met keeps."""

    module: Module
    largest: int = 0
    seen: set[tuple[str, str, int | None]] = field(default_factory=set)

    def readers(self, computation: Computation, value: Instruction, element: int | None) -> bool:
        """Whether all readers of a value (of one element of a tuple) lead to slices."""
        key = (computation.name, value.name, element)
        if key in self.seen:
            return True
        self.seen.add(key)
        users = computation.users[value.name]
        if value.is_root:
            return self._leaves(computation, element) and all(self._user(computation, u, value, element) for u in users)
        return all(self._user(computation, user, value, element) for user in users)

    def _user(self, computation: Computation, user: Instruction, value: Instruction, element: int | None) -> bool:
        if user.opcode == "get-tuple-element":
            return user.number != element or self.readers(computation, user, None)
        if element is not None and user.opcode not in {"copy-done", "all-reduce-done"}:
            return False
        if user.opcode == "dynamic-slice" and user.operands[0] == value.name:
            return self._slice(computation, user)
        if user.opcode == "tuple":
            places = [place for place, name in enumerate(user.operands) if name == value.name]
            return all(self.readers(computation, user, place) for place in places)
        if user.opcode in {"fusion", "call"}:
            inside = self.module.computations[user.calls[0]]
            places = [place for place, name in enumerate(user.operands) if name == value.name]
            return all(self.readers(inside, inside.parameter(place), None) for place in places)
        return user.opcode in _PASSES and self.readers(computation, user, None)

    def _leaves(self, computation: Computation, element: int | None) -> bool:
        """Go on where a fusion's result is read; the result of the program itself is read whole."""
        callers = self.module.callers[computation.name]
        return bool(callers) and all(
            caller.opcode in {"fusion", "call"} and self.readers(outside, caller, element)
            for outside, caller in callers
        )

    def _slice(self, computation: Computation, instruction: Instruction) -> bool:
        if not any(depends_on_device(self.module, computation, name) for name in instruction.operands[1:]):
            return False
        self.largest = max(self.largest, instruction.shapes[0].elements)
        return True


def depends_on_device(module: Module, computation: Computation, name: str) -> bool:
    """Whether a value is computed from the number of the device, in this iteration of a loop or before it."""
    seen: set[tuple[str, str, int | None]] = set()
    waiting: list[tuple[Computation, str, int | None]] = [(computation, name, None)]
    while waiting:
        inside, current, element = waiting.pop()
        if (inside.name, current, element) in seen or current not in inside.instructions:
            continue
        seen.add((inside.name, current, element))
        instruction = inside.instructions[current]
        if instruction.opcode in _DEVICE:
            return True
        waiting += _sources(module, inside, instruction, element)
    return False


def _sources(
    module: Module, inside: Computation, instruction: Instruction, element: int | None
) -> list[tuple[Computation, str, int | None]]:
    """What a value (one element of a tuple) is made of: (computation, value, element)."""
    if instruction.opcode == "get-tuple-element":
        return [(inside, instruction.operands[0], instruction.number)]
    if instruction.opcode == "tuple" and element is not None:
        return [(inside, instruction.operands[element], None)]
    if instruction.opcode == "parameter":
        callers = [(outside, caller) for outside, caller in module.callers[inside.name] if caller.opcode in _HANDS_ON]
        return [(outside, caller.operands[instruction.number], element) for outside, caller in callers]
    if instruction.opcode in {"fusion", "call"}:
        called = module.computations[instruction.calls[0]]
        return [(called, called.root.name, element)]
    kept = element if instruction.opcode == "while" else None
    return [(inside, operand, kept) for operand in instruction.operands]
