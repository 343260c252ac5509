"""A differential fuzz of the standalone ZooKeeper against Apache's: the same operations, all outputs compared."""
