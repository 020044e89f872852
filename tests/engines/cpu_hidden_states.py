"""vLLM 0.32's connector for hidden states on the CPU build: the same files, without the CUDA streams of its copies.

With this folder in PYTHONPATH, `--kv-transfer-config` takes "kv_connector": "CpuHiddenStatesConnector" and
"kv_connector_module_path": "cpu_hidden_states", beside what README.md shows.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as vllm_connector


class Done:
    """An event of the past."""

    def query(self) -> bool:
        return True


class CpuHiddenStatesConnector(vllm_connector.ExampleHiddenStatesConnector):
    def _submit_async_write(self, pending: Any) -> None:
        blocks = torch.tensor(pending.block_ids, dtype=torch.long)
        slots = (blocks[:, None] * self._block_size + torch.arange(self._block_size)).flatten()
        states = vllm_connector.extract_from_kv_cache(self._kv_cache, slots, len(pending.token_ids))
        save_file({"hidden_states": states.contiguous(), "token_ids": pending.token_ids.clone()}, pending.filename)
        os.close(self._lock_fds.pop(pending.req_id))
        self._req_copy_events[pending.req_id] = Done()
