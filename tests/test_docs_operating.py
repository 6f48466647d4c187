"""docs/operating.md agrees with the code: every limit, metric, route, command and setting that it names."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from typer.main import get_command

from lakemq.broker.limits import BrokerLimits
from lakemq.cli import failure
from lakemq.cli.main import app
from lakemq.config import KEYS, SECTIONS, load, shown
from lakemq.embedded import Engine
from lakemq.operate import reading_of
from lakemq.testing.clock import SimClock
from lakemq.testing.disk import SimDisk
from lakemq.world.admin_app import AdminSettings, make_app
from lakemq.world.prometheus import Lag, exposition

PAGE = (Path(__file__).parent.parent / "docs" / "operating.md").read_text(encoding="utf-8")


def section(title):
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found, f"docs/operating.md has no section {title!r}"
    return found.group(1)


def rows(text, columns):
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    return [row for row in cells if len(row) == columns]


def codes(text):
    """What stands in code marks."""
    return re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))


def test_every_limit_has_its_row_with_its_default_and_what_happens():
    said = [row for row in rows(section("Limits"), 5) if row[0].startswith("`")]
    wanted = [(one.name, shown(KEYS[f"limits.{one.name}"], one.default).strip('"')) for one in fields(BrokerLimits)]
    assert [(row[0].strip("`"), row[1]) for row in said] == wanted
    assert all(all(row) for row in said)


def test_every_label_of_a_limit_is_one_that_the_code_counts_by():
    source = Path(__file__).parent.parent / "src" / "lakemq"
    text = "".join(path.read_text(encoding="utf-8") for path in [*source.glob("broker/*.py"), source / "serve.py"])
    counted = set(re.findall(r'capped\[\s*"(\w+)"', text)) | set(re.findall(r'reason = "(\w+)"', text))
    counted |= set(re.findall(r'capped\["(\w+)" if is_over else "(\w+)"\]', text)[0])
    labels = {name for row in rows(section("Limits"), 5) for name in codes(row[4])}
    others = {"stray_responses", "app_rate", "retries", "dead_letters", "delays", "delays_cancelled", "transactions"}
    others |= {"archive_lag", "made_in_turn"}
    assert labels | others == counted
    assert others <= set(codes(section("Limits")))


def test_every_metric_is_in_the_table(tmp_path):
    engine = Engine(SimDisk(), SimClock())
    told = exposition(reading_of(engine.broker), [Lag("orders", "shop", 1)], tmp_path).decode()
    names = {name.removesuffix("_created") for name in re.findall(r"^# TYPE (\w+) ", told, re.MULTILINE)}
    assert {name for row in rows(section("Metrics"), 3) for name in codes(row[0])} == names


def test_every_route_is_in_the_table_and_the_other_way_round(tmp_path):
    gate = make_app(None, AdminSettings("a-token-of-operators", tmp_path))
    paths = gate._app.openapi()["paths"]
    wanted = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    said = {text for row in rows(section("HTTP interface"), 2) for text in codes(row[0])}
    assert {text for text in said if text.startswith(("GET", "POST", "PUT", "DELETE"))} == wanted


def test_the_file_of_the_example_can_be_used(tmp_path):
    (text,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    file = tmp_path / "lakemq.toml"
    file.write_text(text, encoding="utf-8")
    found = load(file=file, environment={})
    assert {path for path, origin in found.origins.items() if origin == str(file)} == {
        f"{name}.{key}" for name, keys in tomllib.loads(text).items() for key in keys
    }


def test_every_section_of_settings_is_in_the_table():
    said = [row[0].strip("`") for row in rows(section("Settings"), 2) if row[0].startswith("`")]
    assert [name for name in said if not name.startswith("lakemq ")] == list(SECTIONS)


def test_every_setting_that_is_named_with_its_section_exists():
    named = re.findall(rf"`({'|'.join(SECTIONS)})\.(\w+)`", PAGE)
    assert named
    assert [f"{part}.{name}" for part, name in named if f"{part}.{name}" not in KEYS and name != "toml"] == []


@pytest.mark.parametrize("line", sorted({text for text in codes(PAGE) if re.match(r"lakemq [a-z]", text)}))
def test_every_command_that_is_named_exists(line):
    command = get_command(app)
    for word in line.split()[1:]:
        if not hasattr(command, "commands") or not word.isalpha() or not word.islower():
            return
        assert word in command.commands, line
        command = command.commands[word]


def test_every_exit_code_is_in_the_table():
    wanted = {value for name, value in vars(failure).items() if name.isupper() and isinstance(value, int)}
    assert {int(row[0]) for row in rows(section("Exit codes"), 2) if row[0].isdigit()} == wanted
