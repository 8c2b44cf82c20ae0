"""`python -m celu`: the command line, for launchers such as torchrun that start modules."""

from celu.cli.app import main

if __name__ == "__main__":
    main()
