"""The inference passport of a model: which state grows with the context, and what it costs.

What: reads a `config.json`, knows the architecture or refuses it, and says bytes per token, fixed
bytes per sequence, weights and a roofline.
Why: "supports a million tokens" is a capability; the passport says the price. Where: `agentkv
passport` prints it, `agentkv.plan` counts sessions with it. Read `registry` first, then `passport`.
"""
