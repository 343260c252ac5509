"""Half messages: kept until the outcome of their transaction is known, which producers are asked for."""
