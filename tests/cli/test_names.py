"""The names of commands: those that hints tell are there, and `ls` is `list` and `rm` is `delete` everywhere."""

import ast
import re
from pathlib import Path

import pytest
import typer.main

from lakemq.cli.main import app

SOURCES = Path(__file__).parent.parent.parent / "src"
ROOT = typer.main.get_command(app)
# Set off as hints do: in backquotes, behind a gap or a colon, or as a whole text.
COMMAND = re.compile(r"(?:^|`| {4}|: |, |; |run |with )lakemq ((?:[a-z]+ ?)+)")


def texts():
    """Every text in the code, with the file it is in."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path.relative_to(SOURCES), node.value


def told_commands():
    for path, text in texts():
        for line in text.splitlines():
            for found in COMMAND.finditer(line):
                yield path, found.group(1).split()


def missing(words):
    """What of the words is no command; None if all is well. Words behind a command are its arguments."""
    group = ROOT
    for nth, word in enumerate(words):
        commands = getattr(group, "commands", None)
        if commands is None:
            return None
        found = group.get_command(None, word)
        if found is None:
            return " ".join(words[: nth + 1])
        group = found
    return None


def test_every_command_that_a_text_tells_is_there():
    told = list(told_commands())
    assert len(told) > 40
    assert ["topic", "ls"] in [words[:2] for _, words in told]
    wrong = {(str(path), missing(words)) for path, words in told if missing(words)}
    assert wrong == set()


def groups():
    return {name: command for name, command in ROOT.commands.items() if hasattr(command, "commands")}


@pytest.mark.parametrize(("name", "other"), [("ls", "list"), ("list", "ls"), ("rm", "delete"), ("delete", "rm")])
def test_a_command_has_its_other_name_everywhere(name, other):
    having = {noun: group for noun, group in groups().items() if name in group.commands}
    assert having
    for noun, group in having.items():
        assert group.get_command(None, other) is group.get_command(None, name), noun
        assert other not in group.commands, f"{noun}: one of the two is shown"


def test_the_second_name_of_a_nested_noun_works_too():
    tokens = groups()["app"].get_command(None, "token")
    assert tokens.get_command(None, "delete") is tokens.get_command(None, "rm") is not None


def test_no_other_name_is_invented():
    assert groups()["broker"].get_command(None, "list") is None
    assert groups()["topic"].get_command(None, "lst") is None
