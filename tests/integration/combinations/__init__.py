"""Every pair of message kinds: what is declared of it, and the case that checks it (docs/combinations.md)."""
