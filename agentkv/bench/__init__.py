"""agentkv.bench: what the tiers reach on this machine, against the best that is known here.

What: `run` measures each tier and its peers in turn, round by round; `report` shows and writes it.
Why interleaved: a virtual machine's disk and memory change from minute to minute, so only what was
measured side by side can be compared. Where: used by `agentkv bench`.
"""
