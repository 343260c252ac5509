"""Delayed messages through kills of the broker: none lost, none twice, none early, none that was cancelled."""
