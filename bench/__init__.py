"""Compare metaq with the Java metaq 1.4.6.2 on one machine: `python -m bench`, or `make bench`."""
