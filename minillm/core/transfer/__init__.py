"""Hand-off of cached blocks between engines and tiers, by messages that may be lost, doubled, late or out of order."""

from minillm.core.transfer.device import DeviceStore
from minillm.core.transfer.importer import Importer, PullState
from minillm.core.transfer.intake import Intake
from minillm.core.transfer.protocol import Ask, Block, BlockStore, Done, Fetch, Gone, Message, Offer, Prefix, Send
from minillm.core.transfer.source import Source

__all__ = [
    "Ask",
    "Block",
    "BlockStore",
    "DeviceStore",
    "Done",
    "Fetch",
    "Gone",
    "Importer",
    "Intake",
    "Message",
    "Offer",
    "Prefix",
    "PullState",
    "Send",
    "Source",
]
