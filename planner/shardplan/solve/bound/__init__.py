"""Lower bounds: message passing, Lagrange multipliers of memory and maxima, and the assignments decoded from them."""
