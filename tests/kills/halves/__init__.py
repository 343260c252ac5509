"""Transactions with check-back while their broker and their producers are killed."""
