"""Shared consumers under kill -9 of members and of the broker, and what is wrong in their histories."""
