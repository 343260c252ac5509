"""Consuming: group membership, prefetching, delivery, offsets. `metaq` has the public names."""
