"""Delayed messages: the broker keeps them in internal logs, and appends them to their partitions when they are due."""
