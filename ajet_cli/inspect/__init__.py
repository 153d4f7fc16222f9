"""Looking at a run: what agents and models said token by token, what training made of it, and taking it elsewhere.

`run_facts` and `token_texts` say what a run's records mean, `summary` and `terminal` are for the terminal,
`page_data` and `page` make one HTML file, `samples` and `sample_files` write samples for other tools.
"""
