"""The modules of the consumer: membership in a group, prefetching of messages, their delivery to the program, and
commits of offsets. Users import the public names from the package `metaq`.
"""
