"""docs/pipeline.md is true: its programs run one after the other, its tables are the code's, its commands exist."""

import re
import shlex
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from typer.main import get_command

from lakemq.cli import main
from lakemq.pipeline import options, schema
from lakemq.pipeline.reads import ddl
from lakemq.pipeline.rows import _WANTED

PAGE = (Path(__file__).parent.parent.parent / "docs" / "pipeline.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SHELL = "".join(re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
COMMANDS = [line for line in SHELL.splitlines() if line.startswith("lakemq ")]
INLINE = sorted(set(re.findall(r"`(lakemq [a-z][^`]*)`", PAGE)))


def section(title):
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def run(block, names, address):
    """As a module of its own would; a failure is shown with the line on the page."""
    line = PAGE[: PAGE.index(block)].count("\n")
    here = block.replace("127.0.0.1:50088", address)
    exec(compile("\n" * line + here, "docs/pipeline.md", "exec"), names)


@pytest.mark.timeout(600)
def test_the_programs_run_one_after_the_other(spark, topics, live_broker, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lakemq.spark.session", lambda: spark)
    command = next(line for line in COMMANDS if line.startswith("lakemq topic create orders "))
    create(command, live_broker, monkeypatch)
    names = {}
    for block in PYTHON:
        run(block, names, f"127.0.0.1:{live_broker.port}")
    assert (tmp_path / "pipeline" / "report.html").exists()


def create(command, broker, monkeypatch):
    """Make a topic as the page does."""
    with monkeypatch.context() as patch:
        patch.setenv("LAKEMQ_ADMIN_URL", f"http://127.0.0.1:{broker.admin_port}")
        patch.setenv("LAKEMQ_ADMIN__TOKEN", broker.admin_token)
        patch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as ended:
            main.run()
    assert not ended.value.code


def parsed(command):
    """The command that a line means, with its options taken; nothing is run."""
    words = shlex.split(command, comments=True)[1:]
    group = get_command(main.app)
    context = group.make_context("lakemq", words)
    while True:
        rest = [*context._protected_args, *context.args]
        name, found, rest = group.resolve_command(context, rest)
        context = found.make_context(name, rest, parent=context)
        if not hasattr(found, "resolve_command"):
            return found
        group = found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_on_the_page_is_one(command):
    assert parsed(command).callback is not None


@pytest.mark.parametrize("command", INLINE)
def test_every_command_in_the_text_is_one(command):
    group = get_command(main.app)
    for word in command.split()[1:]:
        if word.startswith("-"):
            assert any(word in param.opts for param in group.params), word
        elif hasattr(group, "commands"):
            group = group.commands[word]


def test_all_commands_of_the_archive_are_shown():
    commands = get_command(main.app).commands["archive"].commands
    assert all(any(line.startswith(f"lakemq archive {name} ") for line in COMMANDS) for name in commands)


def test_the_table_of_options_has_those_that_the_code_knows():
    first = re.findall(r"^\| (`[^|]*) \|[^|]*\|[^|]*\|$", section("Options"), re.MULTILINE)
    said = [name for cell in first for name in re.findall(r"`([^`]+)`", cell)]
    assert sorted(said) == sorted([*options._COMMON, *options._SOURCE, *options._SINK])


def test_the_table_of_columns_is_the_sources():
    said = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section("Columns"), re.MULTILINE)
    assert ", ".join(f"{name} {kind}" for name, kind in said) == ddl(schema.SOURCE)


def test_the_columns_that_can_be_sent_are_named():
    said = re.findall(r"`(\w+)`", section("Writing").partition("Other columns")[0])
    assert sorted(said) == sorted(_WANTED)


def test_links_inside_the_page_lead_somewhere():
    titles = {title.lower().replace(" ", "-") for title in re.findall(r"^## (.+)$", PAGE, re.MULTILINE)}
    links = {" ".join(link.split()) for link in re.findall(r"\]\(#([^)]+)\)", PAGE)}
    assert links == titles
