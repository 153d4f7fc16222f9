"""The command ``ajet``. Each subcommand has a separate module, imported when it is called."""
