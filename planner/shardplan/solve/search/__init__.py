"""Assignments: primal rounding, crossover, trees and fusion on large cores."""
