"""The SSD tier: see `store`."""
