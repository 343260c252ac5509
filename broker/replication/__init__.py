"""The replication of metaq 1.x: an asynchronous slave copies its master, a synchronous master copies to its slave.
Plugin options turn it on.
"""
