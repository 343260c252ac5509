"""Broker sets: nodes of one broker id with identical partitions; one node leads (decision 100)."""
