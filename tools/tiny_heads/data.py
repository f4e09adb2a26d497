"""What heads are trained on: windows of the text, and of the target's own continuations of it, with its features.

A drafter is asked where the target writes, and that is not always like the text; so half of the windows are what the
target wrote after a few words of it, as greedily or freely as users let it (self-distillation in Cai et al., 2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from tiny_lm import storage
from tiny_lm.model import TARGET, Llama
from torch import Tensor

from minillm.core.config import EngineConfig
from minillm.core.sampling import SamplingParams
from minillm.llm import LLM

WINDOW = 128
PROMPT = 16
TEMPERATURES = (0.0, 0.7, 1.0)


@dataclass(frozen=True)
class Windows:
    """``ids [windows, WINDOW]`` and the target's ``features [windows, WINDOW, hidden]``."""

    ids: Tensor
    features: Tensor

    def __len__(self) -> int:
        return len(self.ids)


def shipped_target(folder: Path) -> Llama:
    """The bundled target as it runs: its rounded weights in float32, frozen."""
    tensors, _ = storage.load(folder / "model.safetensors")
    model = Llama(TARGET)
    model.load_state_dict(
        {
            name: value * tensors[name + "_scale"] if value.dtype == torch.int8 else value
            for name, value in tensors.items()
            if not name.endswith("_scale")
        }
    )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.eval()
    return model


def text_windows(stream: Tensor, count: int, length: int, seed: int) -> Tensor:
    """``count`` windows at random places of the text."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(stream) - length, (count,), generator=generator)
    return torch.stack([stream[at : at + length] for at in starts.tolist()])


def written_windows(target: str, stream: Tensor, count: int, seed: int) -> Tensor:
    """What the target goes on with after ``count`` beginnings of ``PROMPT`` tokens."""
    config = EngineConfig(max_running_requests=64, record_trace=False, seed=seed)
    llm = LLM(target, backend="numpy", config=config)
    for i, prompt in enumerate(text_windows(stream, count, PROMPT, seed).tolist()):
        temperature = TEMPERATURES[i % len(TEMPERATURES)]
        params = SamplingParams(temperature=temperature, max_tokens=WINDOW - PROMPT, ignore_eos=True)
        llm.engine.add_request(prompt, params)
    for _ in llm.engine.run():
        pass
    return torch.tensor([request.token_ids for request in llm.engine.requests.values()])


def with_features(model: Llama, ids: Tensor) -> Windows:
    with torch.no_grad():
        return Windows(ids, torch.cat([model.hidden(part) for part in ids.split(16)]))
