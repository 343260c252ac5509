"""Run the program `metaq` when Python is started with `python -m metaq`."""

from metaq.cli import main

if __name__ == "__main__":
    main()
