"""Broker sets: several nodes with one broker id and identical partitions. One node leads (decision 100)."""
