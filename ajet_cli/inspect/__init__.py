"""Inspection and export of a run: messages and tokens, and the training results of each.

`run_facts` and `token_texts` interpret a run's records, `summary` and `terminal` are for the
terminal, `page_data` and `page` create one HTML file, `samples` and `sample_files` write samples
for other tools.
"""
