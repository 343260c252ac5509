"""The store engine: partition logs on disk, without network or coordination."""
