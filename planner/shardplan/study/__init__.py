"""Questions about plans that are answered by solving: what else there is, what would fit, is it still the best."""
