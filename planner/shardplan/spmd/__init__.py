"""Model + plan -> the program one device runs, and the numpy collectives that a simulated mesh runs it with."""
