"""What is in a data directory, written by the Java broker or by ours: read, never changed."""

from .directory import DirectoryReport, Options, inspect_directory, is_in_use
from .findings import Finding, Level

__all__ = ["DirectoryReport", "Finding", "Level", "Options", "inspect_directory", "is_in_use"]
