"""Broker sets: several nodes with one broker id and identical partitions. One node is the leader, the others copy its
data (decision 100).
"""
