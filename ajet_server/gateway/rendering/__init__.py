"""Convert messages to tokens and back, and make calls extend the tokens of earlier calls."""

import ajet_server.gateway.renderers_client as _client

_client.leave_out_client()
