"""A cluster profile from what a machine says of itself (`shardplan profiles detect`)."""
