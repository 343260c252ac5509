"""Filters that the broker applies for a consumer group: Python callables in the place of 1.x's Java classes."""
