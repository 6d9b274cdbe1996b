"""`agentkv top`: a server's agentkv, live in a terminal.

Read in this order: `fetch` asks the server, `figures` and `rows` make numbers of what it says,
`history` keeps the last minutes, `view` holds what the user chose, `screen` lays it all out as
lines, and `live` goes round. Nothing here imports vLLM; nothing runs in the server.
"""
