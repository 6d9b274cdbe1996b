"""A server that answers as vLLM's chat API does, without a model: for the tests of the replay.

Usage: python replay_server.py PORT. It remembers the prompts that it has seen and says of each how
many of its words began an earlier one, in the usage and in its /metrics. Answers depend on the
prompt alone; with the argument `wrong` one word of each answer depends on the port as well.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_SEEN: list[list[str]] = []
_COUNTS = {"local_cache_hit": 0, "external_kv_transfer": 0, "local_compute": 0}
_LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/metrics":
            name = "vllm:prompt_tokens_by_source"
            lines = [f'{name}_total{{engine="0",source="{k}"}} {v}' for k, v in _COUNTS.items()]
            self._answer("\n".join([f"# TYPE {name} counter", *lines, ""]))
        elif self.path == "/v1/models":
            self._answer(json.dumps({"data": [{"id": "fake-model"}]}))
        else:
            self._answer("ok")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["model"] not in ("fake-model", "demo"):
            self.send_error(404)
            return
        words = " ".join(m["content"] for m in body["messages"]).split()
        cached = _remember(words)
        salt = str(self.server.server_address[1]) if "wrong" in sys.argv else ""
        chunks: list[dict[str, Any]] = [{"choices": [{"delta": {"role": "assistant"}}]}]
        for number in range(body["max_tokens"]):
            token = hash_of(words, salt, number)
            chunks.append({"choices": [{"delta": {"content": f"{token} "}, "token_ids": [token]}]})
        details = {"cached_tokens": cached}
        usage = {"prompt_tokens": len(words), "prompt_tokens_details": details}
        chunks.append({"choices": [], "usage": usage})
        lines = [f"data: {json.dumps({'id': 'r', **chunk})}\n\n" for chunk in chunks]
        self._answer("".join([*lines, "data: [DONE]\n\n"]))

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: Any) -> None: ...


def hash_of(words: list[str], salt: str, number: int) -> int:
    return (sum(map(len, words)) + 7 * len(words) + 13 * number + len(salt) * 1000) % 4096


def _remember(words: list[str]) -> int:
    with _LOCK:
        cached = max((_common(words, other) for other in _SEEN), default=0)
        _SEEN.append(words)
        _COUNTS["local_cache_hit"] += cached
        _COUNTS["local_compute"] += len(words) - cached
    return cached


def _common(one: list[str], other: list[str]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
