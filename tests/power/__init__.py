"""Crash consistency: real traces of the disk's changes, every state a crash may leave, and what the broker makes of it."""
