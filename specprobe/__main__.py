"""`python -m specprobe`."""

from specprobe.cli import main

main()
