"""Shared groups: the members of such a group consume the same partitions, and each member leases single messages."""
