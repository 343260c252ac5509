"""Consuming: group membership, fetching ahead, delivery, offsets. `metaq` has the public names."""
