"""A crew of Ray actors, on the GPUs or processors of this machine or of a cluster. Imports ray when it begins to work.

An actor that dies is replaced, and its piece of work given to whoever is free. Responses are kept here as each batch
ends, so what was finished is on the disk whatever happens to the cluster, or to this process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from specprobe.crew import Item, Result, Work
from specprobe.errors import SpecprobeError
from specprobe.notices import inert
from specprobe.ray_worker import Arrival, Replica, Worker, facts_of, hardware_of
from specprobe.tokens import first_line
from specprobe.units import format_plural

if TYPE_CHECKING:
    from specprobe.options import AnalyzeOptions
    from specprobe.progress import Stages
    from specprobe.target import Target

LOCAL = "local"
# Workers that a piece of work, and in a row the same place for a worker, may lose before it is no accident.
MOST_LOSSES = 3
SECONDS_UNTIL_SAID = 60.0
SECONDS_TO_CONNECT = 10.0


def with_ray(target: Target, options: AnalyzeOptions, stages: Stages) -> Target:
    """The target with a crew at `options.ray`, which starts with the first work there is.

    The layers leave this process's GPU: the crew runs them, and one of it may be on the same GPU.
    """
    import torch

    if target.record.device_type not in ("cuda", "cpu"):
        raise SpecprobeError(
            f"--ray: shares work over CUDA GPUs or processors, not {target.record.device_type}; add --device cpu"
        )
    place = replace(options.load, device=target.record.device_type)
    replica = Replica(options.target, place, options.template_kwargs, torch.get_num_threads(), str(Path.cwd()))
    assert options.ray is not None
    crew = RayCrew(
        options.ray,
        replica,
        Arrival("this process", facts_of(target), hardware_of(target)),
        stages,
        leaves_gpus=options.load.device == "cpu",
    )
    target.park_layers()
    return replace(target, crew=crew)


@dataclass(frozen=True, slots=True, eq=False)
class _Piece(Generic[Item]):
    number: int
    item: Item
    losses: int = 0


@dataclass(slots=True, eq=False)
class _Place:
    """Room for a worker in the cluster, and who has it. `arriving`: Ray's name for what its `load` will return."""

    number: int
    actor: Any
    arriving: Any
    host: str = ""
    losses: int = 0


