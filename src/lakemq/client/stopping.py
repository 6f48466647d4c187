"""How a run of handlers is told to end: by a call from anywhere, or by SIGTERM and SIGINT."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType


class StopSign:
    """Says that a run is to end. `set` takes no lock, so any thread and any signal handler may call it."""

    def __init__(self) -> None:
        self.is_set = False
        self.is_hurried = False  # nobody wants to wait for what is under way
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._seen = threading.Event()

    def set(self) -> None:
        """Nothing new is begun from here on."""
        self.is_set = True
        self.ring()

    def hurry(self) -> None:
        """Wait for nothing any more."""
        self.is_hurried = True
        self.set()

    def ring(self) -> None:
        """Wake the thread that waits."""
        self._bell.put(None)

    def signalled(self, number: int) -> None:
        """The first signal ends the run, a second Ctrl-C the waiting."""
        if self.is_set and number == signal.SIGINT:
            self.hurry()
        else:
            self.set()

    def wait(self) -> None:
        """Until it is set; for the one thread that looks after the others."""
        while not self.is_set:
            self._bell.get()
        self._seen.set()

    def rest(self, seconds: float) -> None:
        """Until somebody rings, or that long; for the same thread."""
        try:
            self._bell.get(timeout=seconds)
        except Empty:
            return

    def pause(self, seconds: float) -> bool:
        """For any thread: wait that long, or until it is set; whether it is."""
        return self._seen.wait(seconds) or self.is_set


@contextmanager
def signals(sign: StopSign) -> Iterator[None]:
    """While this lasts SIGTERM and SIGINT set the sign: in the main thread, where nobody has other plans for them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def told(number: int, _: FrameType | None) -> None:
        sign.signalled(number)

    before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int] = {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            handler = signal.getsignal(number)
            if handler is signal.SIG_DFL or handler is signal.default_int_handler:
                signal.signal(number, told)
                before[number] = handler
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
