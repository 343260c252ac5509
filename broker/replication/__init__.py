"""The two kinds of replication of metaq 1.x: an asynchronous slave fetches the messages of its master, or a synchronous
master sends each message to its slave. Plugin options of the command that starts the broker turn replication on.
"""
