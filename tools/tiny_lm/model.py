"""A Llama in plain torch, for training only; the parameter names are Hugging Face's.

The handbook's engine runs the result with its own decoder. This file knows nothing of caches,
batches of unequal length or sampling rules. Torch is not type-checked in this project, hence the ignores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama with tied embeddings, under Hugging Face's names."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    head_dim: int = 32
    vocab_size: int = 4096
    max_position_embeddings: int = 1024
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0


TARGET = Shape(192, 6, 6, 2, 512)
DRAFT = Shape(64, 1, 2, 1, 160)


class Attention(nn.Module):  # type: ignore[misc]
    """Grouped-query attention over `[batch, tokens, hidden]`, causal, with rotary positions."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        kv_width = s.num_key_value_heads * s.head_dim
        self.q_proj = nn.Linear(s.hidden_size, s.num_attention_heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(s.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(s.num_attention_heads * s.head_dim, s.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            proj(x).view(batch, tokens, -1, self.s.head_dim).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        group = self.s.num_attention_heads // self.s.num_key_value_heads
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, tokens, -1))
        return result


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of `[..., tokens, head_dim]`; element i is paired with i + head_dim / 2."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class MLP(nn.Module):  # type: ignore[misc]
    """SwiGLU."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden_size, s.intermediate_size, bias=False)
        self.up_proj = nn.Linear(s.hidden_size, s.intermediate_size, bias=False)
        self.down_proj = nn.Linear(s.intermediate_size, s.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and MLP, each behind an RMSNorm and added to the stream."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = nn.RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.mlp = MLP(s)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result


class Body(nn.Module):  # type: ignore[misc]
    """Embedding, layers and the last norm: everything under the prefix `model.`."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab_size, s.hidden_size)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.num_hidden_layers))
        self.norm = nn.RMSNorm(s.hidden_size, s.rms_norm_eps)


class Llama(nn.Module):  # type: ignore[misc]
    """Ids `[batch, tokens]` to logits `[batch, tokens, vocab]`."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        exponent = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        angles = torch.outer(
            torch.arange(shape.max_position_embeddings, dtype=torch.float32),
            shape.rope_theta**-exponent,
        )
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.apply(self._init)
        # What a layer adds to the stream starts small, so that the sum over layers keeps its size.
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.normal_(parameter, std=0.02 / (2 * shape.num_hidden_layers) ** 0.5)

    def _init(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def hidden(self, ids: Tensor) -> Tensor:
        """The stream after the last norm, `[batch, tokens, hidden]`."""
        tokens = ids.shape[1]
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, self.cos[:tokens], self.sin[:tokens])
        result: Tensor = self.model.norm(x)
        return result

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.hidden(ids), self.model.embed_tokens.weight)

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def state(self) -> dict[str, Any]:
        return {name: value.detach().clone() for name, value in self.state_dict().items()}
