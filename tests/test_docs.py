"""The documents agree with the code: error table, command catalogue, example bytes, and links that lead somewhere."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from lakemq.envelope import unpack
from lakemq.errors import all_errors, from_status
from lakemq.message import Message
from lakemq.record import scan
from lakemq.wire.commands import KINDS, decode_request, decode_response, encode_request, encode_response
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.frame import FrameDecoder
from lakemq.wire.header import Header, read_header
from lakemq.wire.produce import ProduceMessage

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
WIRE = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8")


def section(title):
    """The text below a heading of the second level, up to the next one."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", WIRE, re.DOTALL | re.MULTILINE)
    assert found, f"docs/wire.md has no section {title!r}"
    return found.group(1)


def rows(text, columns):
    """The rows of all tables with so many columns, heads and rulers among them."""
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    return [row for row in cells if len(row) == columns]


# ---- error codes ---------------------------------------------------------------------------------------------------


def test_the_error_table_is_the_error_tree():
    said = [tuple(row[:5]) for row in rows(section("12 Error codes"), 7) if row[0].isdigit()]
    yes = {True: "yes", False: "no"}
    assert said == [
        (str(cls.status), f"`{cls.__name__}`", yes[cls.retriable], yes[cls.maybe_written], yes[cls.in_seed])
        for cls in all_errors()
    ]


def test_every_error_says_when_it_is_returned():
    assert [row for row in rows(section("12 Error codes"), 7) if not all(row)] == []


# ---- commands ------------------------------------------------------------------------------------------------------

COMMANDS = section("8 Commands")
by_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def chapter_of(kind):
    """The chapter of section 8 whose heading names that command, others beside it or not."""
    chapters = [chapter.partition("\n") for chapter in re.split(r"^### ", COMMANDS, flags=re.MULTILINE)[1:]]
    (text,) = [text for heading, _, text in chapters if re.search(rf"\b{kind.name} \({kind.number}\)", heading)]
    return text


def names_in(layout):
    """The names of all fields in a layout, those of its elements too."""
    names = set(getattr(layout, "types", ()))
    inner = [*getattr(layout, "types", {}).values()]
    inner += [getattr(layout, part) for part in ("element", "field") if hasattr(layout, part)]
    return names.union(*map(names_in, inner))


def test_the_catalogue_is_the_table_of_commands():
    said = [(row[0], row[1], row[2], row[3]) for row in rows(COMMANDS, 6) if row[0].isdigit()]
    assert said == [
        (
            str(kind.number),
            kind.name,
            f"`{kind.request_class.__name__}`",
            f"`{kind.ack_class.__name__}`" if kind.ack_class else "header",
        )
        for kind in KINDS
    ]


@by_kind
def test_every_command_has_a_chapter_that_names_all_its_fields(kind):
    wanted = {field.name for cls in (kind.request_class, kind.ack_class) if cls for field in fields(cls)}
    wanted |= names_in(kind.request) | names_in(kind.ack)
    said = {row[1].strip("`").rpartition(".")[2] for row in rows(chapter_of(kind), 4) if row[1].startswith("`")}
    assert said == wanted


# ---- worked examples -----------------------------------------------------------------------------------------------


def examples():
    """Each block of bytes in the worked examples: its dialect, its direction and the frame."""
    blocks = re.findall(r"^```hex (\w+) (\w+)\n(.*?)^```$", section("13 Worked examples"), re.DOTALL | re.MULTILINE)
    for dialect, direction, text in blocks:
        frame = bytes.fromhex("".join(line.partition("#")[0] for line in text.splitlines()))
        yield pytest.param(Dialect(dialect), direction, frame, id=f"{dialect}-{direction}-{frame[13:15].hex()}")


EXAMPLES = list(examples())


