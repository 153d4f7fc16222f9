"""The subcommands of ``ajet``, one module each."""
