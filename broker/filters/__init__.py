"""Filters: for a consumer group that has a filter, the broker sends only the messages that the filter accepts. A filter
is a Python callable; in metaq 1.x a filter was a Java class.
"""
