"""Delayed messages while the broker is killed: none is lost, delivered twice, early, or although it was cancelled."""
