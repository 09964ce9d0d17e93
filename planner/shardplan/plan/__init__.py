"""Plans: their values, their file, the schedule of their step, and differences between two of them."""
