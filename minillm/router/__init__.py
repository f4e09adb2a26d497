"""Which worker a request goes to: a router, six policies, and what it knows of the workers' cached prefixes."""

from minillm.router.policies import POLICIES, PolicyName, RoutingPolicy, make_policy
from minillm.router.prefixes import HeardPrefixes, Prefixes, SentPrefixes
from minillm.router.router import Router, RouterError
from minillm.router.worker import Incoming, Worker

__all__ = [
    "POLICIES",
    "HeardPrefixes",
    "Incoming",
    "PolicyName",
    "Prefixes",
    "Router",
    "RouterError",
    "RoutingPolicy",
    "SentPrefixes",
    "Worker",
    "make_policy",
]
