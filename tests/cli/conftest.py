"""What the tests of the command line share."""

from bench.conftest import without_lmcache as without_lmcache
