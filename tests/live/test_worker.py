"""`lakemq worker` as it is started: real processes, real signals, a real broker."""

import os
import signal

import pytest

from fix_live import live_broker  # noqa: F401 - a fixture
from live.test_handlers_end import PROGRAM, mq, others_get, program, topic, url  # noqa: F401 - fixtures

pytestmark = pytest.mark.live

WORKER = ("-m", "lakemq", "worker")
APPS = ["blocking_app", "asyncio_app", "threaded_asyncio_app"]


def pids_at_work(one):
    return {line[0] for line in one.lines() if line[1] == "begun"}


def is_alive(pid):
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("app", APPS)
def test_it_runs_the_handlers_of_a_module_and_ends_gracefully(program, mq, topic, app):  # noqa: F811
    for body in (b"first", b"wait"):
        mq.send(topic, body, partition=0)
    program.start(*WORKER, f"handler_program:{app}").until_said("begun", "wait")
    assert program.said("done", "first")
    program.signal(signal.SIGTERM)
    program.go()
    assert program.end() == 0
    assert program.said("done", "wait")
    assert "handle" in program.stderr()


def test_several_processes_share_the_work_and_end_together(program, mq, topic):  # noqa: F811
    for partition in range(4):
        mq.send(topic, b"wait", partition=partition)
    program.start(*WORKER, "handler_program:blocking_app", "--processes", "2")
    program.until(lambda: len(pids_at_work(program)) == 2, "both processes at work")
    program.signal(signal.SIGTERM)
    program.go()
    assert program.end() == 0
    assert program.said("done", "wait") >= 2
    assert not any(is_alive(pid) for pid in pids_at_work(program))


def test_a_process_that_is_killed_is_replaced_and_its_message_comes_again(program, mq, topic):  # noqa: F811
    mq.send(topic, b"wait", partition=0)
    program.start(*WORKER, "handler_program:blocking_app", "--processes", "2").until_said("begun", "wait")
    (victim,) = pids_at_work(program)
    os.kill(int(victim), signal.SIGKILL)
    program.until(lambda: program.said("begun", "wait") == 2, "another process has it")
    program.until(lambda: "another is started" in program.stderr(), "it says so")
    program.signal(signal.SIGTERM)
    program.go()
    assert program.end() == 0


def test_processes_end_with_a_parent_that_is_killed(program, mq, topic):  # noqa: F811
    mq.send(topic, b"wait", partition=0)
    program.start(*WORKER, "handler_program:blocking_app", "--processes", "2").until_said("begun", "wait")
    (pid,) = pids_at_work(program)
    program.signal(signal.SIGKILL)
    program.end()
    program.go()
    program.until_said("done", "wait")  # gracefully
    program.until(lambda: not is_alive(pid), "it has ended")


def test_what_takes_longer_than_the_shutdown_goes_back(program, mq, topic):  # noqa: F811
    mq.send(topic, b"wait", partition=0)
    program.start(*WORKER, "handler_program:blocking_app", "--processes", "2", "--shutdown-timeout", "200ms")
    program.until_said("begun", "wait")
    program.signal(signal.SIGTERM)
    assert program.end() == 0
    assert others_get(mq, topic) == [b"wait"]


def test_a_change_of_a_source_file_starts_it_anew(program, mq, topic):  # noqa: F811
    copy = program.place / "copied_program.py"
    text = PROGRAM.read_text()
    copy.write_text(text)
    program.start(*WORKER, "copied_program:blocking_app", "--reload")
    mq.send(topic, b"first")
    program.until_said("done", "first")
    copy.write_text(text.replace('say("done", message', 'say("finished", message'))
    os.utime(copy, ns=(10**18, 10**18))  # a clock that is coarse must not hide the change
    program.until(lambda: "has changed" in program.stderr(), "it sees the change")
    mq.send(topic, b"second")
    program.until(lambda: program.said("finished", "second") or program.said("done", "second"), "the second is handled")
    if not program.said("finished", "second"):  # the old one was still there
        mq.send(topic, b"third")
        program.until_said("finished", "third")
    copy.write_text("this is no Python")
    os.utime(copy, ns=(2 * 10**18, 2 * 10**18))
    program.until(lambda: "cannot be imported" in program.stderr(), "it says what is wrong")
    copy.write_text(text)
    os.utime(copy, ns=(3 * 10**18, 3 * 10**18))
    mq.send(topic, b"fourth")
    program.until_said("done", "fourth")
    program.signal(signal.SIGINT)
    assert program.end() == 0


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("nowhere:mq", 3, "there is no module nowhere"),
        ("handler_program:nothing", 3, "module handler_program has no nothing"),
        ("handler_program:number", 2, "is no client but int"),
        ("handler_program:no_handlers", 2, "has no handlers"),
        ("handler_program", 2, "lakemq worker handler_program:mq"),
        ("live/handler_program.py:mq", 2, "lakemq worker live.handler_program:mq"),
    ],
)
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_wrong_target_is_told_and_ends_it(program, target, status, text, processes):  # noqa: F811
    program.start(*WORKER, target, "--processes", processes)
    assert program.end() == status
    assert text in program.stderr()
    assert "Traceback" not in program.stderr()


def test_a_program_that_fails_when_imported_shows_where(program):  # noqa: F811
    (program.place / "broken_program.py").write_text("import lakemq\nraise RuntimeError('broken')\n")
    program.start(*WORKER, "broken_program:mq")
    assert program.end() == 1
    assert "module broken_program cannot be imported: RuntimeError('broken')" in program.stderr()
    assert 'broken_program.py", line 2' in program.stderr()
