"""What kind of work a shell command is: the class that predicts its wait.

What: a small table from the first words of a command to a class, those words, and the seconds of
a `sleep N`. Why: the tool's name alone says little ("Bash" spans 0.02 s to minutes), the command
more. Where: `place` files waits under it; `priors` ships numbers under the same class names.
The parser is rough on purpose: it splits at shell separators and reads heads, it does not quote.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

MAX_COMMAND_CHARS = 512

TEST, INSTALL, BUILD, PYTHON = "pytest/test", "pkg install", "build/compile", "run python"
NETWORK, PROGRAM, GIT, SEARCH = "network/http", "run node/other", "git local", "grep/find/search"
VIEW, SLEEP, OTHER = "file view/edit", "sleep/wait", "other"

# Of several commands in one line the one listed first decides: it is likely the longest.
_BY_LENGTH = (SLEEP, TEST, INSTALL, BUILD, PYTHON, NETWORK, PROGRAM, GIT, SEARCH, VIEW, OTHER)

_CLASS_TO_HEADS = {
    TEST: "pytest py.test tox nox jest vitest mocha rspec ctest phpunit runtests.py",
    BUILD: "make cmake ninja gcc g++ cc clang rustc tsc javac mvn gradle gradlew dotnet bazel"
    " cargo go webpack vite",
    NETWORK: "curl wget ssh scp rsync ping nc gh aws gcloud kubectl",
    PROGRAM: "node deno bun ruby java php perl bash sh zsh docker psql sqlite3 mysql",
    SEARCH: "grep egrep fgrep rg ag ack find fd locate tree",
    VIEW: "cat head tail sed awk less nl echo printf tee cp mv rm mkdir touch chmod vim ed diff"
    " patch sort uniq pwd which ls wc du",
    SLEEP: "sleep wait",
}
_HEAD_TO_CLASS = {head: cls for cls, heads in _CLASS_TO_HEADS.items() for head in heads.split()}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PACKAGE_HEADS = _words(
    "pip pip3 uv poetry pipenv conda mamba npm npx yarn pnpm apt apt-get brew gem apk dnf yum"
)
_PACKAGE_VERBS = _words("install add sync update upgrade ci i remove")
_WITH_VERB = _PACKAGE_HEADS | _words("git cargo go docker kubectl gh make aws gcloud dotnet")
_GIT_NETWORK_VERBS = _words("clone fetch pull push submodule ls-remote")
_WRAPPERS = _words("sudo time nohup env exec command xargs then do else stdbuf nice")

_SEPARATORS = re.compile(r"[;|&\n]")
_PYTHON_HEAD = re.compile(r"i?python[\d.]*$")
_SLEEP = re.compile(r"\bsleep\s+(\d{1,6}(?:\.\d{1,3})?)([smh]?)(?![\w.])(?!\s*&(?!&))")
_UNIT_TO_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class CommandClass(NamedTuple):
    """`name` is one of the classes above; `sleep_s` sums the foreground sleeps, 0 if none.

    `head`: the program that the class rests on, with its verb if it has some ("git log", "make").
    """

    name: str
    sleep_s: float
    head: str = ""


@lru_cache(maxsize=2048)
def classify_command(command: str) -> CommandClass:
    """The class of a shell command line; only its first 512 characters are read."""
    text = command[:MAX_COMMAND_CHARS].partition("<<")[0]  # a here-document is data
    segments = [segment.split() for segment in _SEPARATORS.split(text)]
    classes = [_segment_class(words) for words in segments]
    name = next(cls for cls in _BY_LENGTH if cls in classes or cls == OTHER)
    head = next((_head(w) for w, cls in zip(segments, classes, strict=True) if cls == name), "")
    sleep_s = sum(float(n) * _UNIT_TO_S[unit] for n, unit in _SLEEP.findall(text))
    return CommandClass(name, sleep_s, head)


def _head(words: Sequence[str]) -> str:
    words = _strip_wrappers(words)
    if not words:
        return ""
    program = words[0].rpartition("/")[2].lower()
    if _PYTHON_HEAD.match(program):
        num_words = {"-m": 3, "-c": 2}.get(words[1] if len(words) > 1 else "", 1)
        return " ".join([program, *words[1:num_words]])
    verb = next((word for word in words[1:] if not word.startswith("-")), "")
    return f"{program} {verb}".rstrip() if program in _WITH_VERB else program


def _segment_class(words: Sequence[str]) -> str:
    words = _strip_wrappers(words)
    if not words:
        return OTHER
    head, rest = words[0].rpartition("/")[2].lower(), words[1:]
    if head in ("uv", "poetry", "pipenv", "npx") and rest and rest[0] in ("run", "exec"):
        return _segment_class(rest[1:])
    if head in _PACKAGE_HEADS:
        return _package_class(rest)
    if head == "git":
        return NETWORK if rest and rest[0] in _GIT_NETWORK_VERBS else GIT
    if _PYTHON_HEAD.match(head):
        return _python_class(rest)
    name = _HEAD_TO_CLASS.get(head)
    if name == BUILD and rest and rest[0] in ("test", "check"):
        return TEST
    if name is None and "/" in words[0]:
        return PROGRAM
    return name or OTHER


def _strip_wrappers(words: Sequence[str]) -> Sequence[str]:
    """Drops what stands before the command proper: VAR=1, sudo, timeout 60 and the like."""
    start = 0
    while start < len(words):
        word = words[start]
        if word == "timeout":
            start += 1
        elif word not in _WRAPPERS and not ("=" in word and not word.startswith(("-", "="))):
            break
        start += 1
    return words[start:]


def _package_class(rest: Sequence[str]) -> str:
    verbs = [w for w in rest[:3] if not w.startswith("-")]
    if _PACKAGE_VERBS.intersection(verbs):
        return INSTALL
    if "test" in verbs:
        return TEST
    return BUILD if "build" in verbs else PROGRAM


def _python_class(rest: Sequence[str]) -> str:
    if rest[:1] == ["-m"] and len(rest) > 1:
        module = rest[1]
        if module in ("pytest", "unittest", "nose", "tox"):
            return TEST
        if module in ("pip", "uv"):
            return _package_class(rest[2:])
    is_test = any(w.endswith("runtests.py") for w in rest[:1]) or "test" in rest[1:2]
    return TEST if is_test else PYTHON
