"""The page of `report --html`: what it shows, its figures, and how both become one file."""

import logging

# That it builds a cache of fonts, or cannot keep one, is nothing to act on.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
