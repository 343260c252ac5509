"""Ask one broker or a whole cluster about topics, partitions and messages, without joining a consumer group.

asking.py send one question to one broker, in the framed or the text protocol; the errors that all questions raise
partition_bounds.py bounds, counts, times stored_records.py the stored records, and where they are damaged places.py
start positions, and their offsets finding.py messages by id and by key, on all brokers that have the topic sources.py
the broker from which a partition is read; one question for many partitions cluster.py topics, partitions, brokers and
groups, for tools and Spark's driver admin.py requests of operators
"""
