"""What people see of a run in a browser: the data of the live page and of single episodes.

`history`, `overview` and `episode_rows` are for the page that a server has at ``/ui``, whose files
are in `assets`. `page_data` is for the viewer of tokens in `viewer`, which `ajet inspect` writes
into one file, too.
"""
