"""Parts shared by engine plugins that serve a model in separate processes, over HTTP.

A plugin implements `ModelServer` (or `HttpModelServer`, with parts that most servers share) for its
kind of server, and subclasses `ServedEngine`, which does the rest: replicas and routing, changes of
weights under running requests, pauses, and server failures.
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
