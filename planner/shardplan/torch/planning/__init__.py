"""From a module to its plan: exported with its own names, its loss included, and planned."""
