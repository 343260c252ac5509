"""Run the command line `metaq` as `python -m metaq`."""

from metaq.cli import main

if __name__ == "__main__":
    main()
