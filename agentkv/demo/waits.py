"""How long a command takes: its class, and waits drawn from measured quantiles of that class.

Why quantiles and not a formula: tool waits are heavy-tailed with spikes at time-outs, which no
usual distribution fits; the measured points keep the tail.
Used when the workload is built; the replay sleeps the drawn wait and never tells the server.
"""

import json
import math
import random
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

OTHER = "other"
MIN_WAIT_S = 0.001

# First match wins. Anchored patterns look at the first word, the others anywhere in the command.
_CLASSES = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("test", r"\b(pytest|tox|unittest|nosetests|runtests|(manage\.py|dbt|make|npm) test)\b"),
        ("install", r"\b(pip3?|conda|apt|apt-get|npm|poetry) (install|add)\b"),
        ("edit", r"^(cat|sed|head|tail|echo|nano|vim|emacs|mkdir|cp|mv|rm|touch)\b"),
        ("search", r"^(grep|find|rg|ls|tree|pwd|wc)\b"),
        ("git", r"^git\b"),
        ("build", r"\b(make|gcc|cmake|cargo|sphinx-build|dbt (run|build|compile))\b"),
        ("python", r"\b(python3?|pylint|sqlfluff|django-admin|dbt)\b"),
    )
)
_LEADING_CD = re.compile(r"^(cd [^;&|]+(&&|;)\s*)+")
_BASH_BLOCK = re.compile(r"```bash\n(.*?)```", re.DOTALL)


def command_of(answer: str) -> str | None:
    """The bash command that an answer of mini-swe-agent asks for; None when it asks for none."""
    blocks = _BASH_BLOCK.findall(answer)
    return blocks[-1].strip() or None if blocks else None


def bare_command(command: str) -> str:
    """Without the directory that it is run in: `cd /src && ls` is `ls`."""
    return _LEADING_CD.sub("", command.strip())


def command_class(command: str) -> str:
    """The class of a shell command: test, install, edit, search, git, build, python or other."""
    bare = bare_command(command)
    return next((name for name, pattern in _CLASSES if pattern.search(bare)), OTHER)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution of waits: at `shares[i]` (0 to 1, rising) the wait is `waits_s[i]`."""

    shares: tuple[float, ...]
    waits_s: tuple[float, ...]

    def at(self, share: float) -> float:
        """The wait in seconds at `share`, straight in the logarithm between two measured points."""
        right = min(max(bisect_right(self.shares, share), 1), len(self.shares) - 1)
        low, high = self.shares[right - 1], self.shares[right]
        place = min(max((share - low) / (high - low), 0.0), 1.0)
        start, end = (math.log(max(self.waits_s[i], MIN_WAIT_S)) for i in (right - 1, right))
        return math.exp(start + place * (end - start))


class WaitSampler:
    """Draws waits per command class."""

    def __init__(self, classes: Mapping[str, Quantiles]) -> None:
        self._classes = classes

    def draw(self, command: str | None, key: str) -> float:
        """A wait in seconds for `command`; the same for the same key."""
        name = command_class(command) if command else OTHER
        return self._classes[name].at(random.Random(key).random())


def shipped_waits() -> WaitSampler:
    """The sampler over the quantiles shipped with the package."""
    text = resources.files("agentkv.demo").joinpath("data/wait_quantiles.json").read_text("utf-8")
    classes = json.loads(text)["classes"]
    return WaitSampler({name: _quantiles(entry["quantiles"]) for name, entry in classes.items()})


def _quantiles(percent_to_wait_s: Mapping[str, float]) -> Quantiles:
    points = sorted((float(percent) / 100, wait_s) for percent, wait_s in percent_to_wait_s.items())
    return Quantiles(
        shares=tuple(share for share, _ in points), waits_s=tuple(wait_s for _, wait_s in points)
    )
