"""Shared consumption: many consumers of one partition lease its messages one by one."""
