"""How long a tool will probably take.

What: the predictor contract and the predictor that is used unless another is given.
Why: the policy weighs a distribution of waits; who makes it can change behind one seam.
Where: `base` is the contract, `hierarchical` the implementation, `priors` what it knows at first.
"""

from agentkv.predict.base import WaitEstimate, WaitPredictor
from agentkv.predict.hierarchical import HierarchicalWaitPredictor

__all__ = ["HierarchicalWaitPredictor", "WaitEstimate", "WaitPredictor"]
