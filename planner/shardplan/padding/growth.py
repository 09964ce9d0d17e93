"""A model with one size rounded up, and everything that is that size, or a product with it, grown accordingly.

`shardplan.program.shrink.classes` finds from the operators' equations which dims belong together; shapes, attributes
and constants that contain sizes are changed as when a model is scaled down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from shardplan.errors import ShardplanError
from shardplan.model.types import Model
from shardplan.program.shrink.classes import Classes, Node
from shardplan.program.shrink.resize import resized
from shardplan.program.shrink.sizes import Sizes
from shardplan.rules import model_rules
from shardplan.rules.types import Rule


def sizes_of(model: Model, rules: Sequence[Rule]) -> dict[Node, int]:
    """The size of every dim of every tensor, and of every factor of every operator."""
    sizes: dict[Node, int] = {
        (name, dim): size for name, tensor in model.tensors.items() for dim, size in enumerate(tensor.shape)
    }
    return sizes | {(index, factor): size for index, rule in enumerate(rules) for factor, size in rule.sizes.items()}


def grown(model: Model, rules: Sequence[Rule], classes: Classes, root: Node, new: int) -> Model | None:
    """The model in which the size of class `root` is `new`; None where sizes do not say what follows from that, or
    where its operators would not fit together. Constants of that size repeat their last entries."""
    sizes = sizes_of(model, rules)
    old = next(size for node, size in sizes.items() if classes.find(node) == root)
    ratios = _ratios(classes, sizes, root, Fraction(new, old))
    if ratios is None:
        return None
    found = {node: size * ratios.get(classes.find(node), Fraction(1)) for node, size in sizes.items()}
    if any(size.denominator != 1 for size in found.values()):
        return None
    places = {node: int(size) for node, size in found.items() if isinstance(node[0], str)}
    factors = {
        node: Fraction(sizes[node], int(found[node])) for node in sizes if isinstance(node[0], int) and sizes[node]
    }
    try:
        made = resized(model, rules, Sizes(places, factors))
        model_rules(made)
    except ShardplanError:
        return None
    return made


def _ratios(classes: Classes, sizes: Mapping[Node, int], root: Node, ratio: Fraction) -> dict[Node, Fraction] | None:
    """By what every class grows when `root` does; None where one that cannot would have to.

    Products grow with their factors. Of a product that grows for another reason, the factor that grows is the major one
    of the size that began it all, else the major one that can."""
    ratios = {root: ratio}
    products = list(dict.fromkeys((classes.find(p), tuple(map(classes.find, n))) for p, n in classes.products))
    size_of: dict[Node, int] = {}
    for node, size in sizes.items():
        size_of.setdefault(classes.find(node), size)
    for _ in range(len(products) + 1):
        before = len(ratios)
        for product, factors in products:
            made = Fraction(1)
            for factor in factors:
                made *= ratios.get(factor, Fraction(1))
            wanted = ratios.get(product)
            if wanted == made or (wanted is None and made == 1):
                continue
            if wanted is None:
                ratios[product] = made
                continue
            left = [factor for factor in factors if factor not in ratios and factor not in classes.fixed]
            able = [factor for factor in left if (size_of[factor] * wanted / made).denominator == 1]
            first = [factor for factor in able if size_of[factor] == size_of[root]] or able
            if not first:
                return None
            ratios[first[0]] = wanted / made
        if len(ratios) == before:
            break
    return ratios if classes.fixed.isdisjoint(ratios) else None
