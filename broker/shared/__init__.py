"""Shared consumption: one partition for many consumers, which lease its messages one by one."""
