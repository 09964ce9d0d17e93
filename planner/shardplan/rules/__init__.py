"""Sharding rules of operators: `rule_for(operator, model)`, made from tables of equations.

One file holds the tables of one family of operators; `equation` is the language they are written in, `row` turns a line
of a table into a `Rule`, `table` finds the line, and `segments` follows segmented shards through a model.
"""

from shardplan.rules.segments import expand, model_rules, segment_variants
from shardplan.rules.table import FAMILIES, family_of, rule_for, signature

__all__ = ["FAMILIES", "expand", "family_of", "model_rules", "rule_for", "segment_variants", "signature"]
