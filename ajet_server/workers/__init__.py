"""Engines and trainers in worker processes, each with any Python interpreter.

The server spawns ``python -m ajet_server.workers --fd N`` with one end of a socket pair. Server and
worker exchange length-prefixed msgpack frames (`ajet_server.workers.frames`). There is no pickle,
no port and no path: only the two processes can use the connection. A worker whose server is gone
reads the end of the stream. It then exits, or waits for the next server
(`ajet_server.workers.rendezvous`).
"""
