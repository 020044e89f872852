"""A piece of work as one CUDA graph, so that its kernels start without the host launching each. Imports torch."""

from __future__ import annotations

from collections.abc import Callable

import torch

Work = Callable[[], torch.Tensor]
WARMUPS = 3


def captured(work: Work) -> Work | None:
    """`work` recorded once and replayed whenever it is called; None where it cannot be captured.

    `work` must read and write tensors that stay where they are, leave the same state behind however often it runs, and
    not ask the device for a value. Raises torch.OutOfMemoryError.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    try:
        # Kernels are chosen and caches made outside of the graph.
        with torch.cuda.stream(stream):
            for _ in range(WARMUPS):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            result = work()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return None

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return replay
