"""What is in a data directory, written by the Java broker or by ours, without a broker: the public way to its files.

`inspect_directory` reads everything and changes nothing; `stopped` deletes and renames partitions of a stopped broker.
Both take and give values; what the files look like inside stays in `store` and `transactions`.
"""

from .directory import (
    DirectoryReport,
    Options,
    data_directories_near,
    inspect_directory,
    is_data_directory,
    is_in_use,
    stored_node,
    stored_topics,
)
from .findings import Finding, Level
from .stopped import DataDirectory, RenamedDirectory, delete_directory, move_directories

__all__ = [
    "DataDirectory",
    "DirectoryReport",
    "Finding",
    "Level",
    "Options",
    "RenamedDirectory",
    "data_directories_near",
    "delete_directory",
    "inspect_directory",
    "is_data_directory",
    "is_in_use",
    "move_directories",
    "stored_node",
    "stored_topics",
]
