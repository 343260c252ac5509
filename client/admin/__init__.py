"""Administer a cluster from a program: the calls behind `metaq.Admin`, and behind the commands of the command line.

admin.py is the class `Admin`. Each other file has the calls about one subject; a command of the command line makes the
same calls, and prints what they return.
"""
