"""Files of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism (IOPDDL): read, solve, price, show."""
