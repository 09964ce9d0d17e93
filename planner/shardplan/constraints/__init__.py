"""What a user fixes by hand: constraint files and pins, read, and matched against a model and a mesh."""
