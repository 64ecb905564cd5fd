"""One module per research question, rqN.py: from runs to the tables that answer it.

AXES           the knobs it compares, besides the seed; runs that differ in another knob are told apart, never averaged
tables(study)  {file name: table}; means have their sample sd beside them in `<column>_sd`
"""
