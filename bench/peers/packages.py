"""Peers by package name: jars by Maven coordinates, programs by Debian's names. Nothing of them is kept with the code.

Only asked for by name: where the packages come from is a matter of the machine's own settings.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from peers.bodies import body
from peers.model import Figures, Load, PeerError, Running, say

Child = subprocess.Popen[bytes]
MAVEN_SECONDS = 900
APT_SECONDS = 900
JAVAC_SECONDS = 120
TOOLS = Path(__file__).parent / "tools"
CLIENT_WARMUP_SECONDS = 5.0  # the client is compiled while it runs, as the server is
CLIENT_SECONDS_MAX = 60  # beyond that and what is measured
BODIES_MIN = 100  # different ones that a client sends
POLICY = Path("/usr/sbin/policy-rc.d")  # Debian asks it before it starts a service; 101 is "you may not"
REFUSE_ALL = "#!/bin/sh\nexit 101\n"
JAVA_TOOLS = {"java": "default-jre-headless", "javac": "default-jdk-headless", "mvn": "maven"}
# What is asked for by version has that version also where something else that is asked for needs it.
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId>
  <artifactId>peer</artifactId>
  <version>1</version>
  <dependencyManagement>
  <dependencies>
{dependencies}
  </dependencies>
  </dependencyManagement>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""


def cache() -> Path:
    """What was made or resolved for a run and is worth keeping for the next."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "lakemq-bench"


def run(command: list[str], seconds: float, cpus: list[int] | None = None, **environment: str) -> str:
    """Its output; PeerError with the end of it if it failed. It stays on `cpus`, if they are given."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            env={**os.environ, **environment},
            preexec_fn=(lambda: os.sched_setaffinity(0, cpus)) if cpus else None,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"{command[0]} took more than {seconds:.0f} s") from None
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        raise PeerError(f"{Path(command[0]).name} failed: {text[-2000:].strip()}")
    return text


def need(program: str, package: str) -> str:
    """Where the program is."""
    found = shutil.which(program)
    if not found:
        raise PeerError(f"{program} is missing; it comes with Debian's {package}")
    return found


# --- Maven ------------------------------------------------------------------------------------------------------------


def maven(coordinates: list[str]) -> list[Path]:
    """The class path of these artifacts (group:artifact:version) and all that they need to run."""
    if found := _known(coordinates):
        return found
    debian([package for program, package in JAVA_TOOLS.items() if not shutil.which(program)])
    mvn = need("mvn", "maven")
    say(f"resolving {', '.join(coordinates)}")
    home = _home(coordinates)
    home.mkdir(parents=True, exist_ok=True)
    (home / "pom.xml").write_text(POM.format(dependencies="\n".join(map(_dependency, coordinates))))
    new = home / "classpath.new"
    goal = ["dependency:build-classpath", "-DincludeScope=runtime", f"-Dmdep.outputFile={new}"]
    run([mvn, "-q", "-B", "-f", str(home / "pom.xml"), *goal], MAVEN_SECONDS)
    new.replace(home / "classpath")  # whole or not at all, should two runs meet
    found = _known(coordinates)
    if not found:
        raise PeerError(f"Maven left no class path for {', '.join(coordinates)}")
    return found


def missing_maven(coordinates: list[str]) -> list[str]:
    return [] if _known(coordinates) else coordinates


def class_path(jars: list[Path]) -> str:
    return os.pathsep.join(map(str, jars))


def _home(coordinates: list[str]) -> Path:
    return cache() / "maven" / hashlib.sha256(" ".join(coordinates).encode()).hexdigest()[:16]


def _known(coordinates: list[str]) -> list[Path]:
    """What was resolved before, if all of it is still in Maven's own store."""
    try:
        words = (_home(coordinates) / "classpath").read_text().strip()
    except FileNotFoundError:
        return []
    jars = [Path(word) for word in words.split(os.pathsep) if word]
    return jars if all(jar.is_file() for jar in jars) else []


def _dependency(coordinate: str) -> str:
    group, artifact, version = map(escape, coordinate.split(":"))
    inner = f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
    return f"    <dependency>{inner}</dependency>"


# --- Debian -----------------------------------------------------------------------------------------------------------


def missing_debian(names: list[str]) -> list[str]:
    return [name for name in names if not _is_installed(name)]


def debian(names: list[str]) -> None:
    """Installs what is missing, and lets none of it start a service: every server of a run is started by the run."""
    wanted = missing_debian(names)
    if not wanted:
        return
    apt = need("apt-get", "apt")
    if os.geteuid() != 0:
        raise PeerError(f"only root may install: apt-get install {' '.join(wanted)}")
    say(f"installing {', '.join(wanted)}")
    if any(_candidate(name) is None for name in wanted):
        run([apt, "update", "-q"], APT_SECONDS)
    install = [apt, "install", "-q", "-y", "--no-install-recommends", *wanted]
    with _no_service_starts():
        try:
            run(install, APT_SECONDS, DEBIAN_FRONTEND="noninteractive")
        except PeerError:  # the lists were there but old: they name files that are no more
            run([apt, "update", "-q"], APT_SECONDS)
            run(install, APT_SECONDS, DEBIAN_FRONTEND="noninteractive")
    if still := missing_debian(names):
        raise PeerError(f"apt-get did not bring {', '.join(still)}")


