"""`agentkv passport MODEL`: which state of a model grows with the context, and what it costs.

What: finds config.json, makes the passport, prints it, writes JSON. Where: registered by
`cli.main`; everything else is in `agentkv.passport`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from agentkv.errors import ConfigError

AUTO = "auto"
BLOCK_TOKENS = 16  # vLLM's default on GPUs

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="A config.json, the folder of a model, or the name of one in the local HF cache.",
        metavar="MODEL",
    ),
]
OptionalModelArgument = Annotated[
    str | None,
    typer.Argument(
        help="A config.json, the folder of a model, or the name of one in the local HF cache; with"
        " --url the server's own.",
        metavar="MODEL",
    ),
]
DtypeOption = Annotated[
    str | None, typer.Option(help="The type the model is served in; else config.json's.")
]
KvDtypeOption = Annotated[str, typer.Option(help="auto, bfloat16, float16, float32 or fp8.")]
SsmDtypeOption = Annotated[
    str, typer.Option(help="Of recurrent states: auto (the model's) or float32.")
]
WeightsDtypeOption = Annotated[
    str | None, typer.Option(help="Of all weights; else as config.json quantises them.")
]
BlockOption = Annotated[
    int | None, typer.Option(min=1, help="Tokens of a KV block, as vLLM is told; 16.")
]
UrlOption = Annotated[
    str | None,
    typer.Option(help="A running vLLM server, which tells model, block size, dtype and pool."),
]
KeyOption = Annotated[
    str | None,
    typer.Option(help="The server's API key.", envvar="VLLM_API_KEY", metavar="KEY"),
]
TpOption = Annotated[int, typer.Option("--tp", min=1, help="Tensor-parallel devices.")]
AcceleratorOption = Annotated[
    str | None, typer.Option(help="Print bounds of prefill and decode on it, as h100.")
]
JsonOption = Annotated[
    Path | None, typer.Option("--json", help="Write all numbers to this file.", metavar="FILE")
]


def passport(
    model: OptionalModelArgument = None,
    dtype: DtypeOption = None,
    kv_dtype: KvDtypeOption = AUTO,
    ssm_dtype: SsmDtypeOption = AUTO,
    weights_dtype: WeightsDtypeOption = None,
    block_size: BlockOption = None,
    tp: TpOption = 1,
    accelerator: AcceleratorOption = None,
    context: Annotated[
        str | None, typer.Option(help="Contexts to show, as 8192,131072.", metavar="LIST")
    ] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    json_path: JsonOption = None,
) -> None:
    """Print what MODEL keeps of a context: bytes per token, fixed bytes, weights, roofline."""
    from rich.console import Console

    from agentkv.passport.accelerators import find_accelerator
    from agentkv.passport.live import ask_server
    from agentkv.passport.passport import Serving, make_passport, to_json
    from agentkv.passport.report import COLUMNS, print_engine, print_passport
    from agentkv.passport.source import find_config, read_config

    device = None if accelerator is None else find_accelerator(accelerator)
    live = None
    if url is not None:
        _refuse_told(kv_dtype, ssm_dtype, block_size)
        live = ask_server(url, api_key)
        kv_dtype, ssm_dtype, block_size = live.kv_dtype, live.ssm_dtype, live.block_tokens
    name = model or (live.model if live else None)
    if name is None:
        raise ConfigError("MODEL: give a config.json, a model's folder or name, or --url")
    serving = Serving(dtype, kv_dtype, ssm_dtype, weights_dtype, block_size or BLOCK_TOKENS, tp)
    found = make_passport(read_config(find_config(name)), name, serving)
    if live is not None:
        found = replace(found, max_context_tokens=live.max_context_tokens)
    contexts = found.contexts() if context is None else parse_contexts(context)
    roofline = None if device is None else found.roofline(device, contexts)
    out = Console(width=COLUMNS)
    print_passport(found, roofline, out, contexts)
    if live is not None:
        print_engine(found, live, out)
    if json_path is not None:
        engine = None if live is None else asdict(live)
        write_json(json_path, {**to_json(found, roofline, contexts), "engine": engine})


def _refuse_told(kv_dtype: str, ssm_dtype: str, block_size: int | None) -> None:
    """What the server tells cannot be given as well."""
    given = {"--kv-dtype": kv_dtype, "--ssm-dtype": ssm_dtype, "--block-size": block_size}
    for option, value in given.items():
        if value not in (AUTO, None):
            raise ConfigError(f"{option} {value}: the server of --url tells it; leave one out")


def parse_contexts(text: str) -> tuple[int, ...]:
    """Numbers of tokens with commas between. Raises ConfigError."""
    try:
        contexts = tuple(int(part) for part in text.split(","))
    except ValueError:
        contexts = ()
    if not contexts or not all(1 <= length <= 10**9 for length in contexts):
        raise ConfigError(f"--context {text}: give whole numbers of tokens, as 8192,131072")
    return contexts


def write_json(path: Path, data: Any) -> None:
    """Writes the file and says so. Raises ConfigError where it cannot be written."""
    try:
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json {path}: cannot be written ({error.strerror})") from None
    print(f"wrote {path}")
