"""Move partitions to another broker while clients use them (docs/moving.md)."""
