"""specprobe: does speculative decoding pay off on your traffic, and with which method and how many draft tokens?"""

__version__ = "0.1.0"
