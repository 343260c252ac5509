"""Failovers of broker sets under load, by faults that a seed draws, and the checkers that read their histories."""
