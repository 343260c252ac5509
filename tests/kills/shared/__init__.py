"""Shared consumers under kill -9 of members and of the broker, and checks of their histories."""