class RayCrew:
    """Workers with a replica of the target each, on Ray."""

    def __init__(
        self, address: str, replica: Replica, here: Arrival, stages: Stages, *, leaves_gpus: bool = False
    ) -> None:
        """`here`: the target that this process has loaded, which the replicas must equal. `leaves_gpus`: whether the
        user wants processors where the cluster has GPUs.
        """
        self._address, self._replica, self._here = address, replica, here
        self._leaves_gpus = leaves_gpus
        self._stages = stages
        self._ray: Any = None
        self._most = 0
        self._resources: dict[str, int] = {}
        self._places: list[_Place] = []
        self._idle: list[_Place] = []
        self._told: set[str] = set()
        self._opened = contextlib.ExitStack()

    @property
    def size(self) -> int:
        """Workers that have loaded the target."""
        return sum(place.arriving is None for place in self._places)

    def close(self) -> None:
        """End the workers, and the cluster if it was started here."""
        self._opened.close()
        self._ray = None
        self._places.clear()
        self._idle.clear()

    def each(self, work: Work[Item, Result], items: Iterable[Item]) -> Iterator[tuple[int, Result]]:
        """See `Crew`. Raises SpecprobeError where a piece of work, or all places, lost a worker too often."""
        left = (_Piece(number, item) for number, item in enumerate(items))
        waiting: deque[_Piece[Item]] = deque()
        busy: dict[Any, tuple[_Place, _Piece[Item]]] = {}
        while self._hand_out(work, left, waiting, busy):
            arriving = {place.arriving: place for place in self._places if place.arriving is not None}
            ended = self._next([*busy, *arriving])
            if ended in arriving:
                self._welcome(arriving[ended])
                continue
            place, piece = busy.pop(ended)
            try:
                result = self._result(ended)
            except _LostError as error:
                again = replace(piece, losses=piece.losses + 1)
                if again.losses == MOST_LOSSES:
                    raise SpecprobeError(
                        f"--ray: the same piece of work ended {MOST_LOSSES} workers ({error}); if their memory is too "
                        "small lower --batch-size or --max-new-tokens (finished responses are kept)"
                    ) from None
                waiting.appendleft(again)
                self._replace(place, error)
                continue
            place.losses = 0
            self._idle.append(place)
            yield piece.number, result

    def _next(self, awaited: list[Any]) -> Any:
        """The first of these that ends; says so where nobody has come to work for a while."""
        ended, _ = self._ray.wait(awaited, num_returns=1, timeout=SECONDS_UNTIL_SAID)
        if not ended:
            if not self.size:
                self._stages.say("still waiting for the first worker, which may load the model, or for room")
            ended, _ = self._ray.wait(awaited, num_returns=1)
        return ended[0]

    def _hand_out(
        self,
        work: Work[Item, Result],
        left: Iterator[_Piece[Item]],
        waiting: deque[_Piece[Item]],
        busy: dict[Any, tuple[_Place, _Piece[Item]]],
    ) -> bool:
        """Give work to all who are free, and have more come where there is more; whether there is anything to await."""
        while True:
            if not waiting:
                waiting.extend(piece for piece in [next(left, None)] if piece is not None)
            if not waiting:
                return bool(busy)
            self._connect()
            if self._idle:
                place, piece = self._idle.pop(0), waiting.popleft()
                busy[place.actor.do.remote(work, piece.item)] = place, piece
                continue
            if len(self._places) == self._most:
                return True
            arriving = sum(place.arriving is not None for place in self._places)
            if len(waiting) <= arriving:
                more = next(left, None)
                if more is None:
                    return True
                waiting.append(more)
            number = 1 + max((place.number for place in self._places), default=0)
            self._places.append(self._start(_Place(number, None, None)))

    def _connect(self) -> None:
        if self._ray is not None:
            return
        # It would report to its makers.
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        import ray

        own = {"include_dashboard": False} if self._address == LOCAL else {}
        before = signal.getsignal(signal.SIGTERM)
        try:
            _check_listens(self._address)
            ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR, **own)
        except Exception as error:  # of several kinds, by what is wrong
            raise SpecprobeError(
                f"--ray {inert(self._address, 80)}: no cluster answers there ({inert(first_line(error), 200)}); start "
                "one with `ray start --head`, set RAY_AUTH_MODE=token where it asks for a token, or say --ray without "
                "an address"
            ) from None
        if threading.current_thread() is threading.main_thread():
            # Ray's handler would have whoever ends this process believe that it was done.
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        self._ray = ray
        self._opened.callback(ray.shutdown)
        self._opened.enter_context(contextlib.redirect_stdout(_OwnStream(sys.stdout)))
        self._most, self._resources = self._room([n["Resources"] for n in ray.nodes() if n["Alive"]])
        threads = self._replica.threads
        kind = "a GPU each" if "num_gpus" in self._resources else f"{format_plural(threads, 'thread')} each"
        where = "of this machine" if self._address == LOCAL else f"of the cluster at {inert(self._address, 80)}"
        workers = f"up to {format_plural(self._most, 'worker')}"
        self._stages.say(f"sharing the work out over {workers} {where} ({kind})")

    def _room(self, nodes: list[dict[str, float]]) -> tuple[int, dict[str, int]]:
        """How many workers there is room for, and what each takes: a GPU, or as many processors as threads."""
        gpus = sum(int(node.get("GPU", 0)) for node in nodes)
        if self._replica.load.device == "cuda":
            if not gpus:
                raise SpecprobeError("--ray: this process has a GPU, the cluster has none; add --device cpu")
            return gpus, {"num_gpus": 1, "num_cpus": 0}
        if gpus and not self._leaves_gpus:
            raise SpecprobeError(
                f"--ray: the cluster has {gpus} GPUs, this process has none and would write otherwise; run it on a "
                "node with a GPU, or add --device cpu"
            )
        processors = [int(node.get("CPU", 0)) for node in nodes]
        threads = min(self._replica.threads, max(processors, default=0))
        if not threads:
            raise SpecprobeError("--ray: the cluster has neither GPUs nor processors; start it with some")
        return sum(count // threads for count in processors), {"num_cpus": threads}

    def _start(self, place: _Place) -> _Place:
        remote = self._ray.remote(**self._resources)(Worker)
        place.actor = remote.remote(self._replica)
        place.arriving = place.actor.load.remote()
        return place

    def _welcome(self, place: _Place) -> None:
        """Let a worker that has loaded the same target begin."""
        try:
            arrival: Arrival = self._result(place.arriving)
        except _LostError as error:
            self._replace(place, error)
            return
        except SpecprobeError as error:
            raise SpecprobeError(f"--ray: a worker cannot load the target: {error}") from None
        place.arriving, place.host = None, inert(arrival.host, 80)
        for what, value in self._here.facts.items():
            if arrival.facts.get(what) != value:
                raise SpecprobeError(
                    f"--ray: {place.host} has other {what} ({inert(str(arrival.facts.get(what)), 80)}) than this "
                    f"process ({inert(str(value), 80)}), so its responses would differ; put the same on every node"
                )
        if arrival.hardware != self._here.hardware and place.host not in self._told:
            self._told.add(place.host)
            self._stages.say(
                f"{place.host} computes on {inert(arrival.hardware, 80)}, this process on "
                f"{inert(self._here.hardware, 80)}: they round differently, so responses may depend on who writes them"
            )
        self._idle.append(place)

    def _replace(self, place: _Place, error: _LostError) -> None:
        """Have another worker come where one was lost, unless that happens again and again."""
        place.losses += 1
        goes_on = place.losses < MOST_LOSSES
        name = f"worker {place.number}" + (f" on {place.host}" if place.host else "")
        self._stages.say(f"{name} was lost ({error}); its work is given to another")
        if goes_on:
            self._start(place)
            return
        self._places.remove(place)
        self._most -= 1
        if not self._most:
            raise SpecprobeError(
                f"--ray: workers do not live ({error}); every node needs specprobe[ray], the model and the memory for "
                "it (finished responses are kept)"
            )

    def _result(self, ended: Any) -> Any:
        """What a worker returned or raised; raises _LostError where there is no worker any more."""
        try:
            return self._ray.get(ended)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise (cause if isinstance(cause, Exception) else SpecprobeError(f"--ray: {first_line(error)}")) from None
        except self._ray.exceptions.RayError as error:
            raise _LostError(inert(first_line(error), 100)) from None


def _check_listens(address: str) -> None:
    """Raise OSError where nobody listens: Ray would go on trying for a quarter of an hour."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_CONNECT).close()


class _OwnStream:
    """A stream of the thread that made it: where a worker dies, Ray prints from others, and a document may be due."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._owner = stream, threading.current_thread()

    def write(self, text: str) -> int:
        """Dropped, if it is another's."""
        return int(self._stream.write(text)) if threading.current_thread() is self._owner else len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _LostError(Exception):
    """A worker died, or what it returned is lost; the text says how."""
