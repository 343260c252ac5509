"""Filters that the broker applies for a consumer group. They are Python callables in place of the Java classes of metaq
1.x.
"""
