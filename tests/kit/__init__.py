"""A rig for scheduler tests: vLLM's own scheduler and pool, our connector, real copies, no model.

What: `Rig` joins a real `Scheduler` with `AgentKVConnector` in both roles over real KV tensors.
Why: races between pool, copies and scheduling show up in milliseconds and without weights; and a
canary in every KV element shows a wrong byte that a random-weight model would hide.
Where: `engine_config` and `build` make the parts, `canary` says what each element must hold,
`runner` stands for the model, `copies` makes transfers late or wrong, `rig` steps it all, `agent`
sends turns that build on each other, `clean` looks for leaks; `pool` is a block pool alone.
"""

from kit.agent import Agent
from kit.canary import CanaryError, answer
from kit.clean import Leak
from kit.engine_config import BLOCK_TOKENS, Kind, RigConfig
from kit.rig import Rig, blocks, prompt

__all__ = [
    "BLOCK_TOKENS",
    "Agent",
    "CanaryError",
    "Kind",
    "Leak",
    "Rig",
    "RigConfig",
    "answer",
    "blocks",
    "prompt",
]
