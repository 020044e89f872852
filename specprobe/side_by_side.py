"""Work that waits for others, such as requests to a server: so many at once, each result as it comes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
THREAD_NAME = "specprobe-request"


def side_by_side(
    work: Callable[[Item, threading.Event], Result], items: Sequence[Item], count: int
) -> Iterator[tuple[int, Result]]:
    """(index, result) of each item in the order in which they end, `count` at a time.

    The first failure ends all: what was finished by then is given first, then the failure is raised. `work` is given
    an event that is set when nobody waits for it any more: after a failure, and where the caller leaves (Ctrl-C).
    """
    left = iter(list(enumerate(items)))
    next_one = threading.Lock()
    ended: queue.SimpleQueue[tuple[int, Result] | BaseException] = queue.SimpleQueue()
    stopped = threading.Event()

    def run() -> None:
        while not stopped.is_set():
            with next_one:
                numbered = next(left, None)
            if numbered is None:
                return
            try:
                ended.put((numbered[0], work(numbered[1], stopped)))
            except BaseException as error:
                ended.put(error)
                stopped.set()

    # Daemons, so that Ctrl-C need not wait for answers that still come.
    for _ in range(min(count, len(items))):
        threading.Thread(target=run, name=THREAD_NAME, daemon=True).start()
    try:
        failure: BaseException | None = None
        for _ in range(len(items)):
            try:
                found = ended.get()
            except KeyboardInterrupt as interrupt:
                found = interrupt
            if isinstance(found, BaseException):
                failure = found
                break
            yield found
        if failure is not None:
            stopped.set()
            while not ended.empty():
                found = ended.get()
                if not isinstance(found, BaseException):
                    yield found
            raise failure
    finally:
        stopped.set()
