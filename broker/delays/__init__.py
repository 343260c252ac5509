"""Delayed messages: kept in the store's internal logs, delivered when they are due."""
