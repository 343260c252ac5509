"""Crash consistency: real traces of disk changes, the states a crash may leave, and what the broker makes of them."""
