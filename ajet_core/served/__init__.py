"""What engine plugins share that serve a model by processes of their own, reached over HTTP.

A plugin implements `ModelServer` (or `HttpModelServer`, which has what most have in common), which says what its kind of server understands, and subclasses `ServedEngine`, which
does the rest: replicas and routing, changes of weights under running requests, pauses, servers that die.
"""

from .api import ModelServer, Piece
from .engine import ServedEngine
from .http import Address, HttpClient, ServerGoneError, ServerRefusedError
from .http_server import HttpModelServer
from .process import ServerProcess
from .replica import Launched, Replica, attach
from .routing import Router
from .sockets import SocketDirectory
from .weights import check_update, check_weights

__all__ = [
    "Address",
    "HttpClient",
    "HttpModelServer",
    "Launched",
    "ModelServer",
    "Piece",
    "Replica",
    "Router",
    "ServedEngine",
    "ServerGoneError",
    "ServerProcess",
    "ServerRefusedError",
    "SocketDirectory",
    "attach",
    "check_update",
    "check_weights",
]
