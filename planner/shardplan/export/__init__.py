"""Exports of plans in the formats of other programs. `shardplan.export.targets` is the table of formats."""
