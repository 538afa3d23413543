"""A run folder as a page for people: what happened, in plots and tables, in one file that opens anywhere."""
