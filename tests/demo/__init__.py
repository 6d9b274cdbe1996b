"""Tests of `agentkv demo`; none starts an engine."""
