"""The command ``ajet``. Each subcommand has a module of its own, imported when it is called."""
