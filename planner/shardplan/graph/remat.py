"""Rematerialisation: which operators are recomputed in backward, and which values are then not saved.

Flags: `selective` recomputes the inside of decomposed attention (the scores between two matrix products around a
softmax; a fused attention operator does that by itself), or modules by name (`shardplan.graph.recomputed_modules`).
`full` recomputes every repeated block from its inputs, or some of its layers (`shardplan.graph.options.Layers`), and
`alternate` does the same with every block except for attention and every other product with a weight, whose results are
saved. Chosen value by value (`shardplan.planning.remat_scope`), any operator of a segment may be recomputed: a block,
the inside of an attention, or a stretch between blocks. Everything recomputed of a segment runs right before the
backward of the segment's last operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardplan.errors import Diagnostic, warning
from shardplan.graph.flow import Flow, needed_operands, read_in_backward, storage_of, trace
from shardplan.graph.fusion import Fusion
from shardplan.graph.options import PlanOptions
from shardplan.graph.recomputed_layers import RecomputedSegment, blocks, chosen_layers, layers_of
from shardplan.graph.recomputed_modules import recomputed_modules
from shardplan.model.types import Model
from shardplan.rules.types import Rule

_TRANSPARENT = frozenset({"pointwise", "view", "memory"})


@dataclass(frozen=True)
class Recompute:
    """`until[i]`: operator i is recomputed right before the backward of operator `until[i]`. `saved`: values saved for
    backward. `needed`: (operator, operand) pairs that are brought again for backward; `served`: tensors that are
    gathered for readers again in backward. `held`: pairs of weights that backward reads and that stay gathered from
    forward on, as far as memory allows."""

    until: Mapping[int, int]
    saved: frozenset[str]
    needed: frozenset[tuple[int, int]] = frozenset()
    served: frozenset[str] = frozenset()
    held: frozenset[tuple[int, int]] = frozenset()

    def forwards(self, operator: int) -> int:
        """How often an operator computes its result per microbatch."""
        return 2 if operator in self.until else 1

    def reads(self, operator: int, position: int) -> int:
        """How often an operand is brought to its reader: again when it is recomputed or its backward reads it."""
        return 2 if operator in self.until or (operator, position) in self.needed else 1

    def serves(self, name: str) -> int:
        """How often a tensor is gathered for its readers."""
        return 2 if name in self.served else 1


def recompute(model: Model, rules: Sequence[Rule], flow: Flow, fusion: Fusion, options: PlanOptions) -> Recompute:
    """What the flag `options.remat` recomputes and saves; nothing is recomputed under `auto`, which is chosen later."""
    until: dict[int, int] = {}
    for segment in _segments(model, rules, flow, options):
        until.update(dict.fromkeys(sorted(segment.operators), segment.last))
    return saving_least(model, rules, flow, fusion, until, holds=options.holds_weights)


def _segments(model: Model, rules: Sequence[Rule], flow: Flow, options: PlanOptions) -> list[RecomputedSegment]:
    """What the flag `options.remat` recomputes; of several segments with an operator the last one has it."""
    if not options.training:
        return []
    if options.remat == "full":
        return blocks(model) if options.full_layers is None else chosen_layers(model, options.full_layers)
    if options.remat == "alternate":
        return between_products(model, rules, flow)
    if options.remat == "selective":
        names = options.modules
        found = attention_cores(model, rules, flow) if not names or "core_attn" in names else []
        return found + recomputed_modules(model, rules, flow, names)
    return []


def nothing_recomputed(model: Model, rules: Sequence[Rule], options: PlanOptions) -> Iterator[Diagnostic]:
    """A warning (`nothing-recomputed`) about a flag that finds nothing to recompute in a model. There is none about
    `selective` where attention is fused: it recomputes its scores by itself."""
    flag, layers = options.remat, options.full_layers
    if not options.training or flag in ("none", "auto"):
        return
    if flag == "selective" and any(rule.cost == "attention" for rule in rules):
        return
    if _segments(model, rules, trace(model, rules, training=True), options):
        return
    lacks = "'selective' is of decomposed attention, and the model has none"
    if flag != "selective":
        lacks = f"'{flag}' is of repeated blocks, and the model has none"
    if layers is not None and (count := len(layers_of(model))):
        lacks = f"'{layers.scheme}:{layers.number}' takes every {layers.number}th layer, and the model has {count}"
    hint = "shardplan solve --remat auto chooses value by value; shardplan inspect lists the repeated blocks"
    yield warning("nothing-recomputed", f"nothing is recomputed: {lacks}", hint=hint)


def saving_least(
    model: Model, rules: Sequence[Rule], flow: Flow, fusion: Fusion, until: Mapping[int, int], *, holds: bool
) -> Recompute:
    """The result of recomputing the operators `until` while saving as little as possible."""
    latest = latest_reads(model, rules, flow, fusion)
    saved = {name for name, last in latest.items() if until.get(flow.makers[name][0], -1) < last}
    for name, (maker, _) in flow.makers.items():
        ends = {until[reader] for reader, _ in flow.readers.get(name, ()) if reader in until}
        if ends - {until.get(maker)} and name not in flow.weightlike:
            saved.add(name)
    return recomputed(model, rules, flow, until, frozenset(saved), holds=holds)


def recomputed(
    model: Model, rules: Sequence[Rule], flow: Flow, until: Mapping[int, int], saved: frozenset[str], *, holds: bool
) -> Recompute:
    """The result of recomputing the operators `until` while saving the values `saved`; with `holds`, gathered weights
    stay for backward where they can."""
    needed = frozenset(
        (index, position)
        for index, (operator, rule) in enumerate(zip(model.operators, rules, strict=True))
        if any(name in flow.needs_grad for name in operator.outputs)
        for position in needed_operands(operator, rule, flow.needs_grad)
    )
    held = frozenset(pair for pair in needed if _can_stay(model, flow, until, *pair)) if holds else frozenset()
    needed -= held
    served = frozenset(
        name
        for name, readers in flow.readers.items()
        if any(index in until or (index, position) in needed for index, position in readers)
    )
    return Recompute(until, saved, needed, served, held)


def _can_stay(model: Model, flow: Flow, until: Mapping[int, int], index: int, position: int) -> bool:
    """Whether an operand is a weight that can stay gathered for its reader's backward: in a loop, or for a reader that
    is recomputed, it is brought again."""
    name = model.operators[index].inputs[position]
    readers = [reader for reader, _ in flow.readers.get(name, ())]
    if name not in flow.weightlike or name in flow.lives_in or not readers:
        return False
    return not any(model.operators[reader].reads_in or reader in until for reader in readers)


def latest_reads(model: Model, rules: Sequence[Rule], flow: Flow, fusion: Fusion) -> dict[str, int]:
    """For every value that backward reads, in graph order, the last operator whose backward does: the first to need it.

    Reading a view reads its storage; reading a value inside of a kernel reads the kernel's operands.
    """
    storage = storage_of(model, rules)
    latest: dict[tuple[str, str], int] = {}
    kernels: dict[int, int] = {}

    def read(name: str, by: int) -> None:
        if name in fusion.inner:
            kernel = fusion.groups[flow.makers[name][0]]
            kernels[kernel] = max(by, kernels.get(kernel, by))
        else:
            stored = storage.get(name, (name, ""))
            latest[stored] = max(by, latest.get(stored, by))

    for index, (operator, rule) in enumerate(zip(model.operators, rules, strict=True)):
        for name in read_in_backward(operator, rule, flow.needs_grad):
            read(name, index)
    for index, operator in enumerate(model.operators):
        if fusion.groups[index] in kernels:
            for name in filter(None, operator.inputs):
                if name not in fusion.inner:
                    read(name, kernels[fusion.groups[index]])
    made = [name for name in flow.makers if name in fusion.saved]
    return {name: latest.get(storage.get(name, (name, "")), flow.last_reader(name)) for name in made}


def between_products(model: Model, rules: Sequence[Rule], flow: Flow) -> list[RecomputedSegment]:
    """The repeated blocks without their fused attention and every other product with a weight, starting with the first:
    torchtitan's selective checkpoints of operators (`distributed/activation_checkpoint.py`)."""
    found = []
    for segment in blocks(model):
        ordered = sorted(segment.operators)
        weighed = [
            index
            for index in ordered
            if rules[index].cost == "gemm" and any(name in flow.weightlike for name in model.operators[index].inputs)
        ]
        lasting = {index for index in ordered if rules[index].cost == "attention"} | set(weighed[::2])
        found.append(RecomputedSegment(segment.operators - lasting, segment.last))
    return found


