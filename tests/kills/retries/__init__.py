"""Retries and dead letters while everything is killed."""
