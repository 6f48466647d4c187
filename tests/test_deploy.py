"""What is in deploy/ is right by its own linters, and says what the broker says: ports, paths, limits."""

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lakemq.config import KEYS
from lakemq.serve import ServeConfig

ROOT = Path(__file__).parents[1]
UNIT = ROOT / "deploy" / "lakemq.service"
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
COMMAND = "/opt/lakemq/bin/lakemq"


def unit():
    parser = configparser.ConfigParser(strict=True, interpolation=None, delimiters=("=",))
    parser.optionxform = str
    parser.read_string(UNIT.read_text(encoding="utf-8"))
    return parser


def test_the_unit_has_three_sections_and_each_setting_once():
    assert unit().sections() == ["Unit", "Service", "Install"]
    assert unit()["Install"]["WantedBy"] == "multi-user.target"


def test_the_unit_stops_the_broker_as_it_wants_to_be_stopped():
    service = unit()["Service"]
    assert (service["KillSignal"], service["KillMode"]) == ("SIGTERM", "mixed")
    drain_s = ServeConfig().broker.drain_timeout_ms / 1000
    assert float(service["TimeoutStopSec"]) > 2 * drain_s
    assert int(service["LimitNOFILE"]) > ServeConfig().broker.limits.connections_max
    assert service["Restart"] == "on-failure", "after SIGTERM it stays down"


def test_the_unit_lets_the_broker_write_to_its_data_and_nowhere_else():
    service = unit()["Service"]
    assert service["ProtectSystem"] == "strict"
    data = f"/var/lib/{service['StateDirectory']}"
    assert f"--data {data}" in service["ExecStart"]
    assert service["User"] not in ("", "root")


def test_the_units_command_line_is_one_that_the_broker_takes(tmp_path):
    command = unit()["Service"]["ExecStart"].split()
    assert command[0] == COMMAND
    done = subprocess.run(
        [sys.executable, "-m", "lakemq", *command[1:], "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for option in command:
        assert not option.startswith("--") or option in done.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_right_by_systemds_own_check(tmp_path):
    copy = tmp_path / "lakemq.service"
    copy.write_text(UNIT.read_text(encoding="utf-8").replace(COMMAND, sys.executable))  # it must be there
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def instructions():
    text = re.sub(r"\\\n\s*", " ", DOCKERFILE.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def test_the_dockerfile_passes_its_linter():
    linter = shutil.which("hadolint", path=Path(sys.executable).parent) or shutil.which("hadolint")
    assert linter, "hadolint is among the developer tools"
    done = subprocess.run([linter, DOCKERFILE], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_runs_a_broker_as_nobody_special_on_its_own_ports():
    found = instructions()
    last_stage = found[max(at for at, one in enumerate(found) if one[0] == "FROM") :]
    said = dict(last_stage)
    assert said["USER"] not in ("0", "root")
    assert said["EXPOSE"].split() == [str(KEYS["server.port"].default), str(KEYS["admin.port"].default)]
    assert (said["ENTRYPOINT"], said["CMD"]) == ('["lakemq"]', '["broker", "start"]')
    assert said["STOPSIGNAL"] == "SIGTERM"
    for variable, value in re.findall(r"(LAKEMQ_\w+)=(\S+)", said["ENV"]):
        key = next(one for one in KEYS.values() if one.variable == variable)
        assert value, key
    assert said["VOLUME"] in said["ENV"]


def test_the_images_sources_are_all_that_a_build_needs():
    copied = {word for name, rest in instructions() if name == "COPY" for word in rest.split()[:-1]}
    for name in copied:
        assert (ROOT / name).exists(), name
    kept = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().split()
    assert copied <= {line.removeprefix("!") for line in kept}
