"""Broker sets: several nodes with one broker id and identical partitions. One node is the leader, and the other nodes
copy the leader's data (decision 100).
"""
