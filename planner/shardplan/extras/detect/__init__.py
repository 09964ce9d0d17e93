"""Detection of a cluster profile on the machine itself (`shardplan profiles detect`)."""
