"""Google's ``generateContent``: parse its bodies, and write its JSON and streams."""
