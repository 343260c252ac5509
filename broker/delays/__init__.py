"""Delayed messages: the broker keeps them in the store's internal logs, and delivers them when they are due."""
