"""Pages of the site that come from the code: checks, causes, commands, configuration, schemas, nodes; and READMEs.

A hook of mkdocs (`hooks` in mkdocs.yml). What it writes lies nowhere in the repository: it cannot be out of date.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from gpudoctor.checks.core.registry import registry
from gpudoctor.cli.command_table import COMMANDS, module_of
from gpudoctor.diagnose.causes import page_names, page_of
from gpudoctor.facts.simulated.load import faults, node_titles
from gpudoctor.report.check_docs import page_path, page_text

DOCS = Path(__file__).parent
ROOT = DOCS.parent
# pages that lie elsewhere in the repository, by their place on the site
READMES = {
    "slurm.md": "contrib/slurm/README.md",
    "kubernetes.md": "contrib/kubernetes/README.md",
    "prometheus.md": "contrib/prometheus/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)")
_OUTPUT = re.compile(r"<!-- output: gpudoctor (.*) -->")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the generated pages to the navigation."""
    domains: dict[str, list[Any]] = defaultdict(list)
    for check in registry():
        domains[check.domain].append({check.id: f"checks/{check.id}.md"})
    assert config.nav is not None
    for section in config.nav:
        if "Checks" in section:
            section["Checks"] = ["checks/index.md", *({domain: pages} for domain, pages in domains.items())]
        if "Causes" in section:
            section["Causes"] = ["causes/index.md", *({name: f"causes/{name}.md"} for name in page_names())]
        if "Develop" in section:
            section["Develop"][-1]["Decisions"] = sorted(
                path.relative_to(DOCS).as_posix() for path in (DOCS / "decisions").glob("*.md")
            )
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for name, content in _generated():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that leave the site lead to the repository; `<!-- output: gpudoctor ... -->` is what the command prints."""
    source = PurePosixPath(READMES.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
    on_site = _places()

    def target(match: re.Match[str]) -> str:
        path = os.path.normpath(source.parent / match[2])
        place = on_site.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if place is not None and files.get_file_from_path(place) is not None:
            return match[1] + os.path.relpath(place, PurePosixPath(page.file.src_uri).parent)
        if not (ROOT / path).exists():
            return match[0]  # mkdocs says what is wrong with it
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{match[1]}{(config.repo_url or '').rstrip('/')}/{kind}/main/{path}"

    return _OUTPUT.sub(lambda match: _printed(match[1]), _LINK.sub(target, markdown))


@cache
def _places() -> dict[str, str]:
    """Where on the site a file or folder of the repository is shown, if it is one that lies outside docs."""
    places = {readme: name for name, readme in READMES.items()} | {"gpudoctor/checks": "checks/index.md"}
    for check in registry():
        if path := page_path(check):
            places[str(path.relative_to(ROOT))] = f"checks/{check.id}.md"
    return places | {f"gpudoctor/diagnose/pages/{name}.md": f"causes/{name}.md" for name in page_names()}


def _printed(command: str) -> str:
    """What the command prints on 80 columns, as a block; it may find faults."""
    done = subprocess.run(
        [sys.executable, "-m", "gpudoctor", *shlex.split(command)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1) or not done.stdout:
        raise RuntimeError(f"gpudoctor {command}: exit code {done.returncode}: {done.stderr}")
    return f"```text\n{done.stdout.rstrip()}\n```"


def _generated() -> Iterator[tuple[str, str]]:
    for check in registry():
        yield f"checks/{check.id}.md", page_text(check)
    yield "checks/index.md", _checks()
    for name in page_names():
        yield f"causes/{name}.md", page_of(f"diagnose.{name}") or ""
    yield "causes/index.md", _causes()
    yield "commands.md", _commands()
    yield "nodes-and-faults.md", _nodes()
    schemas = {name: json.loads(_schema(name)) for name in _schema_names()}
    for name, schema in schemas.items():
        yield f"schemas/{name}.json", json.dumps(schema, indent=2)
    yield "json-schemas.md", _schemas(schemas)
    yield "configuration-reference.md", _configuration(schemas["config"])
    for name, readme in READMES.items():
        yield name, (ROOT / readme).read_text(encoding="utf-8")


def _checks() -> str:
    rows = [f"| [{c.id}]({c.id}.md) | {c.level} | {c.title} |" for c in registry()]
    return "\n".join(
        [
            f"# The {len(rows)} checks",
            "",
            "Each page says what is looked at, why, the thresholds with their source, known false alarms, and the fix:",
            "it is the runbook of the check's alert. `gpudoctor explain ID` prints the same page on the node.",
            "",
            "| id | [level](../levels.md) | what holds if it passes |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    )


def _causes() -> str:
    titles = {name: (page_of(f"diagnose.{name}") or "").splitlines()[0].removeprefix("# ") for name in page_names()}
    return "\n".join(
        [
            "# Causes that `gpudoctor diagnose` names",
            "",
            "`gpudoctor explain diagnose.NAME` prints the same page. How they are found: [diagnose](../diagnose.md).",
            "",
            *(f"- [{title}]({name}.md)" for name, title in titles.items()),
            "",
        ]
    )


def _commands() -> str:
    lines = ["# Commands", "", "What `gpudoctor COMMAND --help` prints.", ""]
    for name, summary in COMMANDS.items():
        parser = argparse.ArgumentParser(prog=f"gpudoctor {name}", description=summary, allow_abbrev=False)
        module_of(name).add_options(parser)
        lines += [f"## {name}", "", *_help(parser)]
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for below, of_below in action.choices.items():
                    lines += [f"### {name} {below}", "", *_help(of_below)]
    return "\n".join(lines)


def _help(parser: argparse.ArgumentParser) -> list[str]:
    parser.formatter_class = _at_80_columns(parser.formatter_class)
    return ["```text", parser.format_help().rstrip(), "```", ""]


def _at_80_columns(formatter: Callable[..., argparse.HelpFormatter]) -> Any:
    return lambda prog: formatter(prog, width=80)


def _nodes() -> str:
    return "\n".join(
        [
            "# Simulated nodes and faults",
            "",
            "`gpudoctor check --node NAME --fault FAULT[@GPU]`; how they are used: ",
            "[simulated nodes](simulated-nodes.md).",
            "",
            "| node | what it is |",
            "| --- | --- |",
            *(f"| `{name}` | {title} |" for name, title in node_titles().items()),
            "",
            "| fault | what is wrong | found by |",
            "| --- | --- | --- |",
            *(f"| `{fault.name}` | {fault.title} | [{fault.check}](checks/{fault.check}.md) |" for fault in faults()),
            "",
        ]
    )


def _schema_names() -> list[str]:
    parser = argparse.ArgumentParser()
    module_of("schema").add_options(parser)
    return [str(name) for action in parser._actions for name in action.choices or ()]


def _schema(name: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gpudoctor", "schema", name], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def _schemas(schemas: dict[str, Any]) -> str:
    rows = [f"| [{name}.json](schemas/{name}.json) | `gpudoctor schema {name}` |" for name in schemas]
    return "\n".join(
        [
            "# JSON schemas",
            "",
            "Keys are only ever added ([what stays stable](contracts.md)). Every number has its unit in its name or",
            "beside it.",
            "",
            "| schema | printed by |",
            "| --- | --- |",
            *rows,
            "",
        ]
    )


def _configuration(schema: dict[str, Any]) -> str:
    lines = [
        "# Configuration keys",
        "",
        "From the schema (`gpudoctor schema config`). Where the file lies: [configuration](configuration.md).",
        "",
    ]
    for name, heading in (("Config", "The file"), ("Expect", "`expect`"), ("Suppression", "An entry of `suppress`")):
        definition = schema["$defs"][name]
        lines += [f"## {heading}", "", "| key | values | default | meaning |", "| --- | --- | --- | --- |"]
        for key, value in definition["properties"].items():
            default = "must be given" if key in definition["required"] else f"`{json.dumps(value.get('default'))}`"
            lines.append(f"| `{key}` | {_values(value)} | {default} | {value.get('description', '')} |")
        lines.append("")
    lines += [
        "## Thresholds",
        "",
        "`thresholds: {CHECK: {NAME: NUMBER}}`. The source of each stands on the check's page.",
        "",
    ]
    lines += ["| check | name | default | unit | leads to |", "| --- | --- | --- | --- | --- |"]
    for check in registry():
        for limit in check.limits.values():
            row = (f"[{check.id}](checks/{check.id}.md)", f"`{limit.name}`", f"{limit.value:g}", limit.unit)
            lines.append(f"| {' | '.join(row)} | {limit.leads_to or ''} |")
    return "\n".join([*lines, ""])


def _values(value: dict[str, Any]) -> str:
    if "enum" in value:
        return ", ".join(f"`{word}`" for word in value["enum"])
    if "anyOf" in value:
        return " or ".join(_values(each) for each in value["anyOf"] if each.get("type") != "null")
    if "$ref" in value:
        return "a mapping, see below"
    words = {"array": "a list", "object": "a mapping", "boolean": "`true`, `false`", "string": "text"}
    word = words.get(value.get("type", ""), str(value.get("type", "")))
    if value.get("type") == "array" and "$ref" in value["items"]:
        return "a list of mappings, see below"
    least = value.get("minimum", value.get("exclusiveMinimum"))
    bounds = f", {'above' if 'exclusiveMinimum' in value else 'from'} {least:g}" if least is not None else ""
    return word + bounds + (f" to {value['maximum']:g}" if "maximum" in value else "")
