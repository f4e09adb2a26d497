"""From the specs of a layer's parts to what computes them."""

from __future__ import annotations

from minillm.models.attention import AttentionMixer
from minillm.models.experts import ExpertsFeedForward
from minillm.models.feed_forward import DenseFeedForward
from minillm.models.latent import LatentMixer
from minillm.models.reader import Reader
from minillm.models.spec import Attention, Dense, FeedForward, Mixer, ModelSpec

AnyMixer = AttentionMixer | LatentMixer
AnyFeedForward = DenseFeedForward | ExpertsFeedForward


def build_mixer(mixer: Mixer, model: ModelSpec, reader: Reader, prefix: str) -> AnyMixer:
    """The mixer of the layer whose tensors begin with ``prefix``."""
    if isinstance(mixer, Attention):
        return AttentionMixer(mixer, model.norm_eps, model.ropes, reader, prefix)
    return LatentMixer(mixer, model.norm_eps, model.ropes, reader, prefix)


def build_feed_forward(ffn: FeedForward, reader: Reader, prefix: str) -> AnyFeedForward:
    """The feed-forward of the layer whose tensors begin with ``prefix``."""
    if isinstance(ffn, Dense):
        return DenseFeedForward(ffn, reader, prefix)
    return ExpertsFeedForward(ffn, reader, prefix)
