"""What breaks the prefix, and what is wrong with an installation or a server.

    log_file ─► bodies ─► threads ─► compare ─► findings      request logs, offline
    install, live                    checks                   this machine, a running server

Why: whether KV is kept well or badly, it is of use only while each prompt begins with the one
before. That is decided by the client, and nothing in the server's numbers says which line did it.
Where: `agentkv doctor`. Nothing here starts an engine or imports vLLM into this process.
"""
