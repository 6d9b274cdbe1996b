"""One self-contained HTML file: tables, figures and provenance of a replay, nothing to fetch."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from agentkv.bench import replay_report as report
from agentkv.bench.replay_plots import png_bytes

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>agentkv bench replay</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto }}
table {{ border-collapse: collapse; margin: 1rem 0 }}
th, td {{ border-bottom: 1px solid #ddd; padding: .25rem .7rem; text-align: right }}
th:nth-child(-n+2), td:nth-child(-n+2) {{ text-align: left }}
img {{ max-width: 100% }} pre {{ background: #f6f6f6; padding: 1rem; overflow-x: auto }}
</style></head><body><h1>agentkv bench replay</h1>
{body}
</body></html>
"""
_CAPTIONS = {
    "resume_ttft_cdf": "Share of resumed turns whose first token came within a time",
    "over_x": "First-token time and tokens computed again, as memory gets scarce",
}


def write_html(path: Path, figures: Mapping[str, Figure], value: Mapping[str, Any]) -> None:
    """Writes the file, with the figures inside it; `value` as in the JSON file."""
    parts = [
        "<h2>Systems</h2>",
        _table(report.HEADERS, report.table_rows(value["rows"])),
        "<h2>Ours over the baselines</h2>",
        _table(report.RATIO_HEADERS, report.ratio_rows(value["rows"])),
        *(f"<p>{html.escape(note)}</p>" for note in report.notes(value)),
        *(_figure(name, figure) for name, figure in figures.items()),
        "<h2>Provenance</h2>",
        f"<pre>{html.escape(json.dumps(value['provenance'], indent=2))}</pre>",
    ]
    path.write_text(_PAGE.format(body="\n".join(parts)), encoding="utf-8")


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in headers)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>" for cells in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _figure(name: str, figure: Figure) -> str:
    data = base64.b64encode(png_bytes(figure)).decode("ascii")
    caption = html.escape(_CAPTIONS.get(name, name))
    return f'<h2>{caption}</h2><img alt="{caption}" src="data:image/png;base64,{data}">'
