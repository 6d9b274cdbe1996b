"""The tier in an LMCache server: see `store`."""
