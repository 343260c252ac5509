"""What a node's data directories have lost since its file was written: a disk that is not mounted, a directory that was
moved away, files that a file system check took.

That a node's newest messages are gone is no such loss if the machine has restarted: nobody had promised that they were
on the disk (rules.may_stand, `forgetful`). A loss makes the data others than those that were in sync.
"""

from __future__ import annotations

from collections.abc import Mapping

from metaq.protocol.errors import StoreError

from ..store.files import Files
from ..store.store import Store
from ..transactions.directory import CHECKPOINT_PREFIX, DIRECTORY, REDO_PREFIX, numbered_files

__all__ = ["contents", "losses"]


def contents(store: Store, log_directory: str) -> dict[str, int]:
    """What a node's data directories have: where each partition `<topic>-<partition>` and internal log ends, and
    `transactions`: 1 if the transaction log, in `log_directory`, has files. Owning thread. Raises StoreError."""
    ends = {name: end for name, (_, end, _) in store.ends().items()}
    return {**ends, DIRECTORY: int(_has_log(store.files, log_directory))}


def losses(store: Store, log_directory: str, known: Mapping[str, int], *, same_boot: bool) -> list[str]:
    """Names of what this node had and has not, or not all; sorted. Raises StoreError.

    known: contents() when the node's file was written (NodeFile.ends). same_boot: whether the machine has not been
    started since: then not a byte may be missing. Before anything is appended; owning thread.
    """
    lost = [name for name, end in known.items() if end and name != DIRECTORY and _lacks(store, name, end, same_boot)]
    if known.get(DIRECTORY) and not _has_log(store.files, log_directory):
        lost.append(DIRECTORY)
    return sorted(lost)


def _lacks(store: Store, name: str, end: int, same_boot: bool) -> bool:
    log = store.find_named(name)
    if log is None:
        return True
    if name in store.whole:
        return same_boot and log.end_offset < end
    return log.end_offset < end or log.first_offset > 0  # else the journal had all of it


def _has_log(files: Files, directory: str) -> bool:
    try:
        return files.is_directory(directory) and any(
            numbered_files(files, directory, prefix) for prefix in (REDO_PREFIX, CHECKPOINT_PREFIX)
        )
    except OSError as error:
        raise StoreError(f"{directory} cannot be read: {error}") from error
