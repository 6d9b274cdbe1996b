"""How many agents a node holds, when a pause is worth a swap, and which tiers pay.

What: closed formulas over a model's passport and a node, and the same node simulated on a trace.
Why: a purchase needs a number with its assumptions beside it. Where: `agentkv plan` is the command;
`planning.make_plan` is the whole of it without one. Formulas: `agentkv.geometry`, `.cost_model`.
"""
