"""What a running vLLM server says of its model and its KV cache: two of its own routes.

`/v1/models` names the model's folder and the longest context; `/metrics` has
`vllm:cache_config_info`, whose labels are the engine's cache settings. Nothing of it needs agentkv
in the server. Where: `agentkv passport --url`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

from agentkv.errors import ConfigError

_TIMEOUT_S: Final = 10.0
_INFO: Final = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class LiveEngine:
    """`model`: as the server was given it; blocks are those of each of `num_engines` engines.

    `pool_tokens`: what such a pool holds at the longest context, by vLLM's own count, if it tells.
    """

    model: str
    max_context_tokens: int | None
    block_tokens: int
    num_blocks: int
    pool_tokens: int | None
    kv_dtype: str
    ssm_dtype: str
    num_engines: int


def ask_server(url: str, api_key: str | None, client: httpx.Client | None = None) -> LiveEngine:
    """Asks the server. Raises ConfigError where it does not answer, or not as vLLM does."""
    base = url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with client or httpx.Client(timeout=_TIMEOUT_S) as asking:
            models = asking.get(f"{base}/v1/models", headers=headers)
            metrics = asking.get(f"{base}/metrics", headers=headers)
        for response in (models, metrics):
            response.raise_for_status()
        return read_answers(models.json(), metrics.text)
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        hint = "give --api-key, or set VLLM_API_KEY" if status == 401 else "is it a vLLM server?"
        raise ConfigError(f"--url {url}: {error.request.url.path} says {status}; {hint}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(
            f"--url {url}: no answer ({type(error).__name__}); start the server, or give its"
            " address, as http://localhost:8000"
        ) from None
    except (ValueError, KeyError, TypeError, IndexError):
        raise ConfigError(
            f"--url {url}: does not answer as vLLM does; give the address of a vLLM server"
        ) from None


def read_answers(models: Mapping[str, Any], metrics: str) -> LiveEngine:
    """Of the two answers. Raises ValueError, KeyError, TypeError or IndexError for others."""
    engines = [dict(_LABEL.findall(labels)) for labels in _INFO.findall(metrics)]
    served = models["data"][0]
    info = engines[0]
    tokens = info.get("kv_cache_size_tokens", "")
    return LiveEngine(
        model=str(served["root"]),
        max_context_tokens=served.get("max_model_len"),
        block_tokens=int(info["block_size"]),
        num_blocks=int(info["num_gpu_blocks"]),
        pool_tokens=int(tokens) if tokens.isdigit() else None,
        kv_dtype=info.get("cache_dtype", "auto"),
        ssm_dtype=info.get("mamba_ssm_cache_dtype", "auto"),
        num_engines=len(engines),
    )
