"""How a command fails: one form for every error, one table of exit codes.

Loads nothing but the error tree: errors of the client are told by their names.
"""

from lakemq.errors import LakeMQError

DONE = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3  # what was named is not there
MISSING = 4  # a prerequisite: Java, an extra
UNREACHABLE = 5
NOT_PERMITTED = 6
REFUSED = 7  # for safety; --execute does it
PARTLY = 9  # what failed was listed
TIMED_OUT = 124
INTERRUPTED = 130

# By the name of the class or of the nearest one above it.
_EXITS = {
    "ConfigError": USAGE,
    "UnknownNameError": NOT_FOUND,
    "NameTakenError": FAILED,
    "BadParameterError": USAGE,
    "OptionError": USAGE,
    "SparkMissingError": MISSING,
    "LakeNotFoundError": NOT_FOUND,
    "ArchiveRunningError": REFUSED,
    "TopicNotFoundError": NOT_FOUND,
    "ConsumerNotFoundError": NOT_FOUND,
    "NoPermissionError": NOT_PERMITTED,
    "AuthenticationError": NOT_PERMITTED,
    "ProducerNotFoundError": NOT_PERMITTED,
    "TopicNotWritableError": NOT_PERMITTED,
    "TopicNotReadableError": NOT_PERMITTED,
    "SendForbiddenError": NOT_PERMITTED,
    "ConsumeForbiddenError": NOT_PERMITTED,
    "ConsumedElsewhereError": NOT_PERMITTED,
    "BrokerUnreachableError": UNREACHABLE,
    "ConnectionLostError": UNREACHABLE,
    "ServiceUnavailableError": UNREACHABLE,
    "RequestTimeoutError": TIMED_OUT,
    "SendTimeoutError": TIMED_OUT,
    "WriteTimeoutError": TIMED_OUT,
}
# What an operator at a terminal does about it, where that is not what a program does. The names in braces are filled in
# as far as the command knows them.
_FIXES = {
    "TopicNotFoundError": "lakemq topic ls    lists the topics;    lakemq topic create {TOPIC}    makes one",
    "ConsumerNotFoundError": "lakemq app subscribe {GROUP} {TOPIC} --consumer",
    "ProducerNotFoundError": "lakemq app subscribe {APP} {TOPIC} --producer",
    "NoPermissionError": "lakemq app subscribe {GROUP} {TOPIC} {ROLE}",
    "AuthenticationError": "set LAKEMQ_APP and LAKEMQ_TOKEN;    lakemq app token create {APP}    makes a token",
    "WrongPortError": "say where clients connect: --server, LAKEMQ_URL; 50088 unless the broker was told otherwise",
    "BrokerUnreachableError": "start one with    lakemq dev    or say where it is: --server, LAKEMQ_URL",
}


_known = {"APP": "APP", "GROUP": "APP", "TOPIC": "TOPIC", "ROLE": "--producer --consumer"}


def know(*, app: str = "", group: str = "", topic: str = "", role: str = "") -> None:
    """What the command is about: fixes name it instead of a placeholder."""
    is_group_open = _known["GROUP"] == "APP"  # a group that was named stays
    said = {"APP": app, "GROUP": group or (app if is_group_open else ""), "TOPIC": topic, "ROLE": role}
    _known.update({name: value for name, value in said.items() if value})


def filled(fix: str) -> str:
    """A fix with what is known in place of its placeholders."""
    for name, value in _known.items():
        fix = fix.replace(f"{{{name}}}", value)
    return fix


class CommandError(LakeMQError):
    """A failure of a command, with its own words and exit code."""

    cause = "The command failed."

    def __init__(
        self,
        detail: str,
        exit_code: int = FAILED,
        *,
        why: str = "",
        fix: str = "",
        code: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.exit_code = exit_code
        self.why = why
        self.told_fix = fix
        self.code = code


def exit_code_of(error: LakeMQError) -> int:
    """How the process ends after it."""
    if isinstance(error, CommandError):
        return error.exit_code
    return next((_EXITS[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _EXITS), FAILED)


def describe(error: LakeMQError) -> str:
    """What a user sees: what happened, why, what to do, where to read on; each on a line of its own."""
    code = _code_of(error)
    head = "error" if code is None else f"error[LMQ-{code}]"
    lines = [f"{head}: {_one_line(getattr(error, 'said', '') or str(error))}"]
    if isinstance(error, CommandError):
        whys, fix = [error.why], error.told_fix
    elif hasattr(error, "next_step"):  # the pipeline's: it knows better than its class
        whys, fix = [], error.next_step
    else:
        problems = getattr(error, "problems", ())
        whys = list(problems) if len(problems) > 1 else [] if problems or not error.detail else [error.cause]
        fix = next(
            (filled(_FIXES[kind.__name__]) for kind in type(error).__mro__ if kind.__name__ in _FIXES), error.fix
        )
    lines += [f"  why   {_one_line(why)}" for why in whys if why]
    if fix:
        lines.append(f"  fix   {_one_line(fix, keeps_gaps=True)}")
    if code is not None:
        lines.append(f"  more  lakemq errors {code}")
    return "\n".join(lines)


def as_json(error: LakeMQError) -> dict[str, object]:
    """`describe` for programs, in the form of the operators' HTTP interface."""
    lines = dict(line.strip().split(maxsplit=1) for line in describe(error).splitlines()[1:])
    detail = _one_line(getattr(error, "said", "") or str(error))
    told = {"code": _code_of(error), "name": type(error).__name__, "detail": detail, "fix": lines.get("fix", "")}
    return {"error": {**told, "exit_code": exit_code_of(error)}}


def _code_of(error: LakeMQError) -> int | None:
    if isinstance(error, CommandError):
        return error.code
    statuses: list[int | None] = [getattr(kind, "status", None) for kind in type(error).__mro__]
    return next((status for status in statuses if status is not None), None)


def _one_line(text: str, *, keeps_gaps: bool = False) -> str:
    # A detail may come from a peer: no line breaks, and nothing that a terminal would obey.
    joined = text if keeps_gaps else " ".join(text.split())
    return "".join(char if char.isprintable() else "?" for char in joined)
