"""`python -m metaq` is the command line `metaq`."""

from metaq.cli import main

if __name__ == "__main__":
    main()
