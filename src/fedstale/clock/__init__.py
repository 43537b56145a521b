"""Virtual time: how fast devices are, when they are there, when a server steps. Mathematics only, nothing sleeps."""

from .availability import Always, Availability, Intervals, Slots
from .clock import Clock, Work
from .deadline import DeadlineAdvice, advise_deadline
from .devices import Devices, Equal, LogNormal, Measured, Speeds, Stopwatch, TwoClasses
from .events import Event, EventKind, EventQueue
from .idle import IdleDevices
from .ledger import Ledger, Outcome
from .registry import DEVICES, SERVERS, make_devices, make_server
from .servers import Asynchronous, Buffered, Server, Synchronous

__all__ = [
    "DEVICES",
    "SERVERS",
    "Always",
    "Asynchronous",
    "Availability",
    "Buffered",
    "Clock",
    "DeadlineAdvice",
    "Devices",
    "Equal",
    "Event",
    "EventKind",
    "EventQueue",
    "IdleDevices",
    "Intervals",
    "Ledger",
    "LogNormal",
    "Measured",
    "Outcome",
    "Server",
    "Slots",
    "Speeds",
    "Stopwatch",
    "Synchronous",
    "TwoClasses",
    "Work",
    "advise_deadline",
    "make_devices",
    "make_server",
]
