"""What the HTTP traffic of an agent says about its pauses, without the agent saying it.

What: `replies` sees how a turn ended, `calls` which tools run, `identity` and `dialects` read what
clients send along. Why: most agents cannot be changed, but all of them speak these APIs. Where:
fed by the endpoint plugin in the API process. Pure: no I/O, no clock, and no request or reply is
ever changed, so a hint can reach neither the prompt nor a block's key.
"""
