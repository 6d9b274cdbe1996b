"""What a policy would do to a whole node: an event-driven simulator around the real controller.

    trace ─► readers ─► workload (sessions in slots, waits, load)
                              │ turns arrive, waits pass         ┌ native: LRU, no knowledge
    engine (steps, admission) ┼─ pool (GPU) ─ dram ─ tiers ◄─────┼ managed: the real Controller
                              │                                  └ oracle: told the waits
                              └─► tally ─► a row per run ─► summary, plots

What is real: `Controller` with appraiser, predictor, policy, pause and prefetch books. What is
modelled: the mechanism around it, that is vLLM's scheduler, block pool and offloading, and what
agentkv's connector does with them. Why: a policy can be judged in minutes over regimes that no
machine at hand has, with the same objects that run in production.
Where: `agentkv simulate`; `sweep.simulate` from Python. `scripted` plays given sessions instead,
for `agentkv bench simulated`, which holds the simulator against an engine.
"""
