"""Sort texts in the order of Java's strings. metaq 1.x sorts partitions, members and brokers in Java's string order."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["java_sort_key", "java_sorted"]


def java_sort_key(text: str) -> bytes:
    """Return a sort key for the order of Java's String.compareTo. Java compares the UTF-16 code units of the texts. A
    character from U+10000 on is encoded as two units, of which the first is below U+E000 (a surrogate). So in Java's
    order such a character comes before the characters from U+E000 to U+FFFF.
    """
    return text.encode("utf-16-be", "surrogatepass")


def java_sorted(texts: Iterable[str]) -> list[str]:
    """Return `texts` in the order of Java's String.compareTo."""
    listed = list(texts)
    # For ASCII texts, Python's own order is the same. It is also faster, which matters because each member of a group
    # sorts all members.
    return sorted(listed) if all(map(str.isascii, listed)) else sorted(listed, key=java_sort_key)
