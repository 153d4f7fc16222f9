"""The subcommands of ``ajet``, a module each."""
