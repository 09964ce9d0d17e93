"""What each operator allows, as tables of equations; one file per operator family."""
