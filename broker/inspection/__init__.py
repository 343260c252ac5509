"""The content of a data directory of the Java broker or of ours, without a broker: the public way to its files.

`inspect_directory` reads everything and changes nothing. `stopped` deletes and renames partitions of a stopped broker.
Both take and give values; only `store` and `transactions` know the format of the files.
"""

from .data_directory import (
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
