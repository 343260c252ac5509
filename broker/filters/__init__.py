"""Filters that the broker applies for a consumer group: Python callables instead of 1.x's Java classes."""
