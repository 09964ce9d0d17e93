"""The machine model of one step: streams, phases and moves; simulated as a schedule, and as sums of an objective."""
