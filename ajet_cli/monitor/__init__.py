"""``ajet monitor``: the run at a glance in a terminal.

It reads the routes of the live page. `watch` asks a server for its state; `lines` shows lines of
text and lists with a cursor, of which only what is on the screen is drawn. The other modules write
those lines, or are screens. Whatever comes from a server passes through `layout`, which leaves
nothing in it that a terminal would obey.
"""
