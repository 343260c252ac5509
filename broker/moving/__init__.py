"""Move partitions from one broker to another while clients continue to use the partitions (docs/moving.md)."""
