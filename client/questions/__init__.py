"""Ask one broker or a whole cluster about topics, partitions and messages, without joining a consumer group.

asking.py sends one question to one broker, in the framed or the text protocol, and defines the errors that all
questions raise. partition_bounds.py asks for a partition's readable range, message counts and storage times.
stored_records.py reads stored records and finds where they are damaged. places.py converts start positions to offsets.
finding.py finds messages by id and by key, on all brokers that have the topic. sources.py finds the broker from which a
partition is read, and asks one question about many partitions. cluster.py reads topics, partitions, brokers and groups,
for tools and Spark's driver. admin.py sends the requests of operators.
"""
