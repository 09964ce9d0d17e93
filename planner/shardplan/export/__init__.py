"""Plans in other people's formats. `shardplan.export.targets` is the table of them."""
