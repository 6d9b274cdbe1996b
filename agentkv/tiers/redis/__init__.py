"""The tier on a Redis or Valkey server: see `store`."""
