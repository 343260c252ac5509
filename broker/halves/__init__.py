"""Half messages. The broker keeps each half message until it knows the outcome of the message's transaction; if no
producer tells the outcome, the broker asks producers for it.
"""
