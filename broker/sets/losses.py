"""Find data that a node's directories have lost since the node last wrote its file (history.py). Possible causes: a
disk is not mounted, a directory was moved away, or a file system check has removed files. If the newest messages of a
log are missing after a restart of the machine, this does not count as a loss: these messages may have been only in
memory (see the argument `forgetful` of rules.may_stand). After a loss, the node's data get a new instance id.
ZooKeeper's in-sync set contains only the old id, so the node no longer counts as in sync.
"""

from __future__ import annotations

from collections.abc import Mapping

from metaq.protocol.errors import StoreError

from ..store.files import Files
from ..store.store import Store
from ..transactions.directory import CHECKPOINT_PREFIX, DIRECTORY, REDO_PREFIX, numbered_files

__all__ = ["contents", "losses"]


def contents(store: Store, log_directory: str) -> dict[str, int]:
    """Return a dict from the name of each partition (`<topic>-<partition>`) and each internal log to its end offset.
    The key `transactions` has the value 1 if the transaction log in `log_directory` has files, else 0. Called on the
    thread that owns the store. Raises StoreError.
    """
    ends = {name: end for name, (_, end, _) in store.ends().items()}
    return {**ends, DIRECTORY: int(_has_log(store.files, log_directory))}


def losses(store: Store, log_directory: str, known: Mapping[str, int], *, same_boot: bool) -> list[str]:
    """Return the sorted names of the logs that this node had and that are now missing, completely or in part. Raises
    StoreError.

    known: NodeFile.ends, the result of contents() at the time when the node's file was written. same_boot: True if the
    machine has not been restarted since that time. Then data that were not synced yet are still there, too, so a log
    counts as lost if even one byte is missing. Call this function on the thread that owns the store, before anything is
    appended.
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
    return log.end_offset < end or log.first_offset > 0  # else the journal had the whole log


def _has_log(files: Files, directory: str) -> bool:
    try:
        return files.is_directory(directory) and any(
            numbered_files(files, directory, prefix) for prefix in (REDO_PREFIX, CHECKPOINT_PREFIX)
        )
    except OSError as error:
        raise StoreError(f"{directory} cannot be read: {error}") from error
