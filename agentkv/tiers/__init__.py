"""The slow tiers: where KV goes that DRAM has no room for.

`base` is the contract, `disk` and `redis` keep it. They store bytes under keys and know neither
vLLM nor sessions: what goes where and when is decided by the policy, and the adapter in
`agentkv.connectors` moves it.
"""
