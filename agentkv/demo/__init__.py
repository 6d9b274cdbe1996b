"""`agentkv demo`: agent sessions on real vLLM servers, with and without the plugin, side by side.

Start reading in `run`. Imports neither vLLM nor torch: the servers are child processes.
"""