def decoded_and_encoded_again(dialect, direction, frame):
    if direction == "request":
        header, command = decode_request(frame, dialect)
        form = Form(dialect, header.version)
        return encode_request(
            command,
            form=form,
            request_id=header.request_id,
            send_time_ms=header.send_time_ms,
            qos_bits=header.qos_bits,
        )
    header, ack = decode_response(frame, dialect)
    request = Header(-header.type if header.type > -128 else 1, header.request_id, header.version, header.qos_bits)
    error = from_status(header.status, header.error) if header.status else None
    return encode_response(ack, request, dialect=dialect, send_time_ms=header.send_time_ms, error=error)


@pytest.mark.parametrize(("dialect", "direction", "frame"), EXAMPLES)
def test_an_example_decodes_and_encodes_to_the_same_bytes(dialect, direction, frame):
    assert [bytes(cut) for cut in FrameDecoder().feed(frame)] == [frame]
    assert read_header(frame)[0].is_response == (direction == "response")
    assert b"".join(decoded_and_encoded_again(dialect, direction, frame)) == frame


def test_an_answer_in_the_examples_has_the_type_that_its_request_calls_for():
    asked = None
    for dialect, direction, frame in (example.values for example in EXAMPLES):
        header = read_header(frame)[0]
        if direction == "request":
            asked = header.type
            continue
        is_header_alone = decode_response(frame, dialect)[1] is None
        assert header.type == (-128 if is_header_alone and dialect is Dialect.JOYQUEUE else -asked)


def test_the_example_message_is_the_same_in_both_dialects_and_passes_the_checks():
    messages = []
    for dialect, direction, frame in (example.values for example in EXAMPLES):
        if direction == "request" and isinstance(command := decode_request(frame, dialect)[1], ProduceMessage):
            stored = command.topics[0].messages.stored().joined()
            assert scan(stored, 0, len(stored), 1) == (len(stored), 1, 1)
            messages.append(unpack(stored))
    expected = Message(
        body=b"hello",
        business_id="biz-1",
        attributes={"a b": "c d", "x": "=中"},
        priority=2,
        flag=7,
        app="shop",
        send_time_ms=1700000000000,
        partition=1,
        index=0,
    )
    assert messages == [expected, expected]


def test_the_examples_show_a_heartbeat_an_introduction_in_both_dialects_and_a_message():
    requests = {
        (type(decode_request(frame, dialect)[1]).__name__, dialect)
        for dialect, direction, frame in (example.values for example in EXAMPLES)
        if direction == "request"
    }
    assert requests >= {
        ("Heartbeat", Dialect.DOCUMENTED),
        ("AddConnection", Dialect.DOCUMENTED),
        ("AddConnection", Dialect.JOYQUEUE),
        ("ProduceMessage", Dialect.DOCUMENTED),
    }


# ---- the map -------------------------------------------------------------------------------------------------------

MAP = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("\n## Who may import whom\n")[0]
SOURCE = ROOT / "src" / "lakemq"


def test_every_module_is_on_the_map():
    modules = [path.relative_to(SOURCE) for path in SOURCE.glob("**/*.py") if path.name != "__init__.py"]
    named = set(re.findall(r"`(?:\w+/)?(\w+\.py)`", MAP))
    assert [str(path) for path in sorted(modules) if path.name not in named] == []


def test_what_is_said_to_exist_does_and_what_is_planned_does_not():
    for line in MAP.splitlines():
        mark = re.match(r"\| ([●○]) \|", line)
        if mark:
            for path in re.findall(r"`(\w+/\w+\.py)`", line.partition(" | ")[2].partition(" | ")[0]):
                assert (SOURCE / path).exists() == (mark[1] == "●"), path


# ---- links ---------------------------------------------------------------------------------------------------------


def without_code(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page):
    """What a link can name in a page: its headings, in the form that hosting sites give them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_nowhere(link, page):
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_that_exists(page):
    links = re.findall(r"\]\(([^()\s]+)\)", without_code(page))
    relative = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in relative if leads_nowhere(link, page)] == []
