"""Hand-off of cached blocks between engines and tiers, by messages that may be lost, doubled, late or out of order."""

from minillm.transfer.device import DeviceStore
from minillm.transfer.importer import Importer, PullState
from minillm.transfer.intake import Intake
from minillm.transfer.protocol import Ask, Block, BlockStore, Done, Fetch, Gone, Message, Offer, Prefix, Send
from minillm.transfer.source import Source

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
