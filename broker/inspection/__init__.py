"""Inspect a data directory, which a Java broker or a metaq broker has used, without running a broker. Programs other
than the broker, such as `metaq check`, access the files of a data directory through this package.

`inspect_directory` reads all files of a data directory and changes none of them. The module `stopped` deletes and
renames partitions of a stopped broker. This package does not know the formats of the files; it reads them with the
packages `store` and `transactions`.
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