def _is_installed(name: str) -> bool:
    query = ["dpkg-query", "-W", "-f", "${Status}", name]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return False
    return done.stdout.strip() == "install ok installed"


def _candidate(name: str) -> str | None:
    """The version that apt would bring; None if it does not know the package."""
    for line in run(["apt-cache", "policy", name], APT_SECONDS).splitlines():
        word, _, value = line.strip().partition(": ")
        if word == "Candidate" and value != "(none)":
            return value
    return None


@contextlib.contextmanager
def _no_service_starts() -> Iterator[None]:
    """While a package is set up; afterwards the machine's own policy, if it has one, is back as it was."""
    aside = Path(tempfile.mkdtemp(dir=POLICY.parent, prefix=".policy-rc.d-")) / POLICY.name
    was_there = POLICY.exists()
    if was_there:
        POLICY.replace(aside)
    try:
        POLICY.write_text(REFUSE_ALL)
        POLICY.chmod(0o755)
        yield
    finally:
        POLICY.unlink(missing_ok=True)
        if was_there:
            aside.replace(POLICY)
        aside.parent.rmdir()


# --- servers ----------------------------------------------------------------------------------------------------------


def launch(command: list[str], log: Path, cpus: list[int], environment: dict[str, str] | None = None) -> Child:
    """A process on these cores; what it says goes to `log`."""
    with log.open("ab") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=log.parent,  # some write files to where they are
            env=environment,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )


@contextlib.contextmanager
def stopped_on_error(running: Running) -> Iterator[None]:
    """A server that does not get ready leaves no process behind."""
    try:
        yield
    except BaseException:
        running.stop()
        raise


# --- Java -------------------------------------------------------------------------------------------------------------


def java(jars: list[Path], options: list[str], program: str, arguments: list[str], log: Path, cpus: list[int]) -> Child:
    """A virtual machine on these cores; what it says goes to `log`."""
    return launch(
        [need("java", "default-jre-headless"), *options, "-cp", class_path(jars), program, *arguments], log, cpus
    )


def compiled(jars: list[Path], sources: list[Path]) -> Path:
    """The directory of their classes; made once for as long as the sources do not change."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources) + class_path(jars).encode())
    made = cache() / "classes" / digest.hexdigest()[:16]
    if made.is_dir():
        return made
    new = made.with_name(f"{made.name}.{os.getpid()}")
    new.mkdir(parents=True, exist_ok=True)
    javac = [need("javac", "default-jdk-headless"), "-nowarn", "-d", str(new), "-cp", class_path(jars)]
    run([*javac, *map(str, sources)], JAVAC_SECONDS)
    with contextlib.suppress(OSError):  # another run was first
        new.replace(made)
    return made


def by_client(
    jars: list[Path],
    program: str,
    options: list[str],
    load: Load,
    words: dict[str, object],
    seconds: float,
    cpus: list[int],
) -> Figures:
    """`load` by a program in `tools` that uses a peer's own Java client; `words` are what it is told besides."""
    classes = compiled(jars, [TOOLS / "PeerLoad.java", TOOLS / f"{program}.java"])
    with tempfile.TemporaryDirectory(prefix="bench-client-") as directory:
        bodies = Path(directory) / "bodies"
        bodies.write_bytes(b"".join(body(n, load.body_bytes) for n in range(max(load.batch, BODIES_MIN))))
        told = {name: value for name, value in vars(load).items() if name != "durability"}
        told |= {"warmup": CLIENT_WARMUP_SECONDS, "seconds": seconds, "bodies": bodies, **words}
        command = [need("java", "default-jre-headless"), "-Xms1g", "-Xmx1g", f"-Duser.home={directory}", *options]
        command += ["-cp", class_path([classes, *jars]), program, *(f"{name}={value}" for name, value in told.items())]
        said = run(command, CLIENT_WARMUP_SECONDS + seconds + CLIENT_SECONDS_MAX, cpus=cpus)
    found = next((line for line in said.splitlines() if line.startswith("{")), None)
    if found is None:
        raise PeerError(f"{program} told no figures: {said[-2000:]}")
    return Figures(**json.loads(found))


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody has just now."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            ports.append(listener.getsockname()[1])
        return ports


def wait_for(what: str, is_ready: Callable[[], bool], process: Child, log: Path, seconds: float) -> None:
    """Until it is; PeerError with the end of the log if the process ended, or it took too long."""
    until = time.monotonic() + seconds
    while not is_ready():
        is_gone = process.poll() is not None
        if is_gone or time.monotonic() > until:
            said = log.read_text(errors="replace")[-2000:] if log.exists() else ""
            why = f"ended with status {process.returncode}" if is_gone else f"did not answer within {seconds:.0f} s"
            raise PeerError(f"{what} {why}: {said}")
        time.sleep(0.05)  # another process starts: there is nothing to wait on


def conversation(port: int, requests: list[bytes], seconds: float = 30) -> list[bytes]:
    """Replies, each with a length of 4 bytes before it, which is left out; OSError if there is nobody."""
    replies = []
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as there:
        stream = there.makefile("rb")
        for request in requests:
            there.sendall(request)
            head = stream.read(4)
            content = stream.read(int.from_bytes(head, "big"))
            if len(head) < 4 or len(content) < int.from_bytes(head, "big"):
                raise ConnectionError("closed before its answer was whole")
            replies.append(content)
    return replies
