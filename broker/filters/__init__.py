"""Filters that the broker applies for a consumer group. A filter is a Python callable; in metaq 1.x a filter was a Java
class.
"""
