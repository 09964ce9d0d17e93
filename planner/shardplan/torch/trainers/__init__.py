"""Plans in the trainers that people use; each module imports the package of its trainer, and nothing else does."""
