"""`agentkv doctor`: what breaks the prefix in a request log, what is wrong here or with a server.

What: with LOG it reads request bodies and names what makes prompts be computed again; with --url it
asks a running server; else it checks this machine. Why exit status 1 where something was found: a
harness's own tests can call it. Where: registered by `cli.main`; `agentkv.doctor` looks,
`doctor_report` prints.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from agentkv.errors import ConfigError

LogArgument = Annotated[
    Path | None,
    typer.Argument(
        help="Requests, one JSON object a line: bodies of chat completions, responses, completions"
        " or Anthropic messages, or objects that hold one beside headers, usage and response.",
        metavar="[LOG.jsonl]",
        show_default=False,
    ),
]
TemplateOption = Annotated[
    Path | None,
    typer.Option(
        help="A chat template, or a model's directory with template and tokenizer: compares the"
        " prompts themselves, in tokens and blocks.",
        metavar="FILE_OR_DIR",
    ),
]
PriceOption = Annotated[
    float | None,
    typer.Option(min=0, help="Price of a million prompt tokens.", metavar="PRICE"),
]
BlockOption = Annotated[
    int, typer.Option(min=1, help="Tokens of a KV block (--block-size).", metavar="TOKENS")
]
InstallOption = Annotated[
    bool, typer.Option("--install", help="Check this machine (also what is done without a log).")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(help="The settings to check this machine for.", metavar="FILE"),
]
UrlOption = Annotated[
    str | None, typer.Option(help="Ask a running server what is wrong with it.", metavar="URL")
]
KeyOption = Annotated[
    str | None,
    typer.Option(help="The server's API key.", envvar="VLLM_API_KEY", metavar="KEY"),
]
JsonOption = Annotated[
    str | None,
    typer.Option("--json", help="Write all of it here; - is the output.", metavar="FILE"),
]


def doctor(
    log: LogArgument = None,
    template: TemplateOption = None,
    price_per_million: PriceOption = None,
    block_size: BlockOption = 16,
    install: InstallOption = False,
    agentkv_config: ConfigOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    json_path: JsonOption = None,
) -> None:
    """Name what makes prompts be computed again, or what is wrong with this machine or a server.

    Ends with status 1 where something was found.
    """
    if log is not None and (install or url or agentkv_config):
        raise ConfigError("doctor: LOG stands alone; leave --install, --agentkv-config, --url out")
    if log is None and (template or price_per_million is not None):
        raise ConfigError("doctor: --template and --price-per-million are for a LOG; name one")
    if log is not None:
        is_well = _log(log.expanduser(), template, price_per_million, block_size, json_path)
    else:
        is_well = _checks(agentkv_config, url, api_key, json_path, is_asked=install)
    if not is_well:
        raise typer.Exit(1)


def _log(
    log: Path,
    template_path: Path | None,
    price_per_million: float | None,
    block_tokens: int,
    json_path: str | None,
) -> bool:
    from agentkv.cli.doctor_report import print_diagnosis
    from agentkv.doctor.diagnose import diagnose
    from agentkv.doctor.diagnosis_value import diagnosis_value
    from agentkv.doctor.log_file import read_log
    from agentkv.doctor.template import load_template

    template = load_template(template_path.expanduser()) if template_path is not None else None
    diagnosis = diagnose(read_log(log), template, block_tokens=block_tokens)
    if not diagnosis.num_requests:
        why = f" (line {diagnosis.skipped[0].line}: {diagnosis.skipped[0].reason})"
        raise ConfigError(
            f"{log}: holds no request{why if diagnosis.skipped else ''}; one JSON object a line is"
            " expected, with messages, input or prompt in it, or in its body"
        )
    if not _write(json_path, diagnosis_value(diagnosis, price_per_million)):
        print_diagnosis(diagnosis, price_per_million, has_template=template is not None)
    return not diagnosis.findings


def _checks(
    config_file: Path | None,
    url: str | None,
    api_key: str | None,
    json_path: str | None,
    *,
    is_asked: bool,
) -> bool:
    from agentkv.cli.doctor_report import print_checks
    from agentkv.doctor.checks import State, check_values
    from agentkv.doctor.install import install_checks
    from agentkv.doctor.live import live_checks

    checks = list(live_checks(url, api_key)) if url is not None else []
    if url is None or is_asked or config_file is not None:
        checks = [*install_checks(config_file), *checks]
    if not _write(json_path, check_values(checks)):
        print_checks(checks)
    return all(check.state is not State.FAIL for check in checks)


def _write(json_path: str | None, value: Any) -> bool:
    """Writes what was asked for; returns whether the output is taken by it."""
    if json_path is None:
        return False
    text = json.dumps(value, indent=2) + "\n"
    if json_path == "-":
        sys.stdout.write(text)
        return True
    try:
        Path(json_path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json {json_path}: {error.strerror}") from None
    return False
