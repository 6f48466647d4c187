"""The parameter of a handler by its type: the message itself, or its body as a dataclass, a pydantic or msgspec model.

Models of pydantic and msgspec are decoded by their own libraries, which whoever writes such a model has: nothing of
them is loaded here otherwise. Dataclasses are filled from JSON by the rules of their fields' types; what the class does
not name is left out, what it names and has no default for must be there, and nothing is converted that JSON can say
itself: a number in quotes is no number.
"""

import builtins
import dataclasses
import enum
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from functools import lru_cache, partial
from typing import Any, Literal, Union, get_args, get_origin
from uuid import UUID

from lakemq.client.delivery import Delivery
from lakemq.client.errors import HandlerError
from lakemq.envelope import decode_text
from lakemq.errors import SerializationError

Decode = Callable[[bytes], object]
"""A body as the value that a handler takes; SerializationError if it is none."""

_SUPPORTED = "a dataclass, a pydantic model, a msgspec Struct, dict, list, str, bytes, or Delivery for the message"
_DEPTH_MAX = 100
_TEXT_TYPES: dict[Any, Callable[[str], object]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    UUID: UUID,
    Decimal: Decimal,
}
_JSON_NAMES = {
    dict: "an object",
    list: "an array",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Parameters:
    """What a handler is called with: the message, or its decoded body, and the message behind that if it wants it."""

    decode: Decode | None = None
    wants_message: bool = False

    def of(self, delivery: Delivery) -> tuple[Any, ...]:
        """The arguments; SerializationError if the body is not what the handler takes."""
        if self.decode is None:
            return (delivery,)
        value = self.decode(delivery.body)
        return (value, delivery) if self.wants_message else (value,)


def parameters_of(function: Callable[..., object]) -> Parameters:
    """What a function takes, by its signature; HandlerError if that is nothing we have."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a built-in function nobody knows
        return Parameters()
    takes = [
        one for one in signature.parameters.values() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if not takes:
        if any(one.kind is one.VAR_POSITIONAL for one in signature.parameters.values()):
            return Parameters()
        raise HandlerError(f"{name_of(function)} takes no message", fix="Give it one parameter, the message.")
    decode = _decoder(function, takes[0])
    needed = [one for one in takes[1:] if one.default is one.empty]
    wants_message = decode is not None and len(takes) > 1 and (bool(needed) or _is_message(function, takes[1]))
    if len(needed) > (1 if decode is not None else 0):
        raise HandlerError(
            f"{name_of(function)} wants {1 + len(needed)} arguments",
            fix="A handler takes the message, or its body by a type and the message behind it.",
        )
    return Parameters(decode, wants_message)


def name_of(function: object) -> str:
    """For errors and the log."""
    if isinstance(function, partial):
        return name_of(function.func)
    return getattr(function, "__qualname__", None) or repr(function)


def _annotation(function: Callable[..., object], parameter: inspect.Parameter) -> Any:
    """The parameter's type, looked up where the function was written if it is text."""
    found = parameter.annotation
    if not isinstance(found, str):
        return found
    written = found
    inner = inspect.unwrap(function.func if isinstance(function, partial) else function)
    inner = getattr(inner, "__func__", inner)
    names = getattr(inner, "__globals__", None) or vars(sys.modules.get(type(inner).__module__, builtins))
    try:
        return eval(written, dict(names))
    except Exception:  # a name that is only there for type checkers, or is local to a function
        if written.strip("\"' ").rpartition(".")[2] == "Delivery":
            return Delivery
        raise HandlerError(
            f"{name_of(function)}: the type {written!r} of its parameter is not known where it was written",
            fix="Import or define the type at the top of the module, outside of `if TYPE_CHECKING`.",
        ) from None


def _is_message(function: Callable[..., object], parameter: inspect.Parameter) -> bool:
    kind = _annotation(function, parameter)
    return kind is Delivery


def _decoder(function: Callable[..., object], parameter: inspect.Parameter) -> Decode | None:
    kind = _annotation(function, parameter)
    if kind is parameter.empty or kind is Any or isinstance(kind, typing.TypeVar):
        return None
    bare = get_origin(kind) or kind
    if bare in Delivery.__mro__ or getattr(bare, "_is_protocol", False):
        return None
    found = decoder_of(kind)
    if found is None:
        raise HandlerError(f"{name_of(function)}: a body cannot be decoded into {kind!r}", fix=f"Use {_SUPPORTED}.")
    return found


def decoder_of(kind: Any) -> Decode | None:
    """How a body becomes one of these; None if that is nothing we know."""
    bare = get_origin(kind) or kind
    if kind is bytes:
        return bytes
    if kind is str:
        return partial(decode_text, noun="body")
    if bare in (dict, list):
        return partial(_from_json, kind)
    if not isinstance(bare, type):
        return None
    if _is_of("pydantic", "BaseModel", bare):
        return partial(_from_pydantic, kind)
    if _is_of("msgspec", "Struct", bare):
        return _msgspec_decoder(kind)
    if dataclasses.is_dataclass(bare):
        is_pydantic = hasattr(bare, "__pydantic_validator__")
        return partial(_from_pydantic_dataclass, kind) if is_pydantic else partial(_from_json, kind)
    return None


def _is_of(module: str, base: str, kind: type) -> bool:
    """Whether it is a class of that library's: then the library is loaded already."""
    found = getattr(sys.modules.get(module), base, None)
    return isinstance(found, type) and issubclass(kind, found)


def _from_pydantic(kind: Any, body: bytes) -> object:
    try:
        return kind.model_validate_json(body)
    except ValueError as error:  # pydantic's errors are
        raise _undecodable(kind, error) from None


def _from_pydantic_dataclass(kind: Any, body: bytes) -> object:
    adapter = sys.modules["pydantic"].TypeAdapter(kind)
    try:
        return adapter.validate_json(body)
    except ValueError as error:
        raise _undecodable(kind, error) from None


def _msgspec_decoder(kind: Any) -> Decode:
    msgspec = sys.modules["msgspec"]
    decoder = msgspec.json.Decoder(kind)

    def decode(body: bytes) -> object:
        try:
            return decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise _undecodable(kind, error) from None

    return decode


def _undecodable(kind: Any, why: object) -> SerializationError:
    told = " ".join(str(why).split())
    return SerializationError(f"the body is no {getattr(kind, '__name__', kind)}: {told}")


# Dataclasses, and what their fields may be.


def _from_json(kind: Any, body: bytes) -> object:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _undecodable(kind, f"it is not JSON: {error}") from None
    try:
        return _value(kind, said, "", 0)
    except _MismatchError as error:
        raise _undecodable(kind, error) from None


class _MismatchError(Exception):
    """A part of the JSON is not what the type says."""


def _mismatch(place: str, wanted: str, said: object) -> _MismatchError:
    shown = json.dumps(said)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return _MismatchError(f"{place.lstrip('.') or 'the whole'} is to be {wanted}, not {shown}")


def _value(kind: Any, said: Any, place: str, depth: int) -> Any:
    """One part of the JSON as its type says."""
    if depth > _DEPTH_MAX:
        raise _MismatchError(f"{place} is nested too deeply")
    origin, inside = get_origin(kind), get_args(kind)
    if kind is Any or kind is object or isinstance(kind, typing.TypeVar):
        return said
    if kind is None or kind is type(None):
        if said is not None:
            raise _mismatch(place, "null", said)
        return None
    if origin in (typing.Annotated, typing.Required, typing.NotRequired, typing.Final, typing.ClassVar):
        return _value(inside[0], said, place, depth)
    if origin in (Union, types.UnionType):
        return _one_of(inside, said, place, depth)
    if origin is Literal:
        if not any(said == one and type(said) is type(one) for one in inside):
            raise _mismatch(place, f"one of {', '.join(map(repr, inside))}", said)
        return said
    bare = origin or kind
    if bare in (dict, Mapping):
        return _mapping(inside, said, place, depth)
    if bare in (list, Sequence, tuple, set, frozenset):
        return _sequence(bare, inside, said, place, depth)
    if dataclasses.is_dataclass(bare) and isinstance(bare, type):
        return _dataclass(bare, said, place, depth)
    return _scalar(bare, said, place)


def _scalar(kind: Any, said: Any, place: str) -> Any:
    if kind is float and type(said) in (int, float):
        return float(said)
    if kind in (str, int, float, bool):
        if type(said) is not kind:
            raise _mismatch(place, _JSON_NAMES[kind], said)
        return said
    if kind in _TEXT_TYPES:
        is_number = kind is Decimal and type(said) in (int, float)
        if type(said) is not str and not is_number:
            raise _mismatch(place, f"text of a {kind.__name__}", said)
        try:
            return _TEXT_TYPES[kind](str(said))
        except (ValueError, InvalidOperation):
            raise _mismatch(place, f"text of a {kind.__name__}", said) from None
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(said)
        except ValueError:
            raise _mismatch(place, f"one of {', '.join(repr(one.value) for one in kind)}", said) from None
    found = decoder_of(kind)  # a model of a library inside a dataclass
    if found is None or kind in (bytes, bytearray):
        raise _MismatchError(f"{place.lstrip('.')} has the type {kind!r}, which JSON does not have")
    try:
        return found(json.dumps(said).encode())
    except SerializationError as error:
        raise _MismatchError(f"{place.lstrip('.')}: {error}") from None


def _one_of(kinds: tuple[Any, ...], said: Any, place: str, depth: int) -> Any:
    first: _MismatchError | None = None
    for kind in kinds:
        try:
            return _value(kind, said, place, depth + 1)
        except _MismatchError as error:
            if first is None or kind is not type(None):
                first = error
    assert first is not None, "a union has members"
    raise first


def _mapping(inside: tuple[Any, ...], said: Any, place: str, depth: int) -> dict[Any, Any]:
    if type(said) is not dict:
        raise _mismatch(place, "an object", said)
    of_key, of_value = inside or (Any, Any)
    if of_key not in (str, Any):
        raise _MismatchError(f"{place.lstrip('.')} has keys of {of_key!r}; those of JSON are text")
    return {key: _value(of_value, value, f"{place}.{key}", depth + 1) for key, value in said.items()}


def _sequence(kind: Any, inside: tuple[Any, ...], said: Any, place: str, depth: int) -> Any:
    if type(said) is not list:
        raise _mismatch(place, "an array", said)
    if kind is tuple and inside and inside[-1] is not Ellipsis:
        if len(said) != len(inside):
            raise _mismatch(place, f"an array of {len(inside)}", said)
        of_each = inside
    else:
        of_each = (inside[0] if inside else Any,) * len(said)
    pairs = enumerate(zip(of_each, said, strict=True))
    found = [_value(one, value, f"{place}[{nth}]", depth + 1) for nth, (one, value) in pairs]
    return found if kind in (list, Sequence) else kind(found)


@lru_cache(256)
def _field_types(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _dataclass(kind: type, said: Any, place: str, depth: int) -> Any:
    if type(said) is not dict:
        raise _mismatch(place, "an object", said)
    hints, values = _field_types(kind), {}
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        if field.name in said:
            values[field.name] = _value(hints[field.name], said[field.name], f"{place}.{field.name}", depth + 1)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise _MismatchError(f"{f'{place}.{field.name}'.lstrip('.')} is missing")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:  # what its own __post_init__ does not take
        raise _MismatchError(f"{place.lstrip('.') or kind.__name__} is refused: {error}") from None
