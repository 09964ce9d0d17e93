"""The user's constraints: constraint files and pins, read, and matched against a model and a mesh."""
