"""Lower bounds on the cost and the memory of a run of units on a submesh, before any stage is planned."""
