"""Slaves: replicating from an asynchronous master, to a synchronous slave, and the plugin options that ask for it."""
