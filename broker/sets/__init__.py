"""Broker sets: nodes of one broker id with identical partitions, one of which leads (decision 100)."""
