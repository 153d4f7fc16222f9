"""Engines and trainers out of process, each worker in any Python interpreter.

The server spawns ``python -m ajet_core.worker --fd N`` with one end of a socket pair and talks to it in
length-prefixed msgpack frames (`ajet_core.worker.frames`). No pickle, no port, no path: nobody but the
two processes can reach the connection, and a worker whose server is gone sees the end of the file and exits.
"""
