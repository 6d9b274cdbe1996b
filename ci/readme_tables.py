"""Keeps the README's tables of settings and metrics equal to the code.

What: writes the tables between their markers; with --check only says whether they are up to date.
Why: a table kept by hand is wrong after the second change.
Where: `python ci/readme_tables.py` after a change; ci/check.sh calls it with --check.
"""

import sys
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agentkv.config import AgentKVConfig
from agentkv.config_values import config_paths, format_size
from agentkv.metrics import ALL_METRICS, Kind

README = Path(__file__).parent.parent / "README.md"


def main() -> int:
    """Write or check the tables; returns the exit status."""
    text = README.read_text(encoding="utf-8")
    updated = text
    for name, rows in (("settings", settings_rows()), ("metrics", metrics_rows())):
        updated = replace_table(updated, name, rows)
    if updated == text:
        return 0
    if "--check" in sys.argv:
        print("README.md: a table is out of date: run python ci/readme_tables.py")
        return 1
    README.write_text(updated, encoding="utf-8")
    return 0


def replace_table(text: str, name: str, rows: list[str]) -> str:
    """The text with the lines between the markers of a table replaced."""
    begin, end = f"<!-- {name}: made by ci/readme_tables.py -->", f"<!-- end of {name} -->"
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    return "".join((head, begin, "\n", *(f"{row}\n" for row in rows), end, tail))


def settings_rows() -> list[str]:
    """One row for each setting that holds a value."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for path in config_paths(AgentKVConfig):
        field = find_field(path)
        if not isinstance(field.default, BaseModel):
            meaning = " ".join((field.description or "").split())  # A row ends with its line.
            rows.append(f"| `{path}` | {show_default(path, field.default)} | {meaning} |")
    return rows


def find_field(path: str) -> FieldInfo:
    """The field at a key path of the settings tree."""
    model: type[BaseModel] = AgentKVConfig
    *sections, leaf = path.split(".")
    for section in sections:
        model = type(model.model_fields[section].default)
    return model.model_fields[leaf]


def show_default(path: str, value: object) -> str:
    """A default as a user would write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if path.endswith("_bytes") and isinstance(value, int):
        return f"`{format_size(value)}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def metrics_rows() -> list[str]:
    """One row for each metric, under the name that Prometheus sees."""
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in ALL_METRICS:
        name = f"{metric.name}_total" if metric.kind is Kind.COUNTER else metric.name
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{name}` | {metric.kind.value} | {labels} | {metric.documentation} |")
    return rows


if __name__ == "__main__":
    sys.exit(main())
