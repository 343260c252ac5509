"""Filters that the broker applies for a consumer group. Such a filter is a Python callable; in metaq 1.x it was a Java
class.
"""
