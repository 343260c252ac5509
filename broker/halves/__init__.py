"""Half messages. The broker keeps them until it knows the outcome of their transaction, and asks producers for it."""
