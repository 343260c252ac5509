"""Questions about partitions, asked without joining a group: of one broker, and of a whole cluster.

asking.py      one question to one broker, in either protocol; the errors of all questions
partitions.py  bounds, counts, times
records.py     the stored records, and where they are damaged
places.py      where to begin to read, and the offset that it means
finding.py     messages by id and by key, on all brokers that have the topic
brokers.py     which broker a partition is read from; the same question for many partitions
cluster.py     topics, partitions, brokers and groups: what tools and Spark's driver begin with
admin.py       requests of operators
"""
