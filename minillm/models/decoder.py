"""The forward pass of a decoder, written once against `minillm.ops.base.Ops`, whatever its layers are made of.

It knows nothing about requests, files or array libraries: a batch goes in, hidden states of the rows to
sample come out, and what the layers keep of every token is left in their caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minillm.models.attention import Cache
from minillm.models.layers import AnyFeedForward, AnyMixer, build_feed_forward, build_mixer
from minillm.models.reader import Reader
from minillm.models.spec import ModelSpec
from minillm.ops.base import Array, AttentionMetadata, Batch, Ops
from minillm.ops.linear import Linear


@dataclass(slots=True)
class Layer:
    """A layer ready to run. Norms are weights ``[hidden]``."""

    mixer_norm: Array
    mixer: AnyMixer
    output: Linear
    post_mixer_norm: Array | None
    ffn_norm: Array
    ffn: AnyFeedForward
    post_ffn_norm: Array | None


@dataclass(slots=True)
class Parameters:
    """All weights of a model, in one library's arrays. The head's weight is ``embed`` where the two are tied."""

    embed: Array
    layers: list[Layer]
    final_norm: Array
    head: Linear


def build_parameters(spec: ModelSpec, reader: Reader) -> Parameters:
    """Reads every tensor once."""

    def layer(i: int) -> Layer:
        prefix, of_layer = f"layers.{i}.", spec.layers[i]
        mixer = of_layer.mixer
        return Layer(
            mixer_norm=reader.norm(prefix + "mixer_norm"),
            mixer=build_mixer(mixer, spec, reader, prefix),
            output=reader.linear(prefix, "output", bias=mixer.output_bias),
            post_mixer_norm=reader.norm(prefix + "post_mixer_norm") if of_layer.post_norms else None,
            ffn_norm=reader.norm(prefix + "ffn_norm"),
            ffn=build_feed_forward(of_layer.ffn, reader, prefix),
            post_ffn_norm=reader.norm(prefix + "post_ffn_norm") if of_layer.post_norms else None,
        )

    embed = reader.linear("", "embed").weight
    return Parameters(
        embed=embed,
        layers=[layer(i) for i in range(spec.num_layers)],
        final_norm=reader.norm("final_norm"),
        head=Linear(embed) if spec.tied_head else reader.linear("", "head"),
    )


# Hears of the hidden states behind the embedding and each layer: ``[T, hidden]``, or those sampled, behind the last.
Look = Callable[[str, Array], None]


class Decoder:
    """A model ready to run: spec, weights and the operators that compute it."""

    def __init__(self, spec: ModelSpec, parameters: Parameters, ops: Ops) -> None:
        self.spec, self.parameters, self.ops = spec, parameters, ops

    def hidden_states(
        self,
        batch: Batch,
        reads: Sequence[AttentionMetadata],
        caches: Sequence[Cache],
        look: Look | None = None,
    ) -> Array:
        """``[S, hidden]`` of ``batch.logits_indices``, after the last norm.

        ``reads`` and ``caches`` are of each layer: where it writes and reads, and in which arrays.
        """
        spec, ops, p = self.spec, self.ops, self.parameters
        hidden = ops.embed(p.embed, batch.token_ids)
        if spec.embedding_scale != 1.0:
            hidden = hidden * spec.embedding_scale
        if look is not None:
            look("the embedding", hidden)
        normed = ops.rms_norm(hidden, p.layers[0].mixer_norm, spec.norm_eps)
        for i, layer in enumerate(p.layers):
            mixed = layer.mixer(ops, normed, batch, reads[i], caches[i])
            is_last = i == len(p.layers) - 1
            if is_last:  # nothing but the sampled rows is read after the last mixer
                mixed, hidden = (ops.take_rows(x, batch.logits_indices) for x in (mixed, hidden))
            mixed = ops.linear(mixed, layer.output)
            if layer.post_mixer_norm is not None:
                mixed = ops.rms_norm(mixed, layer.post_mixer_norm, spec.norm_eps)
            normed, hidden = ops.add_rms_norm(mixed, hidden, layer.ffn_norm, spec.norm_eps)
            inner = layer.ffn(ops, normed)
            if layer.post_ffn_norm is not None:
                inner = ops.rms_norm(inner, layer.post_ffn_norm, spec.norm_eps)
            following = p.final_norm if is_last else p.layers[i + 1].mixer_norm
            normed, hidden = ops.add_rms_norm(inner, hidden, following, spec.norm_eps)
            if look is not None:
                look(f"layer {i} of {len(p.layers)}", hidden)
        return normed

    def logits(self, hidden: Array) -> Array:
        """``[n, V]`` from hidden states ``[n, hidden]`` after the last norm."""
        logits = self.ops.linear(hidden, self.parameters.head)
        return logits if self.spec.logit_cap is None else self.ops.soft_cap(logits, self.spec.logit_cap)
