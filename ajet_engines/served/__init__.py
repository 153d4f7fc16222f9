"""What engine plugins share that serve a model by processes of their own, reached over HTTP.

A plugin implements `ModelServer` (or `HttpModelServer`, which has what most have in common), which says what its kind of server understands, and subclasses `ServedEngine`, which
does the rest: replicas and routing, changes of weights under running requests, pauses, servers that die.
"""

from ajet_engines.served.api import ModelServer, Piece
from ajet_engines.served.engine import ServedEngine
from ajet_engines.served.http import Address, HttpClient, ServerGoneError, ServerRefusedError
from ajet_engines.served.http_server import HttpModelServer
from ajet_engines.served.process import ServerProcess
from ajet_engines.served.replica import Launched, Replica, attach
from ajet_engines.served.routing import Router
from ajet_engines.served.sockets import SocketDirectory
from ajet_engines.served.weights import check_update, check_weights

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
