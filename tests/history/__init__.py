"""Randomised histories of consumer groups under faults, and the checkers that read them."""
