"""Half messages: kept until the outcome of their transaction is known; producers are asked for it."""
