"""Engines and trainers out of process, each worker in any Python interpreter.

The server spawns ``python -m ajet_server.workers --fd N`` with one end of a socket pair and talks to it in
length-prefixed msgpack frames (`ajet_server.workers.frames`). No pickle, no port, no path: nobody but the
two processes can reach the connection, and a worker whose server is gone sees the end of the file and exits.
"""
