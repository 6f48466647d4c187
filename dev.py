"""What a developer runs, in one place; the Makefile and CI call the same. Standard library only.

python dev.py check      format, lint, types, layers, quick tests
python dev.py test       every test
python dev.py bench      every benchmark in its quick form
python dev.py bench-peers  LakeMQ beside Kafka, RocketMQ, NATS, RabbitMQ and Redis, which it installs; 45 minutes
python dev.py bench-quick  the same with those that are installed; 5 minutes
python dev.py sim        10 000 simulated schedules of broker, clients and disk
python dev.py wheel      dist/: wheels to install elsewhere
python dev.py faults     crash states, kills, power cuts and failing disks, in the numbers of a full run
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent
CODE = ["src", "tests", "bench", "dev.py", "setup.py"]
# A command the tests call, and the Debian package that brings it.
SYSTEM_PACKAGES: dict[str, str] = {
    "strace": "strace",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "mount": "mount",
    "pg_ctlcluster": "postgresql",
}
CANNOT_RUN = 77  # the exit status of a fault command on a machine that lacks what it needs


def run(*command: str) -> None:
    print("+", " ".join(command), flush=True)
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def python(*arguments: str) -> None:
    run(sys.executable, *arguments)


def tool(name: str, *arguments: str) -> None:
    run(str(Path(sys.executable).with_name(name)), *arguments)


def format_() -> None:
    tool("ruff", "format", *CODE)
    tool("ruff", "check", "--fix", *CODE)


def style() -> None:
    tool("ruff", "format", "--check", *CODE)
    tool("ruff", "check", *CODE)


def types() -> None:
    tool("mypy")


def layers() -> None:
    tool("lint-imports")


def lint() -> None:
    style()
    types()
    layers()


def quick() -> None:
    python("-m", "pytest", "-q", "-n", "2", "-m", "not slow and not live and not spark and not sim")


def test() -> None:
    # One Spark session takes the whole machine; two would take turns with each other and with all else.
    python("-m", "pytest", "-m", "spark")
    python("-m", "pytest", "-n", "2", "-m", "not spark")


def check() -> None:
    lint()
    quick()


def bench() -> None:
    for script in sorted((ROOT / "bench").glob("[a-z]*.py")):
        python(str(script.relative_to(ROOT)), "--quick")


def bench_peers(*options: str) -> None:
    command = [sys.executable, "-m", "peers.run", *options]
    print("+ cd bench;", " ".join(command), flush=True)
    sys.exit(subprocess.run(command, cwd=ROOT / "bench", check=False).returncode)


def bench_quick() -> None:
    bench_peers("--quick")


def fuzz() -> None:
    python("-m", "tests.fuzz_frames", "--frames", "1000000")


def sim() -> None:
    python("-m", "tests.sim.run", "--seeds", "10000", "--jobs", "2")


def faults() -> None:
    """The full runs, one after the other, all of them even if one fails; power cuts need root."""
    results = {}
    for name, *options in (
        ("crash_states", "--states", "10000"),
        ("kills", "--count", "1000"),
        ("power_cuts", "--count", "300"),
        ("loopfull", "--rounds", "20"),
        ("smallfs", "--rounds", "10"),
        ("broker_kills", "--count", "1000"),
        ("broker_disk", "--rounds", "10"),
        ("broker_frames", "--frames", "200000"),
        ("broker_hostile", "--connections", "5000", "--mebibytes", "1000"),
        ("broker_drains", "--count", "100", "--restarts", "10"),
        ("broker_pauses", "--rounds", "5"),
        ("broker_baseline", "--rounds", "10", "--seconds", "10"),
        ("archive_kills", "--kills", "50", "--rows", "1000000"),
    ):
        command = [sys.executable, "-m", f"tests.faults.{name}", *options]
        print("+", " ".join(command), flush=True)
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        results[name] = {0: "passed", CANNOT_RUN: "could not run here"}.get(status, f"FAILED with {status}")
    print("\n".join(f"{name}: {result}" for name, result in results.items()))
    if any(result.startswith("FAILED") for result in results.values()):
        sys.exit(1)


def wheel() -> None:
    """Build dist/: a wheel for every Python and system, and one with the compiled parts for this one."""
    for left in ("build", "dist"):
        shutil.rmtree(ROOT / left, ignore_errors=True)
    build = (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps")
    for pure in ("1", ""):
        os.environ["LAKEMQ_PURE"] = pure
        run(*build, "--wheel-dir", str(ROOT / "dist"), str(ROOT))
        shutil.rmtree(ROOT / "build", ignore_errors=True)  # what lies there would come along the next time
    for made in sorted((ROOT / "dist").iterdir()):
        with zipfile.ZipFile(made) as opened:
            is_compiled = any(name.endswith((".so", ".pyd")) for name in opened.namelist())
        if made.name.endswith("-none-any.whl") or is_compiled:
            print(f"dist/{made.name}: {'with' if is_compiled else 'without'} the compiled parts")
        else:
            made.unlink()
            print("no C compiler: there is only the wheel without the compiled parts")


def system_packages() -> None:
    """Install the Debian packages the tests call, when we may; otherwise say which tests will skip."""
    missing = sorted({package for command, package in SYSTEM_PACKAGES.items() if shutil.which(command) is None})
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"not installed: {', '.join(missing)}; the tests that need them will skip and say so")
        return
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"  # nobody is there to answer questions
    run("apt-get", "update", "-qq")
    run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing)


COMMANDS = {
    "format": format_,
    "lint": lint,
    "types": types,
    "layers": layers,
    "quick": quick,
    "test": test,
    "check": check,
    "bench": bench,
    "bench-peers": bench_peers,
    "bench-quick": bench_quick,
    "fuzz": fuzz,
    "sim": sim,
    "faults": faults,
    "wheel": wheel,
    "system-packages": system_packages,
}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in COMMANDS:
        sys.exit(f"usage: python dev.py {' | '.join(COMMANDS)}")
    COMMANDS[sys.argv[1]]()
