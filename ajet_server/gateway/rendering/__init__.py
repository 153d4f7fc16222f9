"""Convert messages to tokens and back, and make calls extend the tokens of earlier calls."""

from ajet_server.gateway.renderers_client import leave_out_client

leave_out_client()
