"""Tests of `agentkv bench`; all run the real parts, on few bytes."""