def attention_cores(model: Model, rules: Sequence[Rule], flow: Flow) -> list[RecomputedSegment]:
    """The insides of decomposed attention: from the scores up to, but without, the product with the values."""
    softmaxes = [index for index, operator in enumerate(model.operators) if operator.op_type == "Softmax"]
    cores = (_attention_core(index, model, rules, flow) for index in softmaxes)
    return [RecomputedSegment(frozenset(core), _last_reader(core, model, flow)) for core in cores if core]


def _last_reader(core: set[int], model: Model, flow: Flow) -> int:
    """The last operator that reads what a core makes."""
    made = [name for index in core for name in model.operators[index].outputs if name]
    return max(flow.last_reader(name) for name in made)


def _attention_core(softmax: int, model: Model, rules: Sequence[Rule], flow: Flow) -> set[int]:
    """Operators from the scores' matrix product to just before the product with the values; empty if there is none.

    All their results have as many elements as the scores: a softmax whose result gets smaller, or joins a residual
    stream, is the choice of an expert and not attention.
    """
    scores = model.tensor(model.operators[softmax].outputs[0]).elements

    def inside(name: str) -> bool:
        return model.tensor(name).elements == scores

    before, found_product = _before(softmax, model, rules, flow, inside)
    after, leads_on = _after(softmax, model, rules, flow, inside)
    return before | after if found_product and leads_on else set()


def _before(
    softmax: int, model: Model, rules: Sequence[Rule], flow: Flow, inside: Callable[[str], bool]
) -> tuple[set[int], bool]:
    """The operators from the last product to a softmax, and whether there is such a product."""
    segment, front = {softmax}, [softmax]
    found_product = False
    while front:
        for name in model.operators[front.pop()].inputs:
            maker = flow.makers.get(name, (None, 0))[0]
            if maker is None or maker in segment or name not in flow.needs_grad or not inside(name):
                continue
            if rules[maker].cost == "gemm":
                found_product = True
                segment.add(maker)
            elif rules[maker].cost in _TRANSPARENT:
                segment.add(maker)
                front.append(maker)
    return segment, found_product


def _after(
    softmax: int, model: Model, rules: Sequence[Rule], flow: Flow, inside: Callable[[str], bool]
) -> tuple[set[int], bool]:
    """The operators from a softmax to the next product, and whether there is such a product."""
    segment, front, leads_on = {softmax}, [softmax], False
    while front:
        for name in filter(None, model.operators[front.pop()].outputs):
            for reader, _ in flow.readers.get(name, ()):
                leads_on |= rules[reader].cost == "gemm"
                results = [result for result in model.operators[reader].outputs if result]
                if reader not in segment and rules[reader].cost in _TRANSPARENT and all(map(inside, results)):
                    segment.add(reader)
                    front.append(reader)
    return segment, leads_on
